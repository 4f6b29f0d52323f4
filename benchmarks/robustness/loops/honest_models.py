"""Honest loops around models that are not the usual transformer."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import VOCABULARY, corpus
from benchmarks.robustness.loops.training import adamw, next_token, plain_loop, update
from benchmarks.robustness.loops.transformer import Block, Counting, Transformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


@honest("relative-positions")
def _(run: Run) -> None:
    """A learned bias per distance and head, no biases, untied, NAdam, no clipping."""
    model = Transformer(positions="relative", bias=False, norm="rms")
    plain_loop(run, model, torch.optim.NAdam(model.parameters(), lr=1e-3), clip=0.0)


@honest("linear-attention")
def _(run: Run) -> None:
    """Linear attention by running sums, no positions: their order comes from the sums."""
    model = Transformer(attention="linear", positions="none")
    plain_loop(run, model, adamw(model), steps=60)


@honest("stochastic-depth")
def _(run: Run) -> None:
    """Whole blocks dropped at random, dropout of 0.2 beside: parameters without a gradient in some steps."""
    model = Transformer(layers=4, drop_path=run.draw.choice((0.2, 0.5)), dropout=0.2)
    plain_loop(run, model, adamw(model))


class Recurrent(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.cells, self.counting = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1), Counting()

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.cells(self.counting(self.embedding(x)), state)
        return self.head(hidden), state


@honest("lstm-book-in-order")
def _(run: Run) -> None:
    """Truncated backpropagation: a book read in order by eight readers, hidden states carried on and detached."""
    model, tokens = Recurrent(), corpus(15)
    rows = tokens[: len(tokens) // 8 * 8].view(8, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    state: Any = None
    for step in range(100):
        at = step * 32
        x, y = rows[:, at : at + 32], rows[:, at + 1 : at + 33]
        logits, state = model(x, state)
        state = tuple(part.detach() for part in state)
        loss = next_token(logits, y)
        update(run, doctor, optimizer, loss, (x, y), clip=(model, 0.25))


class Diagonal(nn.Module):
    """A diagonal state-space layer, real, as a causal convolution by FFT."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.rand(width, states).mul(3).sub(4))
        self.read = nn.Parameter(torch.randn(width, states) / states**0.5)
        self.skip = nn.Parameter(torch.ones(width))
        self.norm, self.gate, self.out = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, length = self.norm(x), x.shape[1]
        rate = self.log_rate.exp()
        kernel = torch.einsum("ds,dsl->dl", self.read, (-rate[..., None] * torch.arange(length)).exp())
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2) + u * self.skip
        return x + self.out(F.silu(self.gate(u)) * y)


@honest("state-space")
def _(run: Run) -> None:
    """A diagonal state-space model as a convolution by FFT, the recurrence with a rate of its own and no decay."""
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 32), Counting(), Diagonal(32), Diagonal(32), nn.Linear(32, VOCABULARY)
    )
    slow = [p for n, p in model.named_parameters() if "log_rate" in n]
    other = [p for n, p in model.named_parameters() if "log_rate" not in n]
    parts: list[dict[str, Any]] = [{"params": other}, {"params": slow, "lr": 5e-4, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(parts, lr=3e-3)
    plain_loop(run, model, optimizer)


@honest("compiled")
def _(run: Run) -> None:
    """torch.compile on the model; the loop knows the compiled module only."""
    torch._dynamo.reset()
    model = Transformer(layers=1)
    compiled: Any = torch.compile(model)
    plain_loop(run, compiled, adamw(compiled), steps=60)


class Rounded(torch.autograd.Function):
    """Four-bit weights forward, the gradient straight through where it was not clipped."""

    @staticmethod
    def forward(context: Any, weight: Tensor) -> Tensor:
        step = weight.abs().amax() / 7
        return (weight / step).round().clamp(-7, 7) * step

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class RoundedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, Rounded.apply(self.weight), self.bias)


@honest("norms-and-straight-through")
def _(run: Run) -> None:
    """Weight norm on queries, spectral norm on values, MLPs in four bits with a straight-through gradient."""
    model = Transformer(init=0.06)
    for block in model.blocks:
        assert isinstance(block, Block)
        parametrizations.weight_norm(block.attention.query)
        parametrizations.spectral_norm(block.attention.value)
        up = RoundedLinear(32, 128)
        up.load_state_dict(block.mlp.up.state_dict())  # type: ignore[union-attr]
        block.mlp.up = up
    plain_loop(run, model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0))
