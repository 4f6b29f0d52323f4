"""Layers inside a forward pass: a function mode sees the arguments of every function of torch that Python calls.

Source: the documentation of torch.nn.Softmax, Dropout and torch.nn.functional.grid_sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limpid.doctor.calls import Call
from limpid.doctor.contracts.attention import by_heads, fused
from limpid.doctor.contracts.contract import MOST, Breach, Given
from limpid.doctor.contracts.sequences import (
    RECURRENT,
    Sequence,
    batch_for_time,
    behind_the_end,
    heads_for_time,
    recurrent,
)
from limpid.doctor.finding import Skipped
from limpid.doctor.makers import VIEWS, path
from limpid.doctor.rules.layer_arguments import AXIS_NOT_NAMED, DROPPED_LAST, NORM_EPSILON, OFF_THE_GRID

MARK = "limpid: dropout"
"""In the metadata of the node of a graph that dropout made."""
LARGE = 1e-2
"""An ε that is meant against 0/0 is smaller, 1e-3 at most."""
OUTSIDE_GRID = 0.9
"""Share of the points outside of a picture from which on hardly anything is read of it."""


class LayerProbe(TorchFunctionMode):
    """Looks at the arguments of layers in the pass made inside; passes everything on unchanged."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self.skipped = Skipped()
        self.breaches: list[Breach] = []
        self.sequences: list[Sequence] = []
        self.cells: list[Tensor] = []  # c of each LSTM so far
        self.attended: list[tuple[int, ...]] = []  # shapes of queries
        self.shorter = 0  # packed sequences that end before the longest

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        look = LOOKS.get(getattr(func, "__name__", ""))
        if look is not None:
            with self.skipped.noting("layers"), torch._C.DisableTorchFunction(), torch.no_grad():
                self.breaches.extend(look(self, args, kwargs, out))
        return out

    def ended(self, output: Any) -> list[Breach]:
        """All that the pass showed, once its output is there."""
        with self.skipped.noting("sequences"):
            self.breaches.extend(batch_for_time(self.call, self.sequences, output))
            self.breaches.extend(heads_for_time(self.call, self.attended))
            self.breaches.extend(behind_the_end(self.shorter, output))
        return self.breaches


def unnamed(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """softmax and log_softmax without dim: of three axes the first is taken."""
    given = args[0]
    if "dim" in kwargs and kwargs["dim"] is None and given.ndim == 3 and given.requires_grad and given.shape[0] > 1:
        yield Breach(
            rule=AXIS_NOT_NAMED,
            where="softmax: dim",
            says=f"softmax without dim runs over axis 0 of {tuple(given.shape)}, the rows of the batch: what is "
            "likelier in one row becomes less likely in the others.",
            cause="the default of dim, which the documentation calls deprecated",
            fix="softmax(…, dim=-1)",
            evidence={"shape": list(given.shape)},
        )


def dropped(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """Mark what dropout made, to know it again in a loss."""
    p, training = kwargs.get("p", 0.5), kwargs.get("training", True)
    if training and p > 0 and isinstance(out, Tensor) and out.grad_fn is not None and out is not args[0]:
        metadata: Any = out.grad_fn.metadata  # its stub takes the property for a method
        metadata[MARK] = p
    yield from ()


def after_dropout(name: str, given: Given) -> Iterator[Breach]:
    """What a loss is given straight from dropout."""
    value = given["input"]
    p = next((node.metadata[MARK] for _, node in path(value, VIEWS) if MARK in node.metadata), 0.0)
    if p:
        yield Breach(
            rule=DROPPED_LAST,
            where=f"{name}: input",
            says=f"dropout (p = {p:g}) is the last thing before the loss: {p:.0%} of the outputs are 0 by chance, and "
            f"the others {1 / (1 - p) if p < 1 else float('inf'):.3g} times as large.",
            cause="dropout after the last layer",
            fix="dropout before the last linear layer",
            severity="warning",
            looks=2,
            evidence={"p": p},
        )


def sampled(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """grid_sample(input, grid, …): points between -1 and 1."""
    grid = args[1] if len(args) > 1 else kwargs.get("grid")
    if not isinstance(grid, Tensor) or grid.numel() > MOST or kwargs.get("padding_mode", "zeros") != "zeros":
        return
    outside = float(((grid < -1) | (grid > 1)).any(-1).float().mean())
    in_pixels = float(grid.min()) >= 0  # where the middle of a picture is 0, points have both signs
    if outside > OUTSIDE_GRID:
        yield Breach(
            rule=OFF_THE_GRID,
            where="grid_sample: grid",
            says=f"{outside:.0%} of the points lie outside of [-1, 1] (up to {float(grid.abs().max()):.3g}), where a "
            "picture reads as 0: hardly anything of it is seen.",
            cause="points in pixels",
            fix="2 * pixel / (size - 1) - 1, with align_corners=True",
            looks=2,
            meant=None if in_pixels else "a small picture that is pasted onto a larger canvas",
            evidence={"outside": outside},
        )


def by_layer(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """layer_norm(input, shape, …, eps): over the last axes."""
    yield from _normed("layer_norm", args[0], kwargs, lambda x: x.flatten(-len(args[1])).var(-1, correction=0))


def by_power(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """rms_norm(input, shape, …, eps): the same around 0."""
    yield from _normed("rms_norm", args[0], kwargs, lambda x: x.flatten(-len(args[1])).square().mean(-1))


def by_channel(probe: LayerProbe, args: Any, kwargs: Any, out: Any) -> Iterator[Breach]:
    """batch_norm(input, …, training, eps): over all axes but that of the channels, 1."""
    if kwargs.get("training"):
        yield from _normed("batch_norm", args[0], kwargs, lambda x: x.transpose(0, 1).flatten(1).var(1, correction=0))


def _normed(name: str, given: Tensor, kwargs: Any, variance_of: Callable[[Tensor], Tensor]) -> Iterator[Breach]:
    """An eps that is larger than half of the variances it is added to."""
    eps = kwargs.get("eps")
    if not isinstance(eps, float) or eps < LARGE or not 1 < given.numel() <= MOST:
        return
    variance = float(variance_of(given.float()).median())
    if variance < eps:
        yield Breach(
            rule=NORM_EPSILON,
            where=f"{name}: eps",
            says=f"eps is {eps:g} and the variance is {variance:.2g} in the middle: what leaves the norm has a "
            f"deviation of {(variance / (variance + eps)) ** 0.5:.2g}, not 1.",
            cause="eps taken for another number",
            fix="eps=1e-5, the default",
            severity="warning",
            looks=3,
            evidence={"eps": eps, "variance": variance},
        )


LOOKS = {
    "scaled_dot_product_attention": fused,
    "multi_head_attention_forward": by_heads,
    "softmax": unnamed,
    "log_softmax": unnamed,
    "dropout": dropped,
    "layer_norm": by_layer,
    "rms_norm": by_power,
    "batch_norm": by_channel,
    "grid_sample": sampled,
    **dict.fromkeys(RECURRENT, recurrent),
}
