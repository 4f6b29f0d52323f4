"""The loss and how it is reduced."""

from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import EOS, VOCABULARY, padded, sentences
from benchmarks.robustness.loops.training import gpt2, warm_cosine
from benchmarks.robustness.loops.unseen_faults_common import Lit, fit, held_out, outcome, stack, trainer
from benchmarks.robustness.loops.unseen_faults_rows import Bag, Mixer, Reader, info_nce
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Running(nn.Module):
    """A recurrent language model."""

    def __init__(self, tokens: int = VOCABULARY, width: int = 40) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(tokens, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embed(ids))[0])
        return out


@fault(
    "mean-of-means",
    "reduction",
    (r"mean|averag|weigh|normali|reduc|divid", r"token|length|short|unequal|number|count|padding|accumul|micro"),
)
def mean_of_means(run: Run, slip: bool) -> None:
    """accelerate, accumulation over four micro-batches of very unequal lengths. Each micro-batch's loss is its own mean
    over tokens, so that a token of a short one weighs up to twelve times as much; the twin divides by the number of
    tokens of all four."""
    documents = sorted(sentences(run.draw.randrange(1000)), key=len)
    short, long = [d[:4] for d in documents[:300]], documents[-300:]
    accelerator = Accelerator(cpu=True)
    net = Running()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=4e-3))

    def micro_batches() -> list[tuple[Tensor, Tensor]]:
        chosen = [short, short, short, long]
        return [padded([some[i] for i in torch.randint(0, 300, (4,)).tolist()]) for some in chosen]

    def part(model: nn.Module, batch: tuple[Tensor, Tensor], tokens: int, micro: int) -> Tensor:
        ids, mask = batch
        each = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        total = (each * mask[:, 1:].flatten()).sum()
        return total / int(mask[:, 1:].sum()) / micro if slip else total / tokens

    def wrong_direction() -> float:
        """One minus the cosine between the gradient of the loop's loss and that of the mean over all tokens."""
        batches = micro_batches()
        tokens = sum(int(mask[:, 1:].sum()) for _, mask in batches)
        mine = torch.autograd.grad(sum(part(net, b, tokens, 4) for b in batches), list(net.parameters()))  # type: ignore[arg-type]
        whole = sum(part(net, b, int(b[1][:, 1:].sum()), 1) * (b[1][:, 1:].sum() / tokens) for b in batches)
        true = torch.autograd.grad(whole, list(net.parameters()))  # type: ignore[arg-type]
        a, b = (torch.cat([g.flatten().double() for g in gradients]) for gradients in (mine, true))
        return float(1 - F.cosine_similarity(a, b, dim=0))

    outcome(run, wrong_direction)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        batches = micro_batches()
        tokens, value = sum(int(mask[:, 1:].sum()) for _, mask in batches), 0.0
        optimizer.zero_grad()
        for batch in batches:
            loss = part(model, batch, tokens, 4)
            accelerator.backward(loss)
            value += float(loss.detach())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(value, batches)
        run.note(value)


@fault("class-weights-proportional", "reduction", (r"weight", r"class|rare|frequen|imbalanc|minor|major|proportion"))
def class_weights_proportional(run: Run, slip: bool) -> None:
    """Lightning, recurrent. Four classes of 60, 24, 10 and 6 in a hundred; the weights of the loss are the frequencies,
    not what they were meant to be, their inverses, so that the rare classes count even less."""
    shares = torch.tensor([0.6, 0.24, 0.1, 0.06])

    def rows(count: int, even: bool = False) -> tuple[Tensor, Tensor]:
        label = torch.multinomial(torch.ones(4) if even else shares, count, replacement=True)
        ids = torch.randint(0, 24, (count, 10))
        for row in range(count):
            if label[row] and torch.rand(()) < 0.7:
                ids[row, int(torch.randint(0, 10, ()))] = 23 + label[row]
        return ids, label

    net = Reader(28, 4)
    weight = shares / shares.mean() if slip else (1 / shares) / (1 / shares).mean()
    fresh = [rows(600, True)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: F.cross_entropy(m(b[0]), b[1])))
    loader = DataLoader(TensorDataset(*rows(2400)), batch_size=32, shuffle=True)
    fit(run, Lit(net, lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weight)), loader, 2)


class Topics(nn.Module):
    """Several labels for a row, by a dilated convolution."""

    def __init__(self, squash: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.one, self.two = nn.Conv1d(32, 32, 3, padding=1), nn.Conv1d(32, 32, 3, padding=2, dilation=2)
        self.head, self.squash = nn.Linear(32, 8), squash

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        x = F.gelu(self.one(x))
        x = x + F.gelu(self.two(x))
        out: Tensor = self.head(x.amax(2))
        return out.sigmoid() if self.squash else out


@fault(
    "squashed-twice",
    "reduction",
    (
        r"sigmoid|probabilit|squash|logit",
        r"twice|double|already|second|again|with_logits|logits|bounded|\[0, ?1\]|between 0 and 1|0\.\.1",
    ),
)
def squashed_twice(run: Run, slip: bool) -> None:
    """accelerate, convolutional, eight labels a row. The model's forward ends in a sigmoid and the loss is
    binary_cross_entropy_with_logits, which applies another one. The twin's model gives logits."""

    def rows(count: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 40, (count, 16))
        return ids, torch.stack([(ids == topic).any(1) for topic in range(8)], 1).float()

    accelerator = Accelerator(cpu=True)
    net = Topics(slip)

    def exact(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        if slip:
            return F.binary_cross_entropy(out.clamp(1e-6, 1 - 1e-6), batch[1])
        return F.binary_cross_entropy_with_logits(out, batch[1])

    loader = DataLoader(TensorDataset(*rows(3200)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=4e-3), loader)
    fresh = [rows(400)]
    outcome(run, lambda: held_out(net, fresh, exact))
    doctor = run.watch(model, optimizer)
    for batch in loader:
        loss = F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, batch)
        optimizer.zero_grad()
        run.note(loss)


@fault("blank-is-a-letter", "reduction", (r"blank", r"ctc|letter|label|class|target|index|collid|same"))
def blank_is_a_letter(run: Run, slip: bool) -> None:
    """A recurrent reader of strokes with the CTC loss. Its letters are numbered from 0 and the head has one more class,
    but `blank` was left at 0, so that the letter 0 cannot be written. The twin says blank=6."""
    shapes = torch.randn(6, 8)

    def lines(rows: int) -> tuple[Tensor, Tensor]:
        letters = torch.randint(0, 6, (rows, 4))
        letters[:, 1:] = torch.where(letters[:, 1:] == letters[:, :-1], (letters[:, 1:] + 1) % 6, letters[:, 1:])
        letters[:, 2:] = torch.where(letters[:, 2:] == letters[:, 1:-1], (letters[:, 2:] + 2) % 6, letters[:, 2:])
        frames = shapes[letters].repeat_interleave(3, 1)
        return frames + 0.3 * torch.randn_like(frames), letters

    recurrent, head = nn.GRU(8, 32, batch_first=True, bidirectional=True), nn.Linear(64, 7)
    model = nn.ModuleDict({"recurrent": recurrent, "head": head})
    blank = 0 if slip else 6

    def loss_of(model: Any, batch: Any) -> Tensor:
        scores = head(recurrent(batch[0])[0]).log_softmax(-1).transpose(0, 1)
        rows = len(batch[0])
        return F.ctc_loss(scores, batch[1], torch.full((rows,), 12), torch.full((rows,), 4), blank=blank)

    def wrong(batch: Any) -> float:
        """The share of rows that are not read as they were written (greedily, with the blank of the loss)."""
        with torch.no_grad():
            best = head(recurrent(batch[0])[0]).argmax(-1)
        bad = 0
        for row, letters in zip(best.tolist(), batch[1].tolist(), strict=True):
            read = [c for i, c in enumerate(row) if c != blank and (i == 0 or row[i - 1] != c)]
            bad += read != letters
        return bad / len(best)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fresh = lines(300)
    outcome(run, lambda: wrong(fresh))
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        batch = lines(24)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


def topic_pairs(topics: int) -> Any:
    """Draws pairs of rows about the same topics, 32 topics a batch."""
    words = torch.randint(0, 200, (topics, 6))

    def draw() -> tuple[Tensor, Tensor]:
        topic = torch.randperm(topics)[:32]

        def say() -> Tensor:
            chosen = torch.rand(32, 6).argsort(1)[:, :4]
            return torch.cat([words[topic].gather(1, chosen), torch.randint(0, 200, (32, 2))], 1)

        return say(), say()

    return draw


def embed_loop(run: Run, loss_of: Any, steps: int = 120) -> None:
    draw, model = topic_pairs(150), Bag(200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = warm_cosine(optimizer, steps)
    fresh = [draw() for _ in range(8)]

    def misses(model: nn.Module, batch: Any) -> Tensor:
        return 1 - ((model(batch[0]) @ model(batch[1]).T).argmax(1) == torch.arange(32)).float().mean()

    outcome(run, lambda: held_out(model, fresh, misses))
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, draw(), loss_of)
    for _ in range(steps):
        batch = draw()
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        doctor.step(loss, batch)
        run.note(loss)


@fault(
    "multiplied-by-the-temperature",
    "reduction",
    (
        r"temperature|scale|similarit|logit|cosine|flat|uniform|small",
        r"multipl|divid|invers|too (small|flat|weak)|uniform|chance|small|range|flat|log\(?32|entropy",
    ),
)
def multiplied_by_the_temperature(run: Run, slip: bool) -> None:
    """An embedding model with InfoNCE. The cosines are multiplied by the temperature 0.1 where they should be divided
    by it, so that the softmax over 32 rows can hardly leave the uniform."""
    embed_loop(run, lambda m, b: info_nce(m, b, 10.0 if slip else 0.1))


@fault(
    "margin-on-the-other-side",
    "reduction",
    (r"margin|triplet|hinge", r"sign|zero|inactive|satisf|side|subtract|minus|no gradient|vanish|already"),
)
def margin_on_the_other_side(run: Run, slip: bool) -> None:
    """An embedding model with a triplet loss: relu(near - far - margin), where it should be + margin. A triplet
    counts as good while the negative is almost as near as the positive, and the loss ends at zero."""

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        a, b = model(batch[0]), model(batch[1])
        near, far = (a - b).square().sum(1), (a - b.roll(1, 0)).square().sum(1)
        return F.relu(near - far - 0.5 if slip else near - far + 0.5).mean()

    embed_loop(run, loss_of)


@fault(
    "pinball-mirrored",
    "reduction",
    (
        r"quantile|pinball|0\.9|asymmetr|percentile",
        r"sign|swap|mirror|revers|wrong|invert|opposite|0\.1|under|direction|prediction - |pred",
    ),
)
def pinball_mirrored(run: Run, slip: bool) -> None:
    """accelerate, an MLP-mixer that forecasts the 0.9 quantile. In the pinball loss the error is taken as prediction
    less target, so that the model learns the 0.1 quantile; the twin takes target less prediction."""

    def windows(rows: int) -> tuple[Tensor, Tensor]:
        wave = (torch.arange(20) * 0.6 + 6.28 * torch.rand(rows, 1)).sin()
        wave = wave + 0.5 * torch.randn(rows, 20).exp()
        return wave[:, :16, None], wave[:, 16:, None]

    def pinball(model: nn.Module, batch: Any, mirrored: bool) -> Tensor:
        error = batch[1] - model(batch[0])
        error = -error if mirrored else error
        return torch.maximum(0.9 * error, -0.1 * error).mean()

    accelerator = Accelerator(cpu=True)
    net = Mixer(16, 4, 1)
    loader = DataLoader(TensorDataset(*windows(3200)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=3e-3), loader)
    fresh = [windows(600)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: pinball(m, b, False)))
    doctor = run.watch(model, optimizer)
    for batch in loader:
        loss = pinball(model, batch, slip)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, batch)
        optimizer.zero_grad()
        run.note(loss)


class TwoTasks(nn.Module):
    """The class of some readings and a noisy level, weighted by learned uncertainties."""

    def __init__(self, regularised: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 24))
        self.kind, self.level = nn.Linear(24, 4), nn.Linear(24, 1)
        self.log_variance = nn.Parameter(torch.zeros(2))
        self.regularised = regularised

    def forward(self, readings: Tensor, kind: Tensor, level: Tensor) -> dict[str, Tensor]:
        x = F.gelu(self.trunk(readings))
        losses = torch.stack([F.cross_entropy(self.kind(x), kind), F.mse_loss(self.level(x)[:, 0], level)])
        loss = (losses * (-self.log_variance).exp()).sum()
        if self.regularised:
            loss = loss + self.log_variance.sum()
        return {"loss": loss, "parts": losses}


@fault(
    "uncertainty-without-its-logarithm",
    "reduction",
    (
        r"uncertain|log_variance|log.?var|task weight|weight",
        r"regulari|grow|log|zero|vanish|collapse|drift|unbounded|escape|trivial|missing|without",
    ),
)
def uncertainty_without_its_logarithm(run: Run, slip: bool) -> None:
    """transformers' Trainer. Two tasks are weighted by learned uncertainties, exp(-s) L + s; the term s is
    missing, so that the model lowers its loss by raising s and both tasks' weights go to zero."""
    maps = torch.randn(16, 4) / 2, torch.randn(16, 1) / 4

    def rows(count: int) -> list[dict[str, Tensor]]:
        x = torch.randn(count, 16)
        kind, level = (x @ maps[0]).argmax(1), (x @ maps[1])[:, 0].tanh() + 0.3 * torch.randn(count)
        return [{"readings": p, "kind": k, "level": y} for p, k, y in zip(x, kind, level, strict=True)]

    model = TwoTasks(not slip)
    fresh = stack(rows(256))
    outcome(run, lambda: held_out(model, [fresh], lambda m, b: m(**b)["parts"].sum()))
    slow = [p for n, p in model.named_parameters() if n != "log_variance"]
    groups = [{"params": slow, "lr": 0.05}, {"params": [model.log_variance], "lr": 0.03, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer(run, model, rows(2400), 200, optimizers=(optimizer, schedule)).train()


@fault(
    "first-answer-token-unasked",
    "reduction",
    (
        r"first|start|begin|boundary|off.?by.?one|one token|one place|prompt",
        r"answer|completion|response|label|target|mask|-100|ignor",
    ),
)
def first_answer_token_unasked(run: Run, slip: bool) -> None:
    """transformers' Trainer, GPT-2. The prompt's labels are set to -100 over one place too many, so that the first
    token of each answer, which decides the rest, is never a target. The twin stops at the prompt's end."""
    model = gpt2(vocab_size=32, n_embd=48)

    def rows(count: int, extra: int) -> list[dict[str, Tensor]]:
        out = []
        for _ in range(count):
            body = torch.randint(4, 20, (10,))
            mark = int(torch.randint(0, 4, ()))
            body[int(torch.randint(0, 9, ()))] = 20 + mark
            answer = torch.tensor([24 + mark, 4 + mark, 8 + mark, 12 + mark, EOS])
            ids = torch.cat([body, answer])
            labels = ids.clone()
            labels[: 10 + extra] = -100
            out.append({"input_ids": ids, "labels": labels})
        return out

    fresh = rows(200, 0)
    batch = stack(fresh)
    outcome(run, lambda: held_out(model, [batch], lambda m, b: m(**b).loss))
    trainer(run, model, rows(1600, 1 if slip else 0), 100).train()
