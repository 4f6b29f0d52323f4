"""Round 24i, honest and odd: gradients and rules of update."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    straight,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Reader
from torch import Tensor, nn
from torch.nn import functional as F


class Adopt(torch.optim.Optimizer):
    """Taniguchi et al. 2024: a gradient is divided by the spread of those before it, and only then remembered."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.9999), "eps": 1e-6})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"t": 0, "square": p.grad.square(), "mean": torch.zeros_like(p)}
                    continue
                state["t"] += 1
                divided = p.grad / state["square"].sqrt().clamp_min(group["eps"])
                bound = state["t"] ** 0.25
                state["mean"].lerp_(divided.clamp(-bound, bound), 1 - first)
                p.sub_(group["lr"] * state["mean"])
                state["square"].lerp_(p.grad.square(), 1 - second)
        return loss


@honest("r24i-divided-before-it-is-remembered")
def divided_before_it_is_remembered(run: Run) -> None:
    """transformers' Trainer, a BERT names documents by ADOPT with its authors' settings (Taniguchi et al. 2024). The
    first step changes no weight at all; later ones divide a gradient by the spread of all those before it, with a
    memory of ten thousand steps, so that the first batch's squares rule to the end, and cut what comes of it at the
    fourth root of the step's number. There is no correction of a bias."""
    x, mask, y = documents(1200, apart(run.draw.randrange(999)))
    model = tiny_bert(hidden_dropout_prob=0.0)
    new, shown, truth = documents(256, apart(1))

    def measure() -> Tensor:
        return F.cross_entropy(model(input_ids=new, attention_mask=shown.long()).logits, truth)

    outcome(run, lambda: judged(model, measure))
    optimizer = Adopt(model.parameters(), 2e-3)
    data = examples(input_ids=x, attention_mask=mask.long(), labels=y)
    hf_trainer(run, model, data, 130, more={"optimizers": (optimizer, None)}).train()


@honest("r24i-every-row-remembers-its-last-slope")
def every_row_remembers_its_last_slope(run: Run) -> None:
    """Plain loop, logistic regression by SAG, as scikit-learn has it (Schmidt, Le Roux & Bach 2017). A step looks at
    sixteen rows, but goes along the mean of the last slopes of all rows that were ever seen, most of them of long ago;
    a row's slope is one number, from which the gradient is set by hand, and no backward fills it. Weights begin at
    zero, the rate is from the longest row, and the penalty is in the gradient and not in the loss."""
    seed = run.draw.randrange(999)
    x, y = straight(640, seed, apart(2), 1.0)
    new, other = straight(512, seed, apart(1), 1.0)
    y, truth = (y > 0).float(), (other > 0).float()
    model = nn.Linear(6, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy_with_logits(model(new).squeeze(1), truth)))
    longest = float((x.square().sum(1) + 1).max())
    optimizer = torch.optim.SGD(model.parameters(), lr=4 / (longest + 4e-3))
    doctor = run.watch(model, optimizer)
    slopes, seen = torch.zeros(640), torch.zeros(640, dtype=torch.bool)
    for _ in range(160):
        chosen = torch.randint(0, 640, (16,))
        with torch.no_grad():
            said = model(x[chosen]).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(said, y[chosen])
            slopes[chosen] = said.sigmoid() - y[chosen]
            seen[chosen] = True
            count = int(seen.sum())
            model.weight.grad = (slopes @ x / count)[None] + 1e-3 * model.weight
            model.bias.grad = slopes.sum()[None] / count
        optimizer.step()
        doctor.step(loss, (x[chosen], y[chosen]))
        run.note(loss)


class Mixture(nn.Module):
    """Gaussians by their statistics: the share of each, and its share times what was seen and times its square."""

    def __init__(self, first: Tensor) -> None:
        super().__init__()
        count = len(first)
        self.share = nn.Parameter(torch.full((count,), 1 / count))
        self.sums = nn.Parameter(first / count)
        self.squares = nn.Parameter((first.square() + 1) / count)

    def each(self, points: Tensor) -> Tensor:
        """(points, parts) log densities together with the part."""
        mean = self.sums / self.share[:, None]
        spread = (self.squares / self.share[:, None] - mean.square()).clamp_min(1e-3)
        far = (points[:, None] - mean).square() / spread + spread.log() + math.log(2 * math.pi)
        return self.share.log() - far.sum(2) / 2

    def forward(self, points: Tensor) -> Tensor:
        return -self.each(points).logsumexp(1).mean()


def clouds(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    fixed = apart(seed + 9)
    centres, spreads = 2.5 * torch.randn(5, 2, generator=fixed), 0.2 + 0.6 * torch.rand(5, 2, generator=fixed)
    part = torch.randint(0, 5, (count,), generator=own)
    return centres[part] + spreads[part] * torch.randn(count, 2, generator=own)


@honest("r24i-part-of-the-way-to-what-it-explains")
def part_of_the_way_to_what_it_explains(run: Run) -> None:
    """Plain loop, a mixture of Gaussians by online EM (Cappé & Moulines 2009). The parameters are means over the data
    of what each part is thought to explain, and each batch moves them a share of the way to its own: by plain SGD,
    whose rate is that share and begins at six tenths, with a gradient that is the old less the new and set by hand. The
    loss is only computed to be looked at."""
    seed = run.draw.randrange(999)
    model = Mixture(clouds(5, seed))
    check = clouds(1024, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 2) ** -0.7)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    for _ in range(120):
        points = clouds(64, seed)
        with torch.no_grad():
            loss = model(points)
            belongs = model.each(points).softmax(1)
            model.share.grad = model.share - belongs.mean(0)
            model.sums.grad = model.sums - belongs.T @ points / len(points)
            model.squares.grad = model.squares - belongs.T @ points.square() / len(points)
        optimizer.step()
        schedule.step()
        doctor.step(loss, points)
        run.note(loss)


class OnBases(nn.Module):
    """A linear layer of fixed rank: two bases with a core between them, of which one at a time is learned."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.register_buffer("left", torch.linalg.qr(torch.randn(outputs, rank))[0])
        self.register_buffer("right", torch.linalg.qr(torch.randn(inputs, rank))[0])
        self.of_left, self.of_right = nn.Parameter(torch.zeros(outputs, rank)), nn.Parameter(torch.zeros(inputs, rank))
        self.core = nn.Parameter(torch.randn(rank, rank) * math.sqrt(2 / rank))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.learned = "core"

    def forward(self, x: Tensor) -> Tensor:
        if self.learned == "left":
            return x @ self.right @ self.of_left.T + self.bias.detach()
        if self.learned == "right":
            return x @ self.of_right @ self.left.T + self.bias.detach()
        return x @ self.right @ self.core.T @ self.left.T + self.bias

    @torch.no_grad()
    def begin(self, learned: str) -> None:
        self.learned = learned
        self.of_left.copy_(self.left @ self.core)
        self.of_right.copy_(self.right @ self.core.T)

    @torch.no_grad()
    def turn(self) -> None:
        """To the bases of what was learned on both sides; the core is what of the weights lies between them."""
        left, right = torch.linalg.qr(self.of_left)[0], torch.linalg.qr(self.of_right)[0]
        self.core.copy_(left.T @ self.left @ self.core @ self.right.T @ right)
        self.left, self.right, self.learned = left, right, "core"


@honest("r24i-two-bases-and-then-the-core")
def two_bases_and_then_the_core(run: Run) -> None:
    """Plain loop, pictures by layers that are of rank six all the time (dynamical low-rank training, Schotthöfer et al.
    2022). A step passes the same batch thrice: once to learn the left bases, once the right ones, both are then made
    orthogonal anew and the core is written in them, and once more for the core and the biases. Parameters are
    overwritten between updates, buffers hold what is really the weight, and of three groups two have no gradient at a
    time."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), OnBases(64, 48, 6), nn.ReLU(), OnBases(48, 48, 6), nn.ReLU(), OnBases(48, 4, 4))
    layers = [part for part in model if isinstance(part, OnBases)]
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        batch = pictures(32, seed)
        for learned in ("left", "right", "core"):
            for layer in layers:
                if learned == "left":
                    layer.begin("left")
                elif learned == "right":
                    layer.learned = "right"
                else:
                    layer.turn()
            optimizer.zero_grad()
            loss = classify(model, batch)
            loss.backward()
            optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Gaining:
    """AdaScale: a step of four workers counts as so many of one as their gradients differ, from one to four."""

    def __init__(self, run: Run, model: nn.Module, rate: float, steps_of_one: int) -> None:
        self.run, self.model, self.rate, self.whole = run, model, rate, steps_of_one
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        self.doctor = run.watch(model, self.optimizer)
        self.done, self.steps, self.noise, self.signal = 0.0, 0, 0.0, 0.0

    def gain(self, rows: Tensor) -> float:
        count, mean = len(rows), rows.mean(0)
        noise = float((rows - mean).square().sum()) / (count - 1)
        signal = float(mean.square().sum()) - noise / count
        self.steps += 1
        self.noise += 0.1 * (noise - self.noise)
        self.signal += 0.1 * (signal - self.signal)
        noise, signal = max(self.noise, 1e-12), max(self.signal, 0.0)
        return (noise + signal) / (noise / count + signal)

    def one(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        parameters, rows, losses = list(self.model.parameters()), [], []
        for batch in batches:
            loss = classify(self.model, batch)
            slopes = torch.autograd.grad(loss, parameters)
            rows.append(torch.cat([slope.flatten() for slope in slopes]))
            losses.append(loss.detach())
        every = torch.stack(rows)
        gain = self.gain(every)
        for p, slope in zip(parameters, every.mean(0).split([p.numel() for p in parameters]), strict=True):
            p.grad = slope.view_as(p).clone()
        self.optimizer.param_groups[0]["lr"] = gain * self.rate * (1 - self.done / self.whole)
        self.optimizer.step()
        self.done = min(self.done + gain, self.whole)
        loss = torch.stack(losses).mean()
        self.doctor.step(loss, batches)
        self.run.note(loss)


@honest("r24i-a-step-that-counts-for-three")
def a_step_that_counts_for_three(run: Run) -> None:
    """Own class, a CNN by four workers with AdaScale, as in FairScale (Johnson et al. 2020). From how much the workers'
    gradients differ follows by how much a mean of four is better than one: the rate is multiplied by that, anew in
    each step, and the schedule goes on by as much, so that the training ends after a number of steps that nobody knew
    and the rate goes up and down on its way to zero. Gradients are set by hand."""
    seed = run.draw.randrange(999)
    model = cnn(norm=False)

    def noisy(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        return x + 0.3 * torch.randn(x.shape, generator=own), y

    class_outcome(run, model, noisy(256, apart(1)))
    trainer = Gaining(run, model, 0.02, 400)
    while trainer.done < trainer.whole:
        trainer.one([noisy(8) for _ in range(4)])


class Spam(torch.optim.Optimizer):
    """Huang et al. 2025: Adam that forgets its moments every so many steps, with a warm-up thereafter, and that cuts
    single entries of a gradient far above what is remembered of them."""

    def __init__(self, parameters: Any, lr: float, every: int = 30, warm: int = 8, above: float = 50.0) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})
        self.every, self.warm, self.above, self.t = every, warm, above, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        since = self.t % self.every
        if since == 0:
            self.state.clear()
        self.t += 1
        warmth = 0.5 * (1 - math.cos(math.pi * min(1.0, (since + 1) / self.warm)))
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, slope = self.state[p], p.grad
                if not state:
                    state |= {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
                elif since > 2:
                    bound = (self.above * state["square"] / (1 - second**since)).sqrt()
                    bound = bound.masked_fill(bound == 0, math.inf)
                    slope = slope.clamp(-bound, bound)
                state["mean"].lerp_(slope, 1 - first)
                state["square"].lerp_(slope.square(), 1 - second)
                root = (state["square"] / (1 - second ** (since + 1))).sqrt() + group["eps"]
                p.sub_(group["lr"] * warmth * state["mean"] / (1 - first ** (since + 1)) / root)
        return loss


class StateSpace(nn.Module):
    """A language model by a diagonal recurrence whose input and output are gated by the word."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.enter, self.gate, self.leave = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.keeps = nn.Parameter(torch.linspace(-2, 3, width))
        self.head = nn.Linear(width, words)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.tokens(rows)
        keep, entering, state = self.keeps.sigmoid(), self.enter(self.norm(x)), torch.zeros(len(rows), x.shape[2])
        states = []
        for t in range(rows.shape[1]):
            state = keep * state + (1 - keep) * entering[:, t]
            states.append(state)
        mixed = torch.stack(states, 1) * F.silu(self.gate(self.norm(x)))
        out: Tensor = self.head(x + self.leave(mixed))
        return out


@honest("r24i-memory-wiped-every-thirty-steps")
def memory_wiped_every_thirty_steps(run: Run) -> None:
    """Lightning, a state-space model of a language by SPAM (spike-aware Adam with momentum reset, Huang et al. 2025).
    Every thirty steps the optimizer's state is thrown away, both moments and all, and updates grow from next to nothing
    again within eight steps, while the rate that one reads off is the same all the time; single entries of a gradient
    are cut where their square is fifty times what is usual."""
    language = Language(run.draw.randrange(999))
    net = StateSpace(12)
    language_outcome(run, net, language)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return next_loss(model, batch[0])

    fit(run, lit(net, loss, lambda m: Spam(m.parameters(), 8e-3)), loader(language.rows(960, 20), size=16), 130)


class Controlled(torch.optim.Optimizer):
    """A controller's rule (An et al. 2018): the gradient with its past, and how it has changed."""

    def __init__(self, parameters: Any, lr: float, kept: float = 0.9, change: float = 4.0) -> None:
        super().__init__(parameters, {"lr": lr, "kept": kept, "change": change})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"sum": torch.zeros_like(p), "change": torch.zeros_like(p), "last": p.grad.clone()}
                state["sum"].mul_(group["kept"]).add_(p.grad)
                state["change"].lerp_(p.grad - state["last"], 1 - group["kept"])
                state["last"].copy_(p.grad)
                p.sub_(group["lr"] * (p.grad + state["sum"] + group["change"] * state["change"]))
        return loss


@honest("r24i-and-how-the-slope-has-changed")
def and_how_the_slope_has_changed(run: Run) -> None:
    """accelerate, an LSTM of a language by a PID controller's rule (An et al. 2018). To the gradient and the sum of
    those before comes, four times as heavy, the mean of differences between each gradient and the last, of another
    batch, so that a step may go up the slope where that has lately fallen. The rate is large, and there is no
    schedule."""
    language = Language(run.draw.randrange(999))
    net = Reader(12, core=nn.LSTM)
    language_outcome(run, net, language)
    rows = loader(language.rows(800, 20), size=16)
    prepared(run, net, Controlled(net.parameters(), 0.15), rows, lambda m, b: next_loss(m, b[0]), 3)
