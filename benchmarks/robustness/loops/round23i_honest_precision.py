"""Round 23i, honest and odd: precision and numerics."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    judged,
    language_outcome,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import taught
from torch import Tensor, nn
from torch.nn import functional as F

FOUR_BITS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def in_four_bits(x: Tensor) -> Tensor:
    """Blocks of sixteen along the last axis share a power of two; each number is one of sixteen, up or down by chance.
    Everything is three quarters of what it was, so that nothing is cut off."""
    blocks = x.reshape(-1, 16)
    scale = torch.exp2(blocks.abs().amax(1, keepdim=True).clamp_min(1e-30).log2().floor() - 2)
    size = 0.75 * blocks.abs() / scale
    above = torch.searchsorted(FOUR_BITS, size).clamp(1, 7)
    low, high = FOUR_BITS[above - 1], FOUR_BITS[above]
    drawn = torch.where(torch.rand_like(size) < (size - low) / (high - low), high, low)
    return (blocks.sign() * drawn * scale).view(x.shape)


def four_bit_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, of which both were turned by one random Hadamard matrix of sixteen columns before they were rounded."""
    turn = torch.ones(1, 1)
    for _ in range(4):
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)])
    turn = turn / 4 * (2.0 * torch.randint(0, 2, (16, 1)) - 1)
    a, b = ((m.reshape(-1, 16) @ turn).view(m.shape) for m in (a, b))
    return in_four_bits(a) @ in_four_bits(b).T * (16 / 9)


class RoundedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        slope = given[0].flatten(0, -2)
        to_x = four_bit_product(slope, weight.T).view(x.shape)
        return to_x, four_bit_product(slope.T, x.flatten(0, -2).T)


class FourBitLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = RoundedBackward.apply(x, self.weight) + self.bias
        return out


@honest("r23i-turned-before-it-is-rounded")
def turned_before_it_is_rounded(run: Run) -> None:
    """Plain loop, a GPT whose products on the way back are of numbers of four bits (Tseng et al. 2025, MXFP4).
    Sixteen numbers share a power of two; both sides are turned by a random Hadamard matrix first and rounded up or
    down by chance, so that gradients are right on the mean, noisy, and not the same for the same batch twice."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for block in model.blocks:
        for parent, name in ((block.attention, "qkv"), (block.attention, "out"), (block.feed, "0"), (block.feed, "2")):
            old = getattr(parent, name)
            new = FourBitLinear(old.in_features, old.out_features)
            new.load_state_dict(old.state_dict())
            setattr(parent, name, new)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    doctor = run.watch(model, optimizer)
    for _ in range(90):
        rows = language.rows(16, 25)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


def to_powers(w: Tensor, largest: float, levels: int = 3) -> Tensor:
    """Each weight as zero or as plus or minus one of a few powers of two."""
    top = math.floor(math.log2(4 * largest / 3))
    powers = torch.cat([torch.zeros(1), torch.exp2(torch.arange(top - levels + 1, top + 1).float())])
    nearest = (w.abs()[..., None] - powers).abs().argmin(-1)
    return w.sign() * powers[nearest]


def shift_only(model: nn.Module) -> nn.Module:
    """A copy all of whose matrices and filters are powers of two."""
    out = copy.deepcopy(model)
    with torch.no_grad():
        for p in out.parameters():
            if p.dim() > 1:
                p.copy_(to_powers(p, float(p.abs().max())))
    return out


@honest("r23i-powers-of-two-the-largest-first")
def powers_of_two_the_largest_first(run: Run) -> None:
    """Plain loop, a trained network of convolutions becomes one of shifts (Zhou et al. 2017, incremental network
    quantisation). The larger half of the weights is set to powers of two and stands still while the others make up for
    it, then three quarters, then seven eighths: the loss is about level, and ever more of the gradients is zeroed."""
    seed = run.draw.randrange(999)
    model = cnn()
    taught(model, lambda: pictures(32, seed), classify, 80)
    check = pictures(256, seed, own=apart(1))

    def rounded() -> Tensor:
        copied = shift_only(model).eval()
        return classify(copied, check)

    outcome(run, lambda: judged(model, rounded))
    largest = {name: float(p.abs().max()) for name, p in model.named_parameters()}
    fixed = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in model.named_parameters() if p.dim() > 1}
    doctor: Any = None
    for share in (0.5, 0.75, 0.875):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in fixed:
                    fixed[name] = p.abs().masked_fill(fixed[name], torch.inf) >= p.abs().flatten().quantile(1 - share)
                    p.copy_(torch.where(fixed[name], to_powers(p, largest[name]), p))
        doctor = run.watch(model, optimizer)
        for _ in range(40):
            batch = pictures(32, seed)
            optimizer.zero_grad()
            loss = classify(model, batch)
            loss.backward()
            for name, p in model.named_parameters():
                if name in fixed and p.grad is not None:
                    p.grad.masked_fill_(fixed[name], 0.0)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
        doctor.close()


class DeepKernel(nn.Module):
    """A network in single precision, and in double precision a Gaussian process on its two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(mlp(6, 32, 32, 2, act=nn.Tanh), nn.BatchNorm1d(2, affine=False))
        self.length = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.size = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.noise = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))
        self.seen: tuple[Tensor, Tensor] | None = None

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a / self.length.exp(), b / self.length.exp()
        return self.size.exp() * (-(a[:, None] - b[None]).square().sum(2) / 2).exp()

    def factor(self, a: Tensor) -> Tensor:
        noise = (self.noise.exp() + 1e-6) * torch.eye(len(a), dtype=torch.float64)
        return torch.linalg.cholesky(self.kernel(a, a) + noise)

    def unlikely(self, x: Tensor, y: Tensor) -> Tensor:
        """Minus the logarithm of the marginal likelihood, for each row."""
        factor = self.factor(self.features(x).double())
        solved = torch.linalg.solve_triangular(factor, y.double()[:, None], upper=False)
        return solved.square().mean() / 2 + factor.diagonal().log().mean() + math.log(2 * math.pi) / 2

    def forward(self, x: Tensor) -> Tensor:
        assert self.seen is not None
        old, new = self.features(self.seen[0]).double(), self.features(x).double()
        weights = torch.cholesky_solve(self.seen[1].double()[:, None], self.factor(old))
        return (self.kernel(new, old) @ weights).float()


@honest("r23i-single-below-and-double-above")
def single_below_and_double_above(run: Run) -> None:
    """Plain loop, deep kernel learning (Wilson et al. 2016; an example of GPyTorch's) on 150 rows. Features are in
    single precision, three parameters, the Cholesky factor, and the loss in double; all rows are one batch, each step
    is of the same rows, rows cannot be told apart in the loss, and it goes below zero as the noise gets small."""
    own = apart(run.draw.randrange(999))
    x, y = table(150, own=own)
    y = (y - y.mean()) / y.std()
    model = DeepKernel()
    model.seen = (x, y)
    hold = table(300, own=apart(1))
    number_outcome(run, model, (hold[0], (hold[1] - hold[1].mean()) / hold[1].std()))
    kernel = [model.length, model.size, model.noise]
    groups = [{"params": model.features.parameters(), "weight_decay": 1e-4}, {"params": kernel, "lr": 3e-2}]
    optimizer = torch.optim.Adam(groups, lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        optimizer.zero_grad()
        loss = model.unlikely(x, y)
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class LogarithmicUnit(nn.Module):
    """A minimal gated unit whose states are kept as logarithms, all times at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.value, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate(x), self.value(x)
        log_value = torch.where(value >= 0, (value.relu() + 0.5).log(), F.logsigmoid(value))
        log_keep = -F.softplus(gate)
        total = F.pad(log_keep.cumsum(1), (0, 0, 1, 0))
        first = torch.full_like(x[:, :1], math.log(0.5))
        steps = torch.cat([first, F.logsigmoid(gate) + log_value], 1)
        states = (total + (steps - total).logcumsumexp(1)).exp()
        out: Tensor = self.out(states[:, 1:])
        return out


class Recurrent(nn.Module):
    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.units = nn.ModuleList(LogarithmicUnit(width) for _ in range(2))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for k in range(2):
            x = x + self.units[k](self.norms[2 * k](x))
            x = x + self.feeds[k](self.norms[2 * k + 1](x))
        out: Tensor = self.head(x)
        return out


@honest("r23i-states-as-logarithms-all-at-once")
def states_as_logarithms_all_at_once(run: Run) -> None:
    """accelerate, a language model of minimal gated units (Feng et al. 2024, minGRU) by Heinsen's scan (2023). All
    states are computed at once as logarithms: a running sum of logarithms of gates is taken off and put on again around
    a running log-sum-exp, and states are positive without exception."""
    language = Language(run.draw.randrange(999))
    net = Recurrent(12)
    language_outcome(run, net, language)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    rows = language.rows(480, 25, apart(run.draw.randrange(999)))
    prepared(run, net, optimizer, loader(rows, size=16), lambda model, batch: next_loss(model, batch[0]), 4)


class SumsBeside:
    """Weights and slopes in bfloat16, and beside each weight a sum of slopes and a master of it in single precision."""

    def __init__(self, run: Run, model: nn.Module, rate: float) -> None:
        self.run, self.model = run, model.bfloat16()
        self.weights = list(model.parameters())
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.weights]
        self.sums = [torch.zeros_like(m) for m in self.masters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=rate, betas=(0.9, 0.95))
        for p, total in zip(self.weights, self.sums, strict=True):
            p.register_post_accumulate_grad_hook(lambda q, total=total: self.taken(q, total))
        self.doctor = run.watch(self.model, self.optimizer)

    def taken(self, weight: Tensor, total: Tensor) -> None:
        assert weight.grad is not None
        total.add_(weight.grad.float())
        weight.grad = None

    def step(self, pieces: list[Tensor]) -> None:
        seen = 0.0
        for rows in pieces:
            loss = next_loss_in_single(self.model, rows) / len(pieces)
            loss.backward()
            seen += float(loss.detach())
        for master, total in zip(self.masters, self.sums, strict=True):
            master.grad = total
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for p, master in zip(self.weights, self.masters, strict=True):
                p.copy_(master)
        self.doctor.step(seen, pieces)
        self.run.note(seen)
        for total in self.sums:
            total.zero_()


def next_loss_in_single(model: nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


@honest("r23i-slopes-summed-beside-the-weights")
def slopes_summed_beside_the_weights(run: Run) -> None:
    """A class of its own, a Llama in bfloat16 in the manner of Megatron-LM (Narayanan et al. 2021, its main_grad). A
    hook at each weight adds its slope to a sum in single precision and throws it away at once, so that no weight has
    a gradient after a backward pass; the optimizer holds masters that are no part of the model, and four pieces make
    one step."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama(12)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: next_loss_in_single(model, check)))
    trainer = SumsBeside(run, model, 5e-3)
    for _ in range(60):
        trainer.step([language.rows(6, 24) for _ in range(4)])
