"""Round 24i, honest and odd: precision and numerics."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Patches, spots
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


def in_blocks(x: Tensor) -> Tensor:
    """Thirty-two neighbours of the last dimension share a power of two and have eight bits each (E4M3)."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    exponent = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-100).log2().floor() - 8
    small = (blocks / exponent.exp2()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (small.to(x.dtype) * exponent.exp2()).reshape(x.shape)


class BlockProduct(torch.autograd.Function):
    """All three products of a linear layer, each of numbers in blocks along the dimension that is summed."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return in_blocks(x) @ in_blocks(weight).T

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = context.saved_tensors
        of_rows = in_blocks(slope) @ in_blocks(weight.T).T
        of_weight = in_blocks(slope.T.contiguous()) @ in_blocks(x.T.contiguous()).T
        return of_rows, of_weight


class BlockLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = BlockProduct.apply(x.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], -1)


@honest("r24i-thirty-two-with-one-exponent")
def thirty_two_with_one_exponent(run: Run) -> None:
    """transformers' Trainer, a Llama in the MX format (Rouhani et al. 2023, torchao's `mx_formats`). The weights stay
    in single precision, but in every product of a block, on the way there and both on the way back, each thirty-two
    neighbours share a power of two and keep eight bits, by a backward of one's own; weights are rounded along another
    dimension on the way back than on the way there, so that the gradient is not quite that of the loss."""
    language = Language(run.draw.randrange(999), first=3)
    model = llama(vocab_size=16, num_hidden_layers=1, num_key_value_heads=4, pad_token_id=None)
    for parent in list(model.model.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Linear):
                new = BlockLinear(part.in_features, part.out_features, bias=False)
                new.load_state_dict(part.state_dict())
                setattr(parent, name, new)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(800, 24)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 130, learning_rate=1e-2).train()


class HalfAdam(torch.optim.Optimizer):
    """Adam in half precision as Björck et al. 2021 have it. The root of the second moment is kept, by `hypot`, as a
    square would be nothing; gradients stay multiplied by the loss's scale, which both moments carry and a step does
    not, as it divides one by the other."""

    def __init__(self, parameters: Any, lr: float, scale: float = 2.0**10) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-4})
        self.scale, self.good = scale, 0

    def rescale(self, by: float) -> None:
        self.scale *= by
        for state in self.state.values():
            state["mean"].mul_(by)
            state["root"].mul_(by)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        every = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not all(bool(p.grad.isfinite().all()) for p, _ in every):
            self.good = 0
            self.rescale(0.5)
            return
        for p, group in every:
            state = self.state[p]
            if not state:
                state |= {"t": 0, "mean": torch.zeros_like(p), "root": torch.zeros_like(p)}
            state["t"] += 1
            first, second = group["betas"]
            state["mean"].mul_(first).add_(p.grad, alpha=1 - first)
            state["root"] = torch.hypot(math.sqrt(second) * state["root"], math.sqrt(1 - second) * p.grad)
            root = state["root"] / math.sqrt(1 - second ** state["t"])
            share = state["mean"] / (1 - first ** state["t"]) / (root + group["eps"] * self.scale)
            p.sub_(group["lr"] * share)
        self.good += 1
        if self.good % 40 == 0 and self.scale < 2**14:
            self.rescale(2.0)


@honest("r24i-roots-of-squares-by-the-hypotenuse")
def roots_of_squares_by_the_hypotenuse(run: Run) -> None:
    """Plain loop, a table in half precision throughout, as it is done for agents (Björck et al. 2021): weights, slopes
    and both moments are float16, and there is no copy in single. The loss is scaled a thousandfold before the backward
    and gradients are never divided by that before the update, as both moments carry it; the second moment is kept as
    its root. The scale doubles now and then, by which moments are multiplied by hand, and would halve with a step
    left out."""
    seed = run.draw.randrange(999)
    x, y = table(1024, seed, apart(2))
    mean, spread = y.mean(), y.std()
    new, truth = table(512, seed, apart(1))
    x, y, new, truth = (part.half() for part in (x, (y - mean) / spread, new, (truth - mean) / spread))
    model = nn.Sequential(nn.Linear(6, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    model.half()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new).squeeze(1).float(), truth.float())))
    optimizer = HalfAdam(model.parameters(), 4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(180):
        chosen = torch.randint(0, 1024, (64,))
        batch = x[chosen], y[chosen]
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch[0]).squeeze(1), batch[1])
        (loss * optimizer.scale).backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class BehindASwitch:
    """Four workers whose gradients are added by a switch that knows whole numbers alone."""

    def __init__(self, run: Run, model: nn.Module, rate: float) -> None:
        self.run, self.model = run, model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        self.doctor = run.watch(model, self.optimizer)
        self.sent: list[list[Tensor]] = []

    def worker(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = classify(self.model, batch)
        self.sent.append(list(torch.autograd.grad(loss, list(self.model.parameters()))))
        return loss.detach()

    def switch(self) -> None:
        for p, *parts in zip(self.model.parameters(), *self.sent, strict=True):
            largest = float(torch.stack(parts).abs().max())
            exponent = math.floor(math.log2((2**31 - 1) / (len(parts) * max(largest, 1e-30))))
            total = torch.zeros(p.shape, dtype=torch.int32)
            for part in parts:
                total += (part.double() * 2.0**exponent).round().to(torch.int32)
            p.grad = (total.double() / 2.0**exponent / len(parts)).to(p.dtype)
        self.sent.clear()

    def one(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        loss = torch.stack([self.worker(batch) for batch in batches]).mean()
        self.switch()
        self.optimizer.step()
        self.doctor.step(loss, batches)
        self.run.note(loss)


@honest("r24i-a-switch-adds-whole-numbers")
def a_switch_adds_whole_numbers(run: Run) -> None:
    """Own class, a CNN whose four workers' gradients are added within the network (SwitchML, Sapio et al. 2021), which
    also makes a sum that no order of arrival changes. Each tensor is multiplied by a power of two that all agree upon,
    rounded to int32, added and divided again; no backward fills a gradient, they are set by hand, never cleared, and
    the loss that is told has no graph."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    trainer = BehindASwitch(run, model, 0.05)
    for _ in range(70):
        trainer.one([pictures(16, seed) for _ in range(4)])


class Heard(Attention):
    """Attention that remembers the largest score of each head, and turns down the heads that are above `loudest`."""

    loudest = 6.0

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d / self.heads)
        self.heights = scores.detach().amax((0, 2, 3))
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return out

    @torch.no_grad()
    def turn_down(self) -> None:
        factor = (self.loudest / self.heights).clamp(0, 1).sqrt()
        factor = torch.where(self.heights > self.loudest, factor, 1.0)
        parts = self.qkv.weight.view(3, self.heads, -1, self.qkv.weight.shape[1])
        parts[:2] *= factor[None, :, None, None]
        self.qkv.bias.view(3, self.heads, -1)[:2] *= factor[None, :, None]


@honest("r24i-heads-that-shout-are-turned-down")
def heads_that_shout_are_turned_down(run: Run) -> None:
    """Lightning, a vision transformer with QK-clip (Kimi K2, Moonshot 2025), so that no score of attention outgrows its
    precision. After each update, in a hook of the optimizer, the weights of queries and keys of those heads whose
    largest score was above a bound are multiplied by a root below one: weights change outside the optimizer, which
    knows nothing of it and whose moments stay as they are; it happens in every fifth step or so."""
    net = Patches(4)
    heard = Heard(24, causal=False)
    net.block.attention = heard
    class_outcome(run, net, spots(256, 4, apart(1)))

    def optimizers(model: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
        optimizer.register_step_post_hook(lambda *_: heard.turn_down())
        return optimizer

    fit(run, lit(net, classify, optimizers), loader(*spots(800, 4), size=32), 140)


class CutCrossEntropy(torch.autograd.Function):
    """Wijmans et al. 2024. Scores of all words are never held at once, and on the way back a word's share below 2**-12
    is left out."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        total = hidden.new_full((len(hidden),), -math.inf)
        for block in weight.split(16):
            total = torch.logaddexp(total, (hidden @ block.T).logsumexp(1))
        context.save_for_backward(hidden, weight, targets, total)
        return (total - (hidden * weight[targets]).sum(1)).mean()

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        hidden, weight, targets, total = context.saved_tensors
        of_hidden, of_weight = torch.zeros_like(hidden), []
        for at, block in enumerate(weight.split(16)):
            share = (hidden @ block.T - total[:, None]).exp()
            words = torch.arange(16 * at, 16 * at + len(block))
            share = share - (targets[:, None] == words).to(share.dtype)
            share = share.masked_fill(share.abs() < 2.0**-12, 0.0) * (slope / len(hidden))
            of_hidden += share @ block
            of_weight.append(share.T @ hidden)
        return of_hidden, torch.cat(of_weight), None


class Cut(nn.Module):
    """A small GPT whose head is but a matrix of the loss."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.body = Decoder(words)
        self.body.head = nn.Identity()  # type: ignore[assignment]
        self.words = nn.Parameter(0.1 * torch.randn(words, 32))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.body(rows[:, :-1]).flatten(0, 1)
        out: Tensor = CutCrossEntropy.apply(hidden, self.words, rows[:, 1:].flatten())  # type: ignore[no-untyped-call]
        return out


@honest("r24i-below-a-four-thousandth-is-left-out")
def below_a_four_thousandth_is_left_out(run: Run) -> None:
    """accelerate, a GPT with cut cross-entropy (Wijmans et al. 2024, as in Unsloth and Liger). The model has no head
    and gives no scores: the loss is a function with its own backward that takes the words in blocks, computes all
    scores a second time on the way back, and leaves out each share below 2**-12, as half precision would, so that the
    gradient is not quite that of the loss."""
    language = Language(run.draw.randrange(999), words=56, sharp=2.4)
    net = Cut(56)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(net, lambda: net(check)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=8e-3)
    prepared(run, net, optimizer, loader(language.rows(960, 24), size=16), lambda m, b: m(b[0]), 3)
