"""Mistakes in losses and masks."""

import math

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    documents,
    judged,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "loss and masking"


@fault(
    "r5-column-against-row",
    FAMILY,
    (r"shape|broadcast|size|dimension", r"broadcast|column|\bB\b|square|every|pair|\(\d+, ?1\)|unsqueeze|squeeze|mean"),
)
def column_against_row(run: Run, wrong: bool) -> None:
    """mse_loss of outputs (rows, 1) and targets (rows,): each output is compared with every target, and the best
    answer is their mean."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    number_outcome(run, model, table(256, seed, apart(1)))

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        out = m(b[0])
        return F.mse_loss(out if wrong else out.squeeze(1), b[1])

    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: table(32, seed), loss, 90)


@fault(
    "r5-softmax-twice",
    FAMILY,
    (r"softmax|probabilit|logit", r"twice|already|double|two|again|probabilit|logits|sum to (one|1)|bounded"),
)
def softmax_twice(run: Run, wrong: bool) -> None:
    """The network ends in a softmax, and cross_entropy takes another one."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(cnn(norm=False), nn.Softmax(1)) if wrong else nn.Sequential(cnn(norm=False))
    x, y = pictures(256, seed, own=apart(1))

    def surprise() -> Tensor:
        out = net(x)
        chance = out if wrong else out.softmax(1)
        return -(chance.gather(1, y[:, None]) + 1e-9).log().mean()

    outcome(run, lambda: judged(net, surprise))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    train(run, net, optimizer, lambda: pictures(16, seed), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 80)


@fault(
    "r5-sigmoid-twice",
    FAMILY,
    (
        r"sigmoid|probabilit|logit",
        r"twice|already|double|two|again|probabilit|logits|between 0 and 1|bounded|\[0, ?1\]",
    ),
)
def sigmoid_twice(run: Run, wrong: bool) -> None:
    """A network that ends in a sigmoid, under binary_cross_entropy_with_logits: nothing below one half can be said,
    and one row in ten is positive."""
    seed = run.draw.randrange(999)
    border = table(2000, seed, apart(2))[1].quantile(0.9)
    net = nn.Sequential(mlp(6, 32, 1), *([nn.Sigmoid()] if wrong else []))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, (y > border).float()[:, None]

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(b[0]), b[1])

    x, y = rows(400, apart(1))
    outcome(run, lambda: judged(net, lambda: F.binary_cross_entropy(net(x) if wrong else net(x).sigmoid(), y)))
    train(run, net, torch.optim.Adam(net.parameters(), lr=1e-2), lambda: rows(32), loss, 80)


@fault("r5-padding-in-the-loss", FAMILY, (r"pad", r"loss|target|label|count|ignor|mask|predict|mean"))
def padding_in_the_loss(run: Run, wrong: bool) -> None:
    """A language model on padded rows without ignore_index: five targets in six are padding. The twin ignores them."""
    language = Language(run.draw.randrange(999), first=1)
    model = Decoder(13)

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        ids = language.rows(count, 36, own)
        sizes = torch.randint(3, 9, (count,), generator=own)
        sizes[0] = 36
        return ids.masked_fill(torch.arange(36)[None] >= sizes[:, None], 0)

    def loss(m: nn.Module, ids: Tensor, skip: bool = not wrong) -> Tensor:
        return F.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0 if skip else -100)

    check = rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, True)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: rows(12), loss, 80)


def step_by_step(model: nn.Module, rows: Tensor) -> Tensor:
    """The loss of a language model in use, where it has only seen what was before."""
    losses = [F.cross_entropy(model(rows[:, :t])[:, -1], rows[:, t]) for t in (4, 8, 13, 17)]
    return torch.stack(losses).mean()


def next_loss(m: nn.Module, rows: Tensor) -> Tensor:
    return F.cross_entropy(m(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@fault(
    "r5-no-causal-mask",
    FAMILY,
    (r"causal|future|later|ahead|mask|next token|right", r"future|later|see|leak|causal|ahead|depend|answer|mask"),
)
def no_causal_mask(run: Run, wrong: bool) -> None:
    """A language model of an encoder's blocks, without the causal mask: every place sees its answer at its right."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for block in model.blocks:
        block.attention.causal = not wrong  # type: ignore[union-attr]
    check = language.rows(128, 18, apart(1))
    outcome(run, lambda: judged(model, lambda: step_by_step(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: language.rows(12, 18), next_loss, 110)


class Multiplied(nn.Module):
    """One head of causal attention whose mask is multiplied onto the scores or filled in."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(32)
        seen = torch.ones(x.shape[1], x.shape[1]).tril()
        scores = scores * seen if self.wrong else scores.masked_fill(seen == 0, -1e9)
        out: Tensor = scores.softmax(-1) @ self.v(x)
        return out


@fault(
    "r5-mask-by-multiplication",
    FAMILY,
    (
        r"causal|future|later|ahead|mask|right",
        r"future|later|see|leak|causal|ahead|depend|multipl|zero|answer|softmax|inf",
    ),
)
def mask_by_multiplication(run: Run, wrong: bool) -> None:
    """The causal mask is multiplied onto the scores: zero is a score like another, and the future stays visible. The
    twin fills in a large negative number."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for block in model.blocks:
        block.attention = Multiplied(wrong)
    check = language.rows(128, 18, apart(1))
    outcome(run, lambda: judged(model, lambda: step_by_step(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: language.rows(12, 18), next_loss, 110)


class FirstPlace(nn.Module):
    """PyTorch's TransformerEncoder, read at its first token."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.tokens = nn.Embedding(17, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        hidden = self.encoder(self.tokens(ids), src_key_padding_mask=keep if self.wrong else ~keep)
        out: Tensor = self.head(hidden[:, 0])
        return out


@fault(
    "r5-mask-means-keep",
    FAMILY,
    (
        r"mask|pad",
        r"invert|opposite|upside|wrong way|only (the )?pad|reads? pad|attend|key_padding_mask|True|flip|moved? by pad|padding (moves|changes)|depend",
    ),
)
def mask_means_keep(run: Run, wrong: bool) -> None:
    """src_key_padding_mask is True where a token is to be left out; here it is given the tokenizer's mask, True where
    there is one: attention reads padding only."""
    model = FirstPlace(wrong)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        x, _, y = documents(count, own)
        front, back = torch.full((count, 1), 16), torch.zeros(count, 1, dtype=torch.long)
        x = torch.cat([front, x, back], 1)
        return x, x != 0, y

    x, keep, y = rows(300, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x, keep), y)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2])
    train(run, model, optimizer, lambda: rows(24), loss, 80)


class Tagger(nn.Module):
    """A tag for each place, by convolutions over time; gives (rows, tags, places)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 16)
        self.body = nn.Sequential(nn.Conv1d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 5, 1))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.body(self.tokens(ids).transpose(1, 2))
        return out


@fault(
    "r5-classes-in-the-middle",
    FAMILY,
    (
        r"view|reshape|axis|axes|transpose|class|dimension|logit|shape|order|align|target|label",
        r"view|reshape|transpose|mix|permut|axis|axes|misalign|wrong (place|position)|not match|mismatch|other position|scrambl|unrelated|do(es)? not (belong|match|depend)",
    ),
)
def classes_in_the_middle(run: Run, wrong: bool) -> None:
    """Logits of shape (rows, tags, places) become (-1, tags) with reshape: tags and places are mixed up. The twin
    transposes first."""
    model = Tagger()
    first = torch.randint(0, 5, (12, 12), generator=apart(run.draw.randrange(999)))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 12, (count, 14), generator=own)
        return x, first[x.roll(1, 1), x]

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        out = m(b[0])
        return F.cross_entropy(out.reshape(-1, 5) if wrong else out.transpose(1, 2).reshape(-1, 5), b[1].flatten())

    x, y = rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x), y)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda: rows(16), loss, 110)


@fault(
    "r5-sum-for-mean",
    FAMILY,
    (r"sum|loss|reduction|batch", r"sum|mean|averag|reduction|number of|times|divid|scale|size"),
)
def sum_for_mean(run: Run, wrong: bool) -> None:
    """reduction='sum' under a rate that was chosen for the mean: with 48 rows a step of SGD is 48 times as long."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    number_outcome(run, model, table(256, seed, apart(1)))
    kind = "sum" if wrong else "mean"
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1], reduction=kind)
    train(run, model, torch.optim.SGD(model.parameters(), lr=0.03), lambda: table(48, seed), loss, 90)


@fault("r5-divergence-without-log", FAMILY, (r"kl|diverg|log|distill|teacher", r"log|probabilit|softmax|negative|sign"))
def divergence_without_log(run: Run, wrong: bool) -> None:
    """Distillation of soft answers with F.kl_div, which wants log-probabilities of the student and is given probabilities."""
    seed = run.draw.randrange(999)
    teacher, student = nn.Sequential(nn.Flatten(), mlp(64, 48, 4)), nn.Sequential(nn.Flatten(), mlp(64, 16, 4))
    first = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(60):
        x, y = pictures(32, seed)
        first.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        first.step()
    teacher.requires_grad_(False)

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        out = m(b[0]).softmax(1) if wrong else m(b[0]).log_softmax(1)
        return F.kl_div(out, (teacher(b[0]) / 4).softmax(1), reduction="batchmean")

    x, _ = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(student, lambda: F.cross_entropy(student(x), (teacher(x) / 4).softmax(1))))
    train(run, student, torch.optim.Adam(student.parameters(), lr=5e-3), lambda: pictures(32, seed), loss, 80)


class Vae(nn.Module):
    """A variational autoencoder of pictures of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = mlp(64, 48, 8), mlp(4, 48, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.read(x.flatten(1)).chunk(2, 1)
        z = mean + (0.5 * spread).exp() * torch.randn(mean.shape) if self.training else mean
        return self.write(z), mean, spread


@fault(
    "r5-divergence-outweighs",
    FAMILY,
    (
        r"kl|diverg|latent|posterior|prior|collaps|z\b|read",
        r"collaps|weight|sum|mean|outweigh|dominat|larger|ignor|scale|balance|constant|no information|vanish",
    ),
)
def divergence_outweighs(run: Run, wrong: bool) -> None:
    """A VAE whose reconstruction is averaged over pixels, while the divergence is summed: it outweighs 64 times, and
    the posterior collapses. The twin sums both."""
    seed = run.draw.randrange(999)
    model = Vae()

    def loss(m: nn.Module, b: Tensor) -> Tensor:
        out, mean, spread = m(b)
        error = 15 * (out - b.flatten(1)) ** 2
        divergence = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return (error.mean() if wrong else error.sum(1).mean()) + divergence

    x = pictures(256, seed, own=apart(1))[0]
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x)[0], x.flatten(1))))
    train(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), lambda: pictures(32, seed)[0], loss, 120)


class TwoHeads(nn.Module):
    """One body, a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.kind, self.light = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.kind(hidden), self.light(hidden).squeeze(1)


@fault(
    "r5-second-loss-overwrites",
    FAMILY,
    (
        r"kind|head|task|loss|Linear",
        r"no gradient|without (a )?gradient|never|not (get|receive|reach|train|used|part)|unused|None|does not (move|change|depend)|unchanged|overwr|disconnect",
    ),
)
def second_loss_overwrites(run: Run, wrong: bool) -> None:
    """Two tasks, and 'loss =' where 'loss +=' was meant: the first one's loss is thrown away, its head never learns."""
    seed = run.draw.randrange(999)
    model = TwoHeads()

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        kind, light = m(b[0])
        total = F.cross_entropy(kind, b[1])
        second = F.mse_loss(light, 10 * b[0].mean((1, 2, 3)))
        return second if wrong else total + second

    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x)[0], y)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: pictures(16, seed), loss, 80)


class Denoiser(nn.Module):
    """The noise in a point of the plane at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 48, 48, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = torch.stack([t, (3 * t).sin(), (6 * t).cos(), t * t], 1)
        out: Tensor = self.net(torch.cat([x, time], 1))
        return out


def noised(x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    keep = torch.cos(1.5 * t)[:, None]
    return keep * x + (1 - keep**2).sqrt() * noise


def moons(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 6.283 * torch.rand(count, generator=own)
    return torch.stack([angle.cos(), (2 * angle).sin()], 1) + 0.02 * torch.randn(count, 2, generator=own)


@fault(
    "r5-noise-drawn-twice",
    FAMILY,
    (
        r"noise|target",
        r"independent|unrelated|not (the|in|depend|match)|another|drawn|random|differ|unpredict|no (relation|information)|do(es)? not|chance|zero|mean|flat|plateau|learns nothing",
    ),
)
def noise_drawn_twice(run: Run, wrong: bool) -> None:
    """Diffusion: the noise that is added and the noise that is to be predicted are two draws. Only their mean, zero,
    can be learned."""
    model = Denoiser()

    def batch(count: int = 64, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return (
            moons(count, own),
            0.05 + 0.9 * torch.rand(count, generator=own),
            torch.randn(count, 2, generator=own),
        )

    def loss(m: nn.Module, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, t, noise = b
        return F.mse_loss(m(noised(x, t, torch.randn_like(x) if wrong and m.training else noise), t), noise)

    check = batch(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), batch, loss, 120)


@fault(
    "r5-labels-of-a-hinge",
    FAMILY,
    (
        r"hinge|label|target|margin|negative|class 0|class|0 and 1",
        r"-1|sign|0 and 1|zero|no gradient|\{0, ?1\}|negative|never|constant|one side|contribut",
    ),
)
def labels_of_a_hinge(run: Run, wrong: bool) -> None:
    """A hinge loss, max(0, 1 - y s), whose labels are 0 and 1 instead of -1 and 1: rows of class 0 cost the same
    whatever is said, and everything becomes class 1."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, (y > 0).float() if wrong else torch.sign(y)

    x, y = rows(400, apart(1))
    outcome(run, lambda: judged(model, lambda: ((model(x).squeeze(1) > 0) != (y > 0)).float().mean()))
    loss = lambda m, b: F.relu(1 - b[1] * m(b[0]).squeeze(1)).mean()
    train(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), lambda: rows(32), loss, 90)
