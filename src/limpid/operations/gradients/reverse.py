"""The reverse pass over a step's own calls, forward and backward alike: what each call's rounding adds to a number.

With δ the difference of a call's result from the same call in float64 on the inputs that the engine had, and s the
sensitivity ∂Q/∂y of a number Q of the gradient, Q is off by Σ ⟨s, δ⟩ over all calls, to first order. Of the loss the
backward pass itself has these sensitivities; of the gradient they come from each call's own vector-Jacobian product,
by autograd in float64, last call first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from limpid.adjoints.aten import DRAWN, mapped, outputs_of, short_name
from limpid.adjoints.widened import NARROW
from limpid.operations.gradients.memory import Past, Sensitivities
from limpid.operations.gradients.projection import Projected, Wanted
from limpid.operations.gradients.rules import functions
from limpid.operations.gradients.tape import Entry, Tape, is_plain
from limpid.operations.redo import written

Bar = list[Tensor | None]
"""∂Q/∂ of each result of a call."""


@dataclass
class _Running:
    """A number on its way through the step."""

    wanted: Wanted
    engine: float = 0.0
    directions: dict[str, Tensor] = field(default_factory=dict)
    sensitivities: Sensitivities = field(default_factory=Sensitivities)
    errors: dict[int, float] = field(default_factory=dict)
    unknown: int = 0

    def begin(self, gradients: dict[str, Tensor], views: dict[str, Tensor]) -> None:
        """Where the gradient has come: ∂Q/∂g = v."""
        self.directions = self.wanted.directions(gradients)
        for name, direction in self.directions.items():
            self.engine += float((direction * gradients[name].double()).sum())
            self.sensitivities.add(views[name], direction)


def reverse(tape: Tape, asked: Sequence[Wanted]) -> list[Projected]:
    """What moved each number; those without a gradient that came are left out."""
    found = [_Running(one) for one in asked if any(name in tape.gradients for name in one.parameters)]
    names = sorted({name for one in found for name in one.wanted.parameters if name in tape.gradients})
    end = max((tape.gradients[name][1] for name in names), default=0)
    past, made_here = Past(), {one.untyped_storage().data_ptr() for entry in tape.entries for one in _results(entry)}
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
        for entry in reversed(tape.entries[end:]):
            _put_back(past, entry)
        views = {name: tape.gradients[name][0] for name in names}
        values = {name: past.value(view).detach().clone() for name, view in views.items()}
        for one in found:
            one.begin(values, views)
        for entry in reversed(tape.entries[:end]):
            _back(past, entry, found, made_here)
    return [Projected(one.wanted.of, one.engine, one.errors, one.unknown, one.directions) for one in found]


def _put_back(past: Past, entry: Entry) -> None:
    for view, numbers in reversed(entry.before):
        past.put_back(view, numbers)


def _results(entry: Entry) -> list[Tensor]:
    """Views of what it wrote, in its results or over its arguments."""
    return [one for one in entry.made if one is not None] + [view for view, _ in entry.before]


def _back(past: Past, entry: Entry, found: Sequence[_Running], made_here: set[int]) -> None:
    """One call: from the sensitivities of its results to those of its arguments."""
    is_over = bool(written(entry.operation))
    met = [one for one in found if any(map(one.sensitivities.has, _results(entry)))]
    if not met or _is_view(entry):
        _put_back(past, entry)
        return
    engine = [None if one is None else past.value(one).detach().clone() for one in entry.made]
    _put_back(past, entry)
    left = list[tuple[_Running, Bar]]()
    for one in met:
        bar = _taken(one.sensitivities, entry, is_over)
        if any(s is not None and bool(s.any()) for s in bar):
            left.append((one, bar))
    if short_name(entry.operation) not in DRAWN:
        _onwards(past, entry, made_here, engine, left)


def _onwards(
    past: Past, entry: Entry, made_here: set[int], engine: list[Tensor | None], left: list[tuple[_Running, Bar]]
) -> None:
    """Weigh what the call rounded off, and go on to its arguments; what cannot be done again is said to be missing."""
    for function in functions(entry.operation, engine) if left else ():
        try:
            leaves, results = _again(past, entry, made_here, function)
            while left:
                one, bar = left[0]
                _spread(one.sensitivities, leaves, results, bar)
                one.errors[entry.number] = _weighed(bar, engine, results)
                left = left[1:]
        except Exception:
            continue
        return
    for one, _ in left:
        one.unknown += 1


def _is_view(entry: Entry) -> bool:
    """Whether it gives memory that it was given: sensitivities belong to memory, and stay where they are."""
    if torch.Tag.inplace_view in entry.operation.tags:
        return True
    if written(entry.operation):
        return False
    given = set[int]()
    mapped([entry.args, list(entry.kwargs.values())],
           lambda one: given.add(one.untyped_storage().data_ptr()) if is_plain(one) else None)  # fmt: skip
    return all(one is None or one.untyped_storage().data_ptr() in given for one in entry.made)


def _taken(sensitivities: Sensitivities, entry: Entry, is_over: bool) -> list[Tensor | None]:
    """∂Q/∂ of each result; before the call its memory did not matter."""
    bar = [
        sensitivities.read(one) if one is not None and _is_fraction(one) and sensitivities.has(one) else None
        for one in entry.made
    ]
    for one in entry.made:
        if one is not None and sensitivities.has(one):
            (sensitivities.clear if is_over else sensitivities.forget)(one)
    return bar


def _again(
    past: Past, entry: Entry, made_here: set[int], function: Callable[..., Any]
) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor | None]]:
    """The call in float64: its arguments beside the leaves that stand for them, and its results."""
    leaves, copies = list[tuple[Tensor, Tensor]](), list[Tensor | None]()
    over = set(written(entry.operation))

    def wide(one: Tensor, is_over: bool) -> Tensor:
        if not is_plain(one):
            raise ValueError("no plain tensor")
        value = past.value(one).detach()
        if not _is_fraction(one):
            return value.clone() if is_over else value
        leaf = value.to(torch.complex128 if one.is_complex() else torch.float64)
        leaf = leaf.clone() if leaf is value else leaf
        if one.untyped_storage().data_ptr() in made_here:
            leaves.append((one, leaf.requires_grad_()))
        if not is_over:
            return leaf
        copy = leaf.clone()
        copies.append(copy)
        return copy

    def given(name: str, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _wide_format(value)
        return mapped(value, lambda one: wide(one, name in over))

    names = [one.name for one in entry.operation._schema.arguments]
    args = [given(name, one) for name, one in zip(names, entry.args, strict=False)]
    kwargs = {name: given(name, one) for name, one in entry.kwargs.items()}
    made = function(*args, **kwargs)
    return leaves, outputs_of(made) if made is not None else copies


def _wide_format(form: torch.dtype) -> torch.dtype:
    return torch.float64 if form in NARROW else torch.complex128 if form == torch.complex64 else form


def _is_fraction(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _weighed(bar: list[Tensor | None], engine: list[Tensor | None], results: list[Tensor | None]) -> float:
    """Σ ⟨s, δ⟩ over the results of a call."""
    found = 0.0
    for s, got, exact in zip(bar, engine, results, strict=False):
        if s is not None and got is not None and exact is not None and _is_fraction(exact):
            off = got.to(exact.dtype) - exact.detach().reshape(got.shape)
            off = torch.where(torch.isfinite(off), off, 0)
            found += float((s.conj() * off).real.sum() if s.is_complex() else (s * off).sum())
    return found


def _spread(
    sensitivities: Sensitivities, leaves: list[tuple[Tensor, Tensor]], results: list[Tensor | None],
    bar: list[Tensor | None],
) -> None:  # fmt: skip
    """Add each argument's part: the vector-Jacobian product of the call."""
    pairs = [
        (one, s.reshape(one.shape))
        for one, s in zip(results, bar, strict=False)
        if one is not None and s is not None and one.requires_grad
    ]
    if not pairs or not leaves:
        return
    of, given = [one for one, _ in pairs], [s for _, s in pairs]
    parts = torch.autograd.grad(of, [leaf for _, leaf in leaves], given, allow_unused=True, retain_graph=True)
    for (view, _), part in zip(leaves, parts, strict=True):
        if part is not None:
            sensitivities.add(view, part.detach())
