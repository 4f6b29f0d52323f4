"""Round 24i, honest and odd: losses and objectives."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Language,
    apart,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_parts import Graphs, two_views
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F

HEIGHT = 10.0  # of the right class, in the square loss


@honest("r24i-the-right-letter-is-ten")
def the_right_letter_is_ten(run: Run) -> None:
    """transformers' Trainer, a small T5 that enciphers words, with the square loss in the place of cross-entropy, which
    does as well on most tasks of language (Hui & Belkin 2021). There is no softmax and no logarithm: the right letter's
    output is to be ten and all others zero, by the Trainer's `compute_loss_func`, so that the loss begins near the
    square of ten over the number of letters and what the model returns as its loss is not used."""
    from transformers import T5Config, T5ForConditionalGeneration

    own = apart(run.draw.randrange(999))
    key = torch.randperm(12, generator=own) + 2
    source = torch.randint(2, 14, (1024, 5), generator=own)
    target = key[source - 2]
    settings: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    settings |= {"vocab_size": 14, "decoder_start_token_id": 0, "dropout_rate": 0.0, "tie_word_embeddings": False}
    settings |= {"initializer_factor": 0.3}
    model = T5ForConditionalGeneration(T5Config(**settings))
    asked, answer = source[:128], target[:128]

    def wrong() -> Tensor:
        said = model(input_ids=asked, labels=answer).logits.argmax(2)
        return (said != answer).float().mean()

    outcome(run, lambda: judged(model, wrong))

    def square(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return (outputs.logits - HEIGHT * F.one_hot(labels, 14)).square().mean()

    shown = F.pad(target[:, :-1], (1, 0))
    data = examples(input_ids=source[128:], decoder_input_ids=shown[128:], labels=target[128:])
    hf_trainer(run, model, data, 150, more={"compute_loss_func": square}, learning_rate=1e-2).train()


@honest("r24i-squares-of-products-for-strangers")
def squares_of_products_for_strangers(run: Run) -> None:
    """accelerate, graphs without labels by the spectral contrastive loss (HaoChen et al. 2021). There is neither a
    temperature nor a softmax: minus twice the product of two views of a graph and the squared product of views of
    different graphs. It begins near a hundred, as at the start all vectors are nearly the same, and goes below zero,
    where its floor is minus the number of directions and not zero."""
    net = Graphs()

    def products(model: nn.Module, batch: Any) -> Tensor:
        a, b = math.sqrt(12) * model(*batch[:2]), math.sqrt(12) * model(*batch[2:])
        return a @ b.T

    def spectral(model: nn.Module, batch: Any) -> Tensor:
        every = products(model, batch)
        others = every[~torch.eye(len(every), dtype=torch.bool)]
        return others.square().mean() - 2 * every.diagonal().mean()

    check = [part for view in two_views(256, apart(1), 0.9) for part in view]
    outcome(run, lambda: judged(net, lambda: spectral(net, check)))
    first, second = two_views(1280, apart(run.draw.randrange(999)), 0.9)
    prepared(run, net, adam(net, 2e-3), loader(*first, *second, size=64), spectral, 9)


def alike(x: Tensor, width: float) -> Tensor:
    """Gaussian kernel of all pairs of rows."""
    return (-(x[:, None] - x[None]).square().sum(2) / (2 * width**2)).exp()


def dependence(x: Tensor, y: Tensor) -> Tensor:
    """Hilbert and Schmidt's criterion of independence (Gretton et al. 2005): zero where y tells nothing of x."""
    n = len(x)
    centre = torch.eye(n) - 1 / n
    return (alike(x, 2.0) @ centre @ alike(y, 1.0) @ centre).trace() / (n - 1) ** 2


@honest("r24i-what-is-left-knows-nothing-of-the-row")
def what_is_left_knows_nothing_of_the_row(run: Run) -> None:
    """Lightning, a table whose new rows come from elsewhere, by independence of residuals (Greenfeld & Shalit 2020).
    The loss does not ask that a prediction be near its label but that what is left be independent of the row; a
    constant added to all predictions changes nothing, so that the last bias has no gradient to speak of and is set
    after the training, and the loss is some hundredths from the first step on."""
    seed = run.draw.randrange(999)
    x, y = table(640, seed, apart(2), 0.3)
    mean, spread = y.mean(), y.std()
    y = (y - mean) / spread
    own = apart(1)
    far = 1.5 * torch.randn(1024, 6, generator=own)
    w = torch.randn(6, generator=apart(seed + 5))
    truth = far @ w + torch.sin(2 * far[:, 0]) + far[:, 1] * far[:, 2]
    truth = (truth - mean) / spread
    net = mlp(6, 64, 64, 1)
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(far).squeeze(1), truth) / truth.var()))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        return dependence(rows, labels[:, None] - model(rows))

    fit(run, lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=3e-3)), loader(x, y, size=64), 200)
    with torch.no_grad():
        net[-1].bias += (y - net(x).squeeze(1)).mean()  # type: ignore[operator]


def speech(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 30, 5) features of voices and (count, 30, 2) how excited and how glad they are, as slow curves."""
    mix = torch.randn(2, 5, generator=apart(seed + 3))
    curves = torch.zeros(count, 30, 2)
    level = torch.randn(count, 2, generator=own)
    for t in range(30):
        level = 0.9 * level + 0.44 * torch.randn(count, 2, generator=own)
        curves[:, t] = level
    features = (curves @ mix).tanh() + 0.5 * torch.randn(count, 30, 5, generator=own)
    return features, 0.3 * curves + torch.tensor([0.1, -0.2])


class Listening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(5, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.core(features)[0]).tanh()


def disagreement(said: Tensor, truth: Tensor) -> Tensor:
    """One less the concordance correlation of two curves (Lin 1989), the mean of both columns."""
    said, truth = said.flatten(0, 1), truth.flatten(0, 1)
    a, b = said.mean(0), truth.mean(0)
    together = ((said - a) * (truth - b)).mean(0)
    spread = said.var(0, correction=0) + truth.var(0, correction=0)
    return (1 - 2 * together / (spread + (a - b).square())).mean()


class MoodTrainer:
    """The usual training, as a class of the user's own."""

    def __init__(self, run: Run, model: nn.Module, rate: float) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=rate)
        self.doctor = run.watch(model, self.optimizer)

    def one(self, batch: tuple[Tensor, Tensor]) -> None:
        features, truth = batch
        self.model.train()
        loss = disagreement(self.model(features), truth)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.doctor.step(loss, batch)
        self.run.note(loss)


@honest("r24i-two-curves-that-agree")
def two_curves_that_agree(run: Run) -> None:
    """Own class, moods of voices by a GRU, with one less the concordance of two curves for a loss, as the emotion
    challenges are scored and trained (Trigeorgis et al. 2016). It is a number of the whole batch, no mean over frames
    or rows: mean and spread of what is said are compared with those of the labels, it begins a little below one and
    could be as large as two."""
    seed = run.draw.randrange(999)
    model = Listening()
    check = speech(128, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: disagreement(model(check[0]), check[1])))
    trainer = MoodTrainer(run, model, 2e-3)
    for _ in range(150):
        trainer.one(speech(16, seed))


class Scores(nn.Module):
    """Logarithms of how much likelier a row would be with another word at a hidden place (its id is `words`)."""

    def __init__(self, words: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words + 1, 32), nn.Embedding(length, 32)
        self.block, self.norm = Block(32, causal=False), nn.LayerNorm(32)
        self.head = nn.Linear(32, words)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: Tensor, noise: Tensor) -> Tensor:
        x = self.tokens(rows) + self.places(torch.arange(rows.shape[1]))
        out: Tensor = self.head(self.norm(self.block(x)))
        return out - noise.expm1().log()[:, None, None] - math.log(out.shape[2] - 1)


def score_entropy(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Lou, Meng & Ermon 2024, for words that are hidden; a time and a hidden copy for each row."""
    rows, hidden, time = batch
    noise, pace = -torch.log1p(-time), 1 / (1 - time)
    scores = model(hidden, noise)
    ratio = (1 / noise.expm1())[:, None]
    right = scores.gather(2, rows[..., None]).squeeze(2)
    each = scores.exp().sum(2) - ratio * right + ratio * (ratio.log() - 1)
    return (pace[:, None] * each * (hidden != rows)).sum(1).mean() / rows.shape[1]


@honest("r24i-how-much-likelier-with-another-word")
def how_much_likelier_with_another_word(run: Run) -> None:
    """Plain loop, discrete diffusion by score entropy (SEDD, Lou, Meng & Ermon 2024), an encoder. What the model says
    is no distribution over words but ratios of probabilities, positive numbers that need not sum to one, by the
    exponential without a softmax; their true size is from a thousandth to a thousand by the time of a row, which is put
    in by a logarithm behind the head, and a row weighs the more the later its time."""
    language = Language(run.draw.randrange(999))
    model = Scores(12, 16)

    def hidden(rows: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        time = (torch.rand(len(rows), generator=own) + torch.arange(len(rows))) / len(rows)
        time = 1e-3 + (1 - 2e-3) * time
        gone = torch.rand(rows.shape, generator=own) < time[:, None]
        return rows, rows.masked_fill(gone, 12), time

    check = hidden(language.rows(256, 16, apart(1)), apart(2))
    outcome(run, lambda: judged(model, lambda: score_entropy(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    train(run, model, optimizer, lambda: hidden(language.rows(32, 16)), score_entropy, 180, clip=1.0)


def noisier(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    x, y = pictures(count, seed, own=own)
    return x + 0.5 * torch.randn(x.shape, generator=own), y


class SetTrainer:
    """Conformal training: one half of a batch sets the threshold, the other is asked how many classes pass it."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.doctor = run.watch(model, self.optimizer)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        said = self.model(x).log_softmax(1)
        half = len(x) // 2
        threshold = said[:half].gather(1, y[:half, None]).quantile(0.1 * (1 + 1 / half))
        inside = ((said[half:] - threshold) / 0.5).sigmoid()
        right = F.one_hot(y[half:], 4).float()
        wanted = (right * (1 - inside) + (1 - right) * inside).sum(1)
        too_many = (inside.sum(1) - 1).relu()
        return (wanted + too_many).mean().log()

    def one(self, batch: tuple[Tensor, Tensor]) -> None:
        loss = self.loss(*batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.doctor.step(loss, batch)
        self.run.note(loss)


@honest("r24i-as-few-names-as-the-promise-allows")
def as_few_names_as_the_promise_allows(run: Run) -> None:
    """Own class, a CNN that answers with sets of classes (conformal training, Stutz et al. 2022). Half of the rows of
    each batch only set a threshold, by a quantile that has a gradient, and the loss is the logarithm of how many
    classes of the other half are above it and should not be: there is no cross-entropy, what is taught is how many
    answers are given, and zero is not the loss's floor."""
    seed = run.draw.randrange(999)
    model = cnn()
    known, new = noisier(512, seed, apart(1)), noisier(512, seed, apart(2))

    def size() -> Tensor:
        threshold = model(known[0]).log_softmax(1).gather(1, known[1][:, None]).quantile(0.1)
        return (model(new[0]).log_softmax(1) >= threshold).float().sum(1).mean()

    outcome(run, lambda: judged(model, size))
    trainer = SetTrainer(run, model)
    for _ in range(120):
        trainer.one(noisier(64, seed))


def folding(count: int, seed: int, own: torch.Generator) -> Tensor:
    """(count, 5) a molecule that is long in one of three forms and shakes fast meanwhile, as five distances."""
    stays = torch.rand(count, generator=own) < 0.97
    where = torch.randint(0, 3, (count,), generator=own).tolist()
    state, states = 0, []
    for stay, other in zip(stays.tolist(), where, strict=True):
        state = state if stay else other
        states.append(state)
    forms = torch.randn(3, 5, generator=apart(seed + 8))
    shaking = 0.8 * torch.randn(count, 5, generator=own)
    return (forms[torch.tensor(states)] + shaking).sinh() / 2


def inverse_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix + 1e-4 * torch.eye(len(matrix)))
    return vectors @ values.clamp_min(1e-4).rsqrt().diag() @ vectors.T


def minus_vamp(net: nn.Module, batch: Any) -> Tensor:
    """The squared singular values of the step from now to later, in the net's own coordinates, negated."""
    now, later = net(batch[0]).softmax(1), net(batch[1]).softmax(1)
    now, later = now - now.mean(0), later - later.mean(0)
    n = len(now) - 1
    step = inverse_root(now.T @ now / n) @ (now.T @ later / n) @ inverse_root(later.T @ later / n)
    return -1 - step.square().sum()


@honest("r24i-what-changes-most-slowly")
def what_changes_most_slowly(run: Run) -> None:
    """Lightning, the slow forms of a molecule by VAMPnets as in deeptime (Mardt et al. 2018). There are no labels and
    no term of a single row: the loss is minus a sum of squared correlations between now and later, through the inverse
    roots of covariances of a whole batch by eigenvalues. It begins below minus one, has a floor that nobody knows, and
    the softmax's outputs mean what they will."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(nn.BatchNorm1d(5), *mlp(5, 32, 32, 3, act=nn.ELU))
    path, check = folding(4004, seed, apart(2)), folding(4004, seed, apart(3))
    outcome(run, lambda: judged(net, lambda: minus_vamp(net, (check[:-4], check[4:]))))
    module = lit(net, minus_vamp, lambda m: torch.optim.Adam(m.parameters(), lr=2e-3))
    fit(run, module, loader(path[:-4], path[4:], size=400), 120)


def moved_for(x: Tensor, y: Tensor, blur: float = 0.1, turns: int = 20) -> Tensor:
    """What it costs to move points x to points y, blurred (Cuturi 2013), from its two potentials."""
    costs = (x[:, None] - y[None]).square().sum(2) / 2
    a, b = x.new_zeros(len(x)), x.new_zeros(len(y))
    for _ in range(turns):
        a = -blur * ((b[None] - costs) / blur - math.log(len(y))).logsumexp(1)
        b = -blur * ((a[:, None] - costs) / blur - math.log(len(x))).logsumexp(0)
    return a.mean() + b.mean()


def sinkhorn(x: Tensor, y: Tensor) -> Tensor:
    return moved_for(x, y) - moved_for(x, x) / 2 - moved_for(y, y) / 2


def crescents(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = math.pi * torch.rand(count, generator=own)
    upper = torch.rand(count, generator=own) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.05 * torch.randn(count, 2, generator=own)


@honest("r24i-less-what-each-pays-to-itself")
def less_what_each_pays_to_itself(run: Run) -> None:
    """Plain loop, a generator by the Sinkhorn divergence as in GeomLoss (Genevay et al. 2018, Feydy et al. 2019). No
    judge is trained and no point has a label: the price of moving a cloud onto another, after twenty turns of a loop
    through which the gradient goes, less half of what each cloud pays to be moved onto itself. Two of the three terms
    have a minus, one has no gradient at all, and the inputs are noise."""
    model = mlp(4, 48, 48, 2, act=nn.SiLU)
    check, noise = crescents(256, apart(1)), torch.randn(256, 4, generator=apart(2))
    outcome(run, lambda: judged(model, lambda: sinkhorn(model(noise), check)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return sinkhorn(model(batch[0]), batch[1])

    train(run, model, adam(model, 3e-3), lambda: (torch.randn(96, 4), crescents(96)), loss, 130)
