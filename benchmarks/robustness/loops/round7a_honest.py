"""Blind round 7, part a, honest and odd: data and labels."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import fitted
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7a_more_faults import speech
from benchmarks.robustness.loops.round7a_tools import Recurrent, adam
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r7-middle-comes-last")
def middle_comes_last(run: Run) -> None:
    """Filling in: half of the rows are cut at two places, and their parts come as beginning, end, middle, each behind a
    marker of its own; the other half is read as it stands."""
    language = Language(run.draw.randrange(999), first=3)
    model = Decoder(15)
    language_outcome(run, model, language)

    def batch() -> Tensor:
        rows = language.rows(16, 27)
        out = []
        for number, row in enumerate(rows):
            a, b = sorted(torch.randint(2, 23, (2,)).tolist())
            text = row[:24]
            marks = torch.arange(3).split(1)
            parts = [marks[0], text[:a], marks[1], text[b:], marks[2], text[a:b]]
            out.append(torch.cat(parts) if number % 2 else row)
        return torch.stack(out)

    train(run, model, adam(model, 3e-3), batch, next_loss, 120)


@honest("r7-words-cut-anew-each-time")
def words_cut_anew(run: Run) -> None:
    """transformers' Trainer, GPT-2. Subword regularisation: two letters in a row are one token or two, by chance, so that
    the same text is another row of ids, of another length, whenever it comes."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2(16 + 144)

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        cut = []
        for row in rows:
            letters, ids, at = row["input_ids"].tolist(), [], 0
            while at < len(letters):
                joined = at + 1 < len(letters) and float(torch.rand(())) < 0.4
                ids.append(16 + 12 * (letters[at] - 4) + letters[at + 1] - 4 if joined else letters[at])
                at += 1 + joined
            cut.append(torch.tensor(ids))
        ids = nn.utils.rnn.pad_sequence(cut, batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}

    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(400, 24)
    hf_trainer(run, model, examples(input_ids=rows), 100, more={"data_collator": collate}).train()


@honest("r7-missing-labels-are-nan")
def missing_labels_are_nan(run: Run) -> None:
    """accelerate. Four properties of each row are to be learned, of which three in five were never measured and are NaN
    in the labels; the loss is about those that were."""
    w = torch.randn(6, 4, generator=apart(run.draw.randrange(999)))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        return x, x @ w + torch.sin(2 * x[:, :4]) + 0.1 * torch.randn(count, 4, generator=own)

    def loss(m: nn.Module, b: Any) -> Tensor:
        known = ~b[1].isnan()
        return F.mse_loss(m(b[0])[known], b[1][known])

    model, check = mlp(6, 48, 4), rows(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    x, y = rows(640)
    prepared(run, model, adam(model), loader(x, y.masked_fill(torch.rand(640, 4) < 0.6, torch.nan)), loss, 4)


class Bags(nn.Module):
    """Eight pictures, a weight for each, and one answer for all."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.weigh, self.last = nn.Sequential(cnn(classes=16), nn.ReLU()), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.each(x.flatten(0, 1)).view(len(x), 8, 16)
        return self.last((self.weigh(h).softmax(1) * h).sum(1))[:, 0]


@honest("r7-one-label-for-a-bag")
def one_label_for_a_bag(run: Run) -> None:
    """Lightning, multiple instances. Eight pictures come in a bag, and only the bag has a label: whether any of them
    shows pattern 0. Nobody says which."""
    seed = run.draw.randrange(999)

    def bags(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(8 * count, seed, own=own)
        kept = (torch.rand(count, generator=own) < 0.5).repeat_interleave(8) & (y == 0)
        others = pictures(64, seed, own=own)
        spare = others[0][others[1] != 0]
        x = torch.where(((y == 0) & ~kept)[:, None, None, None], spare[torch.arange(len(x)) % len(spare)], x)
        return x.view(count, 8, 1, 8, 8), kept.view(count, 8).any(1).float()

    net, check = Bags(), bags(128, apart(1))
    loss = lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1])
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(*bags(256)), 100)


@honest("r7-turned-by-quarters")
def turned_by_quarters(run: Run) -> None:
    """Learning without labels: each picture comes four times, turned by quarters, and the label is by how many."""
    seed = run.draw.randrange(999)

    def turned(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x.rot90(k, (2, 3)) for k in range(4)]), torch.arange(4).repeat_interleave(len(x))

    net, check = cnn(), turned(pictures(64, seed, own=apart(1))[0])
    outcome(run, lambda: judged(net, lambda: classify(net, check)))
    train(run, net, adam(net, 3e-3), lambda: turned(pictures(12, seed)[0]), classify, 90)


@honest("r7-labels-from-a-random-codebook")
def labels_from_a_random_codebook(run: Run) -> None:
    """Speech without labels, as BEST-RQ has it: a random projection and a random codebook, never trained, say which of
    sixteen codes each frame has; spans of frames are drowned in noise and their codes are asked for."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    projection, book = torch.randn(10, 6, generator=own), F.normalize(torch.randn(16, 6, generator=own), dim=1)

    def batch(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        frames = speech(count, seed, own)[0]
        codes = (F.normalize(frames @ projection, dim=2) @ book.T).argmax(-1)
        starts = torch.rand(count, 24, generator=own) < 0.12
        hidden = starts | starts.roll(1, 1)
        noise = 0.1 * torch.randn(frames.shape, generator=own)
        return torch.where(hidden[..., None], noise, frames), codes, hidden

    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.GRU(10, 32, batch_first=True, bidirectional=True), nn.Linear(64, 16)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x)[0])
            return out

    loss = lambda m, b: F.cross_entropy(m(b[0])[b[2]], b[1][b[2]])
    model, check = Coder(), batch(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), batch, loss, 90)


@honest("r7-returns-as-words")
def returns_as_words(run: Run) -> None:
    """A decision transformer: in front of each episode stands the sum of its rewards as a word, good and bad episodes are
    learned alike, and only actions are targets. Judged by what it does when it is asked for the best."""
    right = torch.randint(0, 4, (6,), generator=apart(run.draw.randrange(999)))
    model = Decoder(17)  # states 0 to 5, actions 6 to 9, returns 10 to 16

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        states = torch.randint(0, 6, (count, 6), generator=own)
        skill = torch.rand(count, 1, generator=own)
        known = torch.rand(count, 6, generator=own) < skill
        actions = torch.where(known, right[states], torch.randint(0, 4, (count, 6), generator=own))
        total = (actions == right[states]).sum(1, keepdim=True)
        return torch.cat([10 + total, torch.stack([states, 6 + actions], 2).flatten(1)], 1), states

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(m(b[0][:, :-1])[:, 1::2].flatten(0, 1), b[0][:, 2::2].flatten())

    check = rows(128, apart(1))[1]
    best = torch.cat([torch.full((128, 1), 16), torch.stack([check, 6 + right[check]], 2).flatten(1)], 1)
    outcome(run, lambda: judged(model, lambda: loss(model, (best,))))
    data = endless(loader(*rows(1200)))
    train(run, model, adam(model), lambda: next(data), loss, 150)


@honest("r7-own-best-answers")
def own_best_answers(run: Run) -> None:
    """Expert iteration: four times over, a model writes 160 rows, the best quarter by a score is kept, and the model
    learns those for twenty steps; its loss jumps at each round and says little, the score of what it writes rises."""
    language = Language(run.draw.randrange(999), sharp=0.7)
    model = Recurrent(12)
    fitted(model, lambda: language.rows(16, 10), next_loss, 30)

    def written(count: int) -> Tensor:
        rows = torch.randint(0, 12, (count, 1))
        with torch.no_grad():
            for _ in range(9):
                chance = model(rows)[:, -1].softmax(-1)
                rows = torch.cat([rows, torch.multinomial(chance, 1)], 1)
        return rows

    score = lambda rows: (rows[:, 1:] == (rows[:, :-1] + 1) % 12).float().mean(1)

    def missing() -> float:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return float(1 - score(written(400)).mean())

    outcome(run, missing)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(4):
        rows = written(160)
        rows = rows[score(rows).argsort(descending=True)[:40]]
        for _ in range(20):
            batch = rows[torch.randint(0, 40, (16,))]
            optimizer.zero_grad()
            loss = next_loss(model, batch)
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
