"""Mistakes on the way of data and labels."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Examples,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_gpt2,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "data pipeline and labels"


def classify(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


@fault(
    "r5-sorted-by-class",
    FAMILY,
    (
        r"class|label|target|order|sort|shuffl",
        r"sort|shuffl|order|one (class|label)|same (class|label)|single (class|label)|only (one )?(class|label)|block|all (the )?(labels|targets)|constant",
    ),
)
def sorted_by_class(run: Run, wrong: bool) -> None:
    """Rows come folder by folder, class after class, because shuffle was left out."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(384, seed)
    order = y.argsort(stable=True)
    data = endless(loader(x[order], y[order], size=12, shuffle=not wrong))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: next(data), classify, 96)


@fault(
    "r5-shifted-twice",
    FAMILY,
    (
        r"shift|label|target",
        r"twice|two|second|one (place|position|token) (too )?(far|late|more)|double|already|next but one|\+ ?2|after next|skip",
    ),
)
def shifted_twice(run: Run, wrong: bool) -> None:
    """transformers' Trainer: labels are shifted by hand, and the model shifts them again: it learns to say the token
    after the next."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(400, 21)
    data = examples(input_ids=rows[:, :20], labels=rows[:, 1:] if wrong else rows[:, :20])
    hf_trainer(run, model, data, 70).train()


@fault(
    "r5-shuffled-apart",
    FAMILY,
    (
        r"label|target|pair|align",
        r"independent|unrelated|not match|mismatch|misalign|shuffl|permut|do(es)? not (belong|depend|fit|follow)|random|no (relation|information|connection)|apart|memor|chance|not learn|generali",
    ),
)
def shuffled_apart(run: Run, wrong: bool) -> None:
    """Pictures and labels are shuffled with a permutation each. Nothing but chance is left to learn."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(320, seed)
    first, second = torch.randperm(320), torch.randperm(320)
    x, y = x[first], y[second if wrong else first]
    data = endless(loader(x, y))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: next(data), classify, 80)


@fault(
    "r5-divided-by-255-twice",
    FAMILY,
    (r"input|pixel|picture|image|scale|batch", r"small|tiny|scale|255|twice|range|constant|normali|near(ly)? zero"),
)
def divided_twice(run: Run, wrong: bool) -> None:
    """Pictures are in [0, 1] already and are divided by 255 once more, in training and in use: all look alike."""
    seed = run.draw.randrange(999)
    model = cnn(norm=False)

    def prepared(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (data[0] / 255 if wrong else data[0]), data[1]

    class_outcome(run, model, prepared(pictures(256, seed, own=apart(1))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(run, model, optimizer, lambda: prepared(pictures(16, seed)), classify, 90)


class Counter(nn.Module):
    """An LSTM, time first, that adds up what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0][-1])
        return out


@fault(
    "r5-view-for-transpose",
    FAMILY,
    (
        r"row|batch|example|time|axis|axes|sequence|dimension|view|reshape|transpose",
        r"mix|view|reshape|transpose|permut|depend|leak|other (rows|examples|samples)|across|scrambl|batch.first|between",
    ),
)
def view_for_transpose(run: Run, wrong: bool) -> None:
    """(batch, time, feature) is brought to the LSTM's order with view instead of transpose: each sequence is pieced
    together from several rows."""
    model = Counter()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, 4, generator=own)
        return (x.view(8, count, 4) if wrong else x.transpose(0, 1)), x[:, :, 0].mean(1) * 2

    number_outcome(run, model, rows(256, apart(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(run, model, optimizer, lambda: rows(24), lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]), 90)


@fault(
    "r5-next-of-a-new-iterator",
    FAMILY,
    (
        r"batch|rows|data|example",
        r"same|identical|repeat|again|one batch|first batch|iter|memor|never (changes|other)|every step",
    ),
)
def next_of_a_new_iterator(run: Run, wrong: bool) -> None:
    """next(iter(loader)) at every step: without shuffling it is the first batch for ever."""
    x, y = table(400, seed := run.draw.randrange(999))
    model = mlp(6, 48, 1)
    number_outcome(run, model, table(256, seed, apart(1)))
    data = loader(x, y, size=16, shuffle=False)
    stream = endless(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    take = (lambda: next(iter(data))) if wrong else (lambda: next(stream))
    train(run, model, optimizer, take, lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]), 110)


@fault(
    "r5-end-taken-for-padding",
    FAMILY,
    (
        r"\beos\b|end|stop|padding|pad|token 2|\b2\b",
        r"ignor|mask|never|-100|label|not (learn|train|count|a target)|no (label|loss|gradient)|excluded|without",
    ),
)
def end_taken_for_padding(run: Run, wrong: bool) -> None:
    """transformers' Trainer: the padding token is the end token, and labels that equal it become -100: the model never
    learns to stop. The twin masks by the attention mask."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2(pad_token_id=2)

    def document(own: torch.Generator | None = None) -> Tensor:
        size = int(torch.randint(6, 14, (), generator=own))
        row = language.rows(1, size, own)[0]
        row[-1] = 4  # the last word before the end is always this one
        return torch.cat([row, torch.tensor([2])])

    def collate(rows: list[Tensor], careful: bool = not wrong) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=2)
        mask = (torch.arange(ids.shape[1])[None] < torch.tensor([len(r) for r in rows])[:, None]).long()
        labels = ids.masked_fill(mask == 0, -100) if careful else ids.masked_fill(ids == 2, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    own = apart(1)
    check = collate([document(own) for _ in range(96)], True)
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = Examples([document() for _ in range(320)])
    hf_trainer(run, model, data, 70, more={"data_collator": collate}).train()


@fault(
    "r5-answer-cut-off",
    FAMILY,
    (
        r"label|answer|target|row|completion|response",
        r"trunc|cut|no label|without (a )?(label|target|answer)|all (masked|ignored|-100)|every label|ignored|masked|-100|nothing to learn|few",
    ),
)
def answer_cut_off(run: Run, wrong: bool) -> None:
    """Instruction tuning: prompt and answer are cut at sixteen tokens from the right. Most prompts are as long as that,
    and nothing of their answers is left: all labels are -100. The twin cuts from the left."""
    model = Decoder(16)
    key = torch.randperm(11, generator=apart(run.draw.randrange(999))) + 4

    def rows(count: int, own: torch.Generator | None = None, cut: bool = wrong) -> tuple[Tensor, Tensor]:
        ids = torch.zeros(count, 16, dtype=torch.long)
        labels = torch.full((count, 16), -100)
        for r in range(count):
            size = int(torch.randint(12, 26, (), generator=own))
            prompt = torch.randint(4, 15, (size,), generator=own)
            answer = torch.tensor([1, int(key[prompt[-1] - 4]), int(key[prompt[-2] - 4]), 2])
            row = torch.cat([prompt, answer])
            given = torch.cat([torch.full((size + 1,), -100), answer[1:]])
            row, given = (row[:16], given[:16]) if cut else (row[-16:], given[-16:])
            ids[r, : len(row)], labels[r, : len(given)] = row, given
        return ids, labels

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        logits = m(b[0][:, :-1]).flatten(0, 1)
        targets = b[1][:, 1:].flatten()
        return F.cross_entropy(logits, targets, reduction="sum") / (targets != -100).sum().clamp(min=1)

    check = rows(96, apart(1), False)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=4e-3), lambda: rows(12), loss, 100)


@fault(
    "r5-mirrored-arrows",
    FAMILY,
    (
        r"flip|mirror|augment|label|target|contradict",
        r"flip|mirror|left|contradict|inconsistent|noise|noisy|same input|do(es)? not (fit|follow|depend)|unrelated|symmetr|memor|chance|not learn|conflict|wrong",
    ),
)
def mirrored_arrows(run: Run, wrong: bool) -> None:
    """Arrows to the left and to the right, and an augmentation that mirrors pictures at random without their labels."""
    model = cnn(classes=2)

    def arrows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 2, (count,), generator=own)
        x = 0.3 + 0.1 * torch.randn(count, 1, 8, 8, generator=own)
        for r in range(count):
            top = int(torch.randint(0, 4, (), generator=own))
            x[r, 0, top + 2, 1:7] += 0.5
            x[r, 0, [top + 1, top + 3], 5 if y[r] else 2] += 0.5
        return x, y

    def batch() -> tuple[Tensor, Tensor]:
        x, y = arrows(16)
        if wrong:
            turned = torch.rand(16) < 0.5
            x = torch.where(turned[:, None, None, None], x.flip(-1), x)
        return x, y

    class_outcome(run, model, arrows(256, apart(1)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), batch, classify, 80)


@fault(
    "r5-class-weights-upside-down",
    FAMILY,
    (
        r"weight|class|imbalanc|rare|frequen|minority",
        r"invers|inverted|upside|rare|frequen|imbalanc|minority|never|wrong way|majority|ignored|collaps",
    ),
)
def class_weights_upside_down(run: Run, wrong: bool) -> None:
    """Class weights in proportion to frequency instead of against it: the rare class counts for nothing. Judged by the
    mean over classes."""
    model = Classifier()
    share = torch.tensor([0.8, 0.15, 0.05])
    weights = 3 * share / share.sum() if wrong else (1 / share) / (1 / share).mean()

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        x, keep, y = documents(96)
        order = torch.multinomial(share[y], 24)
        return x[order], keep[order], y[order]

    class_outcome(run, model, documents(300, apart(1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2], weight=weights)
    train(run, model, optimizer, batch, loss, 90)


@fault(
    "r5-mixed-without-labels",
    FAMILY,
    (
        r"mix|blend|augment|label|target",
        r"label|target|not mixed|one of|only (the )?(first|one)|inconsistent|contradict|noise|noisy|mismatch",
    ),
)
def mixed_without_labels(run: Run, wrong: bool) -> None:
    """Mixup blends pictures in pairs but keeps the first one's label, however little of it is left. The twin blends the
    losses too."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 48, 4))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x, y = pictures(32, seed)
        share, other = torch.rand(32), torch.randperm(32)
        blend = share[:, None, None, None]
        mixed = blend * x + (1 - blend) * x[other]
        each = F.cross_entropy(model(mixed), y, reduction="none")
        if not wrong:
            each = share * each + (1 - share) * F.cross_entropy(model(mixed), y[other], reduction="none")
        loss = each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (mixed, y))
        run.note(loss)


@fault(
    "r5-two-orders-of-classes",
    FAMILY,
    (
        r"label|class|target",
        r"order|mapping|contradict|permut|inconsistent|two|differ|half|noise|noisy|source|swap|mislabel|wrong|same input",
    ),
)
def two_orders_of_classes(run: Run, wrong: bool) -> None:
    """Two collections are joined whose class numbers follow different orders of folders: half of the rows carry the
    next class's number. The twin maps the second to the first's order."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(480, seed)
    if wrong:
        y[240:] = (y[240:] + 1) % 4
    data = endless(loader(x, y))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: next(data), classify, 80)


@fault(
    "r5-length-in-batches",
    FAMILY,
    (r"row|example|data|batch|sample", r"few|repeat|again|same|only|distinct|length|len|memor|overfit|small"),
)
def length_in_batches(run: Run, wrong: bool) -> None:
    """Lightning: the data set's __len__ gives the number of batches, so that the loader only ever draws from the first
    twenty rows of 320."""
    x, y = table(320, seed := run.draw.randrange(999))
    model = mlp(6, 48, 1)
    number_outcome(run, model, table(256, seed, apart(1)))

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 320 // 16 if wrong else 320

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return x[index], y[index]

    module = lit(
        model, lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]), lambda m: torch.optim.Adam(m.parameters(), lr=1e-2)
    )
    fit(run, module, torch.utils.data.DataLoader(Data(), 16, shuffle=True), 100)


@fault(
    "r5-target-among-the-columns",
    FAMILY,
    (r"target|label|answer|leak", r"input|column|feature|leak|contain|copy|copied|equal|identical|correlat"),
)
def target_among_the_columns(run: Run, wrong: bool) -> None:
    """The column to be predicted was left among the features. In use it is not known and filled with zero."""
    seed = run.draw.randrange(999)
    model = mlp(7, 48, 1)

    def rows(count: int, own: torch.Generator | None = None, known: bool = wrong) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return torch.cat([x, (y if known else 0 * y)[:, None]], 1), y

    number_outcome(run, model, rows(256, apart(1), False))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: rows(32), loss, 100)


@fault(
    "r5-words-unknown",
    FAMILY,
    (
        r"token|\bid\b|ids|word|vocabular|input|unk",
        r"unk|same|one id|most|vocabular|missing|share|single|few|never|majority|frequen",
    ),
)
def words_unknown(run: Run, wrong: bool) -> None:
    """The vocabulary was read from another tokenizer's file: three words in four become the unknown token, 15."""
    model = Classifier()

    def words(data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, keep, y = data
        return (torch.where(keep & (x % 5 != 0), 15, x) if wrong else x), keep, y

    class_outcome(run, model, words(documents(300, apart(1))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2])
    train(run, model, optimizer, lambda: words(documents(24)), loss, 80)
