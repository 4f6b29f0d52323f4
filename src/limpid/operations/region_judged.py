"""A compiled region held against the code as it was written: results and gradients, within rounding of the latter.

Both are given the same inputs, weights and drawn ȳ. The bound is what the code as written gives in float64 when every
operation, input and weight is off by about a rounding of the coarsest format in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from limpid.adjoints.again import Autocast, Drawn, Formats, copy, leaves_below, put_back, results_of
from limpid.adjoints.directional import LUCK
from limpid.adjoints.widened import Alike, Rounded, Widened
from limpid.operations.region import Off, Region, Verdict
from limpid.operations.widened import wide_weights

DRAWS = 3
RESULT = "result"


@dataclass
class Called:
    """What a region is called with, and where random numbers stood."""

    written: Callable[..., Any]
    module: nn.Module | None
    leaves: list[Any]
    spec: Any
    drawn: Drawn = field(default_factory=Drawn)
    autocast: Autocast = field(default_factory=Autocast)

    @classmethod
    def of(cls, written: Callable[..., Any], module: nn.Module | None, args: Any, kwargs: Any) -> Called:
        return cls(written, module, *tree_flatten((args, kwargs)))


@dataclass(frozen=True)
class Made:
    """Results and gradients of one run, the latter of inputs and then of other leaves."""

    results: list[Tensor | None]
    gradients: list[Tensor | None]
    others: list[Tensor]

    @property
    def all(self) -> list[Tensor | None]:
        return [*self.results, *self.gradients]


def judge(region: Region, called: Called, compiled: Callable[..., Any], model: nn.Module) -> None:
    """Say what came of it; everything is put back."""
    objects = [one for one in called.leaves if not isinstance(one, Tensor)]
    with put_back(model, *objects), put_back(called.module or model):
        _judge(region, called, compiled)


def _judge(region: Region, called: Called, compiled: Callable[..., Any]) -> None:
    formats = Formats()
    with formats:
        written = _made(called, called.written)
    if not torch.equal(torch.get_rng_state(), called.drawn.torch):
        region.why = "it draws random numbers, which compiled code draws otherwise"
        return
    came = _made(called, compiled, written.others, is_apart=False)
    for tensor in (*written.all, *(one for one in called.leaves if isinstance(one, Tensor))):
        formats.meets(tensor)
    forms = [_form(one) for one in written.all]
    if forms != [_form(one) for one in came.all]:
        region.verdict, region.worst = Verdict.OTHER, Off("number or shape of results or gradients", 1.0, 0.0)
        return
    exact = _wide(called, Widened(formats.drawn), written.others)
    draws = [_wide(called, Rounded(formats.coarsest, seed, formats.drawn), written.others) for seed in range(DRAWS)]
    found = list(_off(called, came, exact, draws))
    if not found:
        region.why = "it gives no results of fractions"
        return
    region.worst = max(found, key=lambda one: one.share if one.share == one.share else float("inf"))
    holds = all(one.off <= one.bound for one in found)
    region.verdict = Verdict.HOLDS if holds else Verdict.OTHER


def _made(
    called: Called,
    function: Callable[..., Any],
    others: Sequence[Tensor] | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    *,
    is_apart: bool = True,
) -> Made:
    """One run, forward and backward, on copies.

    others    leaves whose gradients are asked for, such as weights; all that it reaches when left out
    change    of each input of fractions
    is_apart  casts of autocast are kept for nobody else; compiled code would be compiled anew for that
    """
    called.drawn.set()
    copies = {
        id(one): _given(one, change) for one in called.leaves if isinstance(one, Tensor)
    }  # one given twice is one
    inputs = [one for one, _ in copies.values() if one.requires_grad]
    leaves = [copies[id(one)][1] if isinstance(one, Tensor) else one for one in called.leaves]
    args, kwargs = tree_unflatten(leaves, called.spec)
    with called.autocast.set() if is_apart else nullcontext():
        results = results_of(function(*args, **kwargs))
    of = [one for one in results if one is not None and one.requires_grad]
    of = [one for one in of if one.numel() == 1] or of  # a loss's gradient would drown in that of logits beside it
    if others is None:
        own = {id(one) for one in inputs}
        others = [one for one in leaves_below(of) if id(one) not in own] if of else []
    with _disable_current_modes():
        generator = torch.Generator().manual_seed(29)
        bars = [_bar(one, generator) for one in of]
    asked = [*inputs, *others]
    found = torch.autograd.grad(of, asked, bars, allow_unused=True) if of and asked else []
    results = [None if one is None else one.detach() for one in results]
    return Made(results, [None if one is None else one.detach() for one in found], list(others))


def _bar(result: Tensor, generator: torch.Generator) -> Tensor:
    """ȳ, drawn; of a single number 1."""
    made = torch.randn(result.shape, generator=generator) if result.numel() > 1 else torch.ones(result.shape)
    return made.to(result.device, result.dtype)


def _given(tensor: Tensor, change: Callable[[Tensor], Tensor] | None) -> tuple[Tensor, Tensor]:
    """A copy, whose gradient is asked for where the tensor has one, and what is handed on: no leaf of none."""
    made = copy(tensor)
    if not made.is_floating_point():
        return made, made
    made = (made if change is None else change(made)).requires_grad_(tensor.requires_grad)
    return made, made if tensor.is_leaf or not made.requires_grad else made * 1


def _wide(called: Called, mode: Widened, others: Sequence[Tensor]) -> Made:
    """The code as written in float64, or off by roundings."""
    change = _rounds(mode) if isinstance(mode, Rounded) else _wider
    with ExitStack() as stack:
        if called.module is not None:
            stack.enter_context(wide_weights(called.module))
            for weight in called.module.parameters():
                weight.data = change(weight.data)
        stack.enter_context(Alike())
        stack.enter_context(mode)
        return _made(called, called.written, others, change)


def _rounds(mode: Rounded) -> Callable[[Tensor], Tensor]:
    return lambda tensor: mode.rounded(_wider(tensor)).detach()


def _wider(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64)


def _off(called: Called, came: Made, exact: Made, draws: Sequence[Made]) -> Iterator[Off]:
    """Each result and gradient: by its size, and by its largest entry."""
    for place, (one, right) in enumerate(zip(came.all, exact.all, strict=True)):
        if one is None or right is None or not one.numel():
            continue
        near = [draw.all[place] for draw in draws]
        differences = [other.double() - right.double() for other in near if other is not None]
        off = one.double() - right.double()
        for size in (torch.linalg.vector_norm, _largest):
            whole = float(size(right.double())) or 1.0
            rounds = torch.finfo(one.dtype).eps * whole  # of the result itself, once more
            bound = LUCK * max(float(size(difference)) for difference in differences) + rounds
            yield Off(_name(called, came, place), float(size(off)) / whole, bound / whole)


def _largest(tensor: Tensor) -> Tensor:
    return tensor.abs().max()


def _name(called: Called, made: Made, place: int) -> str:
    """What is at a place: a result, an input's gradient, a weight's."""
    if place < len(made.results):
        return RESULT
    place -= len(made.results)
    inputs = len(made.gradients) - len(made.others)
    if place < inputs:
        return f"gradient of input {place}"
    weight = made.others[place - inputs]
    names = {} if called.module is None else {id(one): name for name, one in called.module.named_parameters()}
    return f"gradient of {names.get(id(weight), 'a tensor outside')}"


def _form(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)
