"""The reverse pass over a step's own calls, forward and backward alike: what each call's rounding adds to a number.

With δ the difference of a call's result from the same call in float64 on the inputs that the engine had, and s the
sensitivity ∂Q/∂y of a number Q of the gradient, Q is off by Σ ⟨s, δ⟩ over all calls, to first order. Of the loss the
backward pass itself has these sensitivities; of the gradient they come from each call's own vector-Jacobian product,
by autograd in float64, last call first.

What is beyond the first order is a sum over calls too. With f the call in float64, x its inputs as the engine had them
and x* without any rounding, it is Σ ⟨s, f(x) - f(x*) - J (x - x*)⟩: what a call's curvature adds, and the kink that
rounding carried an entry over. Both sums together are Q less Q without rounding, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from limpid.adjoints.aten import DRAWN, short_name
from limpid.operations.gradients.again import Again, again, is_view
from limpid.operations.gradients.entry import Entry, is_fraction
from limpid.operations.gradients.memory import Exact, Past, Sensitivities, place_of
from limpid.operations.gradients.projection import Projected, Wanted
from limpid.operations.gradients.rules import functions
from limpid.operations.gradients.tape import Tape
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
    beyond: dict[int, float] = field(default_factory=dict)
    unknown: int = 0

    def begin(self, gradients: dict[str, Tensor], views: dict[str, Tensor]) -> None:
        """Where the gradient has come: ∂Q/∂g = v."""
        self.directions = self.wanted.directions(gradients)
        for name, direction in self.directions.items():
            self.engine += float((direction * gradients[name].double()).sum())
            self.sensitivities.add(views[name], direction)

    def begin_at(self, roots: Sequence[tuple[Tensor, float]]) -> None:
        """Where the backward pass began: the number itself."""
        for view, value in roots:
            self.engine += value
            self.sensitivities.add(view, torch.ones(view.shape, dtype=torch.float64, device=view.device))

    @property
    def result(self) -> Projected:
        return Projected(self.wanted.of, self.engine, self.errors, self.beyond, self.unknown, self.directions)


def reverse(tape: Tape, asked: Sequence[Wanted]) -> list[Projected]:
    """What moved each number; those without a gradient that came are left out."""
    found = [_Running(one) for one in asked if _has_come(one, tape)]
    names = sorted({name for one in found for name in one.wanted.parameters if name in tape.gradients})
    begun = [] if all(one.wanted.parameters for one in found) else [number for _, number in tape.roots]
    end = max([tape.gradients[name][1] for name in names] + begun, default=0)
    back = _Back(found, tape.exact, {place_of(one) for entry in tape.entries for one in entry.results})
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
        for entry in reversed(tape.entries[end:]):
            back.before(entry)
        views = {name: tape.gradients[name][0] for name in names}
        values = {name: back.past.value(view).detach().clone() for name, view in views.items()}
        roots = [(view, float(back.past.value(view))) for view, _ in tape.roots]
        for one in found:
            one.begin(values, views) if one.wanted.parameters else one.begin_at(roots)
        for entry in reversed(tape.entries[:end]):
            back.over(entry)
    return [one.result for one in found]


def _has_come(wanted: Wanted, tape: Tape) -> bool:
    return any(name in tape.gradients for name in wanted.parameters) if wanted.parameters else bool(tape.roots)


@dataclass
class _Back:
    """Where a reverse pass stands."""

    found: Sequence[_Running]
    exact: Exact
    made_here: set[int]
    past: Past = field(default_factory=Past)

    def before(self, entry: Entry) -> None:
        """Memory as it was before a call."""
        for view, numbers in reversed(entry.before):
            self.past.put_back(view, numbers)
        for view, numbers in reversed(entry.exact_before):
            self.exact.view(view).copy_(numbers)

    def over(self, entry: Entry) -> None:
        """One call: from the sensitivities of its results to those of its arguments."""
        met = [one for one in self.found if any(map(one.sensitivities.has, entry.results))]
        if not met or is_view(entry):
            self.before(entry)
            return
        engine = [None if one is None else self.past.value(one).detach().clone() for one in entry.made]
        without = [self.exact.read(one) if one is not None and self._is_followed(one) else None for one in entry.made]
        self.before(entry)
        left = list[tuple[_Running, Bar]]()
        for one in met:
            bar = _taken(one.sensitivities, entry)
            if any(s is not None and bool(s.any()) for s in bar):
                left.append((one, bar))
        if short_name(entry.operation) not in DRAWN:
            self._onwards(entry, engine, without, left)

    def _is_followed(self, one: Tensor) -> bool:
        return is_fraction(one) and self.exact.has(one)

    def _onwards(
        self, entry: Entry, engine: list[Tensor | None], without: list[Tensor | None], left: list[tuple[_Running, Bar]]
    ) -> None:
        """Weigh what the call made, and go on to its arguments; what cannot be done again is said to be missing."""
        for function in functions(entry.operation, engine) if left else ():
            try:
                made = again(entry, function, self.past.value, lambda one: place_of(one) in self.made_here)
                while left:
                    one, bar = left[0]
                    linear = self._spread(one.sensitivities, made, bar)
                    one.errors[entry.number] = _weighed(bar, engine, made.results)
                    one.beyond[entry.number] = _weighed(bar, made.results, without) - linear
                    left = left[1:]
            except Exception:
                continue
            return
        for one, _ in left:
            one.unknown += 1

    def _spread(self, sensitivities: Sensitivities, made: Again, bar: Bar) -> float:
        """Add each argument's part, by the vector-Jacobian product of the call; returns ⟨s, J (x - x*)⟩."""
        pairs = [
            (one, s.reshape(one.shape))
            for one, s in zip(made.results, bar, strict=False)
            if one is not None and s is not None and one.requires_grad
        ]
        if not pairs or not made.leaves:
            return 0.0
        of, given = [one for one, _ in pairs], [s for _, s in pairs]
        parts = torch.autograd.grad(of, [leaf for _, leaf in made.leaves], given, allow_unused=True, retain_graph=True)
        linear = 0.0
        for (view, leaf), part in zip(made.leaves, parts, strict=True):
            if part is not None:
                sensitivities.add(view, part.detach())
                linear += _weighed([part], [leaf], [self.exact.view(view) if self._is_followed(view) else None])
        return linear


def _taken(sensitivities: Sensitivities, entry: Entry) -> Bar:
    """∂Q/∂ of each result; before the call its memory did not matter."""
    bar = [
        sensitivities.read(one) if one is not None and is_fraction(one) and sensitivities.has(one) else None
        for one in entry.made
    ]
    for one in entry.made:
        if one is not None and sensitivities.has(one):
            (sensitivities.clear if written(entry.operation) else sensitivities.forget)(one)
    return bar


def _weighed(bar: Bar, ones: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> float:
    """Σ ⟨s, one - other⟩, where there are both."""
    found = 0.0
    for s, one, other in zip(bar, ones, others, strict=False):
        if s is not None and one is not None and other is not None and is_fraction(other):
            off = one.detach().to(other.dtype) - other.detach().reshape(one.shape)
            off = torch.where(torch.isfinite(off), off, 0).reshape(s.shape)
            found += float((s.conj() * off).real.sum() if s.is_complex() else (s * off).sum())
    return found
