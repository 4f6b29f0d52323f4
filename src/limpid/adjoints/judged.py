"""A backward pass by hand held against its forward pass, in float64 where it can be run so, else in its own format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy as shallow
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from limpid.adjoints.adjoint import Adjoint, Along, Verdict
from limpid.adjoints.again import Applied, Formats, copy, put_back, sums
from limpid.adjoints.directional import LUCK, along, finely_moved, is_symmetric, moved_at, signs_of, steps
from limpid.adjoints.results import (
    Gradients,
    apart_by,
    gives_back,
    hardly_differ,
    is_same,
    is_told,
    towards,
    worst_of,
    wrong_of,
)  # fmt: skip
from limpid.adjoints.widened import Rounded, Widened, wider

DRAWS = 4
ASIDE = 32
"""Lengths of a step, by which inputs are moved from where slopes jump."""
SAME = 2.0**-3
"""Results in float64 that are further from the engine's are another function's: one that looks at formats."""
ENTRIES = 16
"""That are moved one by one."""

CHANGED = "done again on the same inputs it gives the right one: what it kept was changed in between"
COARSE = "it is coarser than its forward pass"


def judge(adjoint: Adjoint, applied: Applied, engine: Gradients, model: nn.Module) -> None:
    """Say what came of it; everything is put back.

    engine  x̄ of each tensor that it was given, in their order, as it came in the step
    """
    objects = [adjoint.kind, *(one for one in applied.leaves if not isinstance(one, Tensor))]
    with put_back(model, *objects):
        found = [one for place, one in zip(applied.places, engine, strict=True) if place in applied.owed]
        _judge(adjoint, applied, found)


def _judge(adjoint: Adjoint, applied: Applied, engine: Gradients) -> None:
    values = {place: copy(applied.leaves[place]) for place in applied.owed}
    with Formats() as formats:
        results = applied.forward({place: copy(one) for place, one in values.items()}, wide=False)
    for tensor in (*values.values(), *applied.gradients, *results):
        formats.meets(tensor)
    unit = formats.coarsest
    if not is_same(applied.made, sums(results), unit):
        adjoint.why = "done again on the same inputs, its forward pass gives other numbers"
        return
    if any(one is not None and not one.isfinite().all() for one in applied.gradients):
        adjoint.why = "the gradient that came to it is not finite"
        return
    if all(one is None or not torch.count_nonzero(one) for one in applied.gradients):
        adjoint.why = "the gradient that came to it is 0"
        return
    if not applied.owed:
        adjoint.why = "it owes gradients of complex numbers alone"
        return
    whys = []
    for run in (_Wide(applied, unit, formats.drawn), _Own(applied, unit, formats.drawn)):
        try:
            if run.holds_for(results):
                if run.judge(adjoint, values, engine):
                    return
                whys.append("its format is too coarse, or its slope jumps too often, for differences")
        except Exception as error:  # the step goes on, whatever it is
            whys.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            if run.is_begun:
                break
    adjoint.why = whys[-1]


class _Run(ABC):
    """A way to do a Function again."""

    wide: bool
    step: float  # unit that lengths of steps follow from

    def __init__(self, applied: Applied, unit: float, drawn: Sequence[torch.dtype]) -> None:
        self.applied, self.unit, self.drawn = applied, unit, drawn
        self.is_begun = False  # whether it can be done this way
        self.forward_off = 0.0  # by which results are off from the engine's, as a share of them

    @abstractmethod
    def forward(self, values: dict[int, Tensor]) -> list[Tensor | None]:
        """Results of these inputs."""

    @abstractmethod
    def backward(self, values: dict[int, Tensor]) -> list[Tensor]:
        """x̄ of these inputs."""

    @abstractmethod
    def scattered(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        """x̄, as rounding may make it."""

    @abstractmethod
    def bounds_of(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        """The same, where this way rounds."""

    @abstractmethod
    def given(self, tensor: Tensor) -> Tensor:
        """An input in the format of this way."""

    @abstractmethod
    def holds_for(self, results: Gradients) -> bool:
        """Whether it gives what the engine got."""

    def judge(self, adjoint: Adjoint, inputs: dict[int, Tensor], engine: Gradients) -> bool:
        """Whether there is a verdict."""
        given = {place: self.given(one) for place, one in inputs.items()}
        again = self.backward(given)
        found: list[Along] = []
        for values in (given, self.aside(given)):
            found = self.along(values, again if values is given else self.backward(values))
            self.is_begun = True
            if all(map(is_told, found)):
                break
        wrong = wrong_of(found, len(given))
        told = all(map(is_told, found))
        if wrong or not told:
            surrogate = self.surrogate(given, again) or self.symmetric(given, again)
            if surrogate:
                adjoint.verdict, adjoint.why = Verdict.SURROGATE, surrogate
                adjoint.along, adjoint.worst = found, worst_of(wrong or found)
                return True
        if wrong:
            adjoint.verdict, adjoint.along, adjoint.worst = Verdict.WRONG, found, worst_of(wrong)
            if adjoint.declare():
                self.hold_engine(adjoint, inputs, given, again, engine)
            return True
        if not told:
            return False
        adjoint.verdict, adjoint.along, adjoint.worst = Verdict.HOLDS, found, worst_of(found)
        self.hold_engine(adjoint, inputs, given, again, engine)
        return True

    def symmetric(self, values: dict[int, Tensor], given: list[Tensor]) -> str:
        """Whether of matrices that are symmetric it is right as long as they stay so."""
        if not any(map(is_symmetric, values.values())):
            return ""
        found = self.along(values, given, symmetric=True)
        holds = all(map(is_told, found)) and not wrong_of(found, len(given))
        return "of a symmetric matrix it is right along symmetric changes" if holds else ""

    def along(self, values: dict[int, Tensor], given: list[Tensor], *, symmetric: bool = False) -> list[Along]:
        """All directions of all inputs."""
        middle = self.forward(values)
        scattered = list(self.bounds_of(values))
        found: list[Along] = []
        for number, (place, x) in enumerate(values.items()):
            forward = partial(self.moved, values, place)
            bounds = [one[number] for one in scattered]
            found += along(
                forward, x, middle, self.applied.gradients, given[number], bounds, number, self.step, symmetric
            )
        return found

    def moved(self, values: dict[int, Tensor], place: int, x: Tensor) -> list[Tensor | None]:
        """Results with another value of one input."""
        return self.forward({**values, place: x})

    def aside(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Inputs a little moved, away from places where slopes jump."""
        generator, far = torch.Generator().manual_seed(17), max(2.0**-6, ASIDE * next(steps(self.step)))
        return {
            place: (x.double() + far * torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
                    * signs_of(x, generator)).to(x.dtype)
            for place, x in values.items()
        }  # fmt: skip

    def surrogate(self, values: dict[int, Tensor], given: list[Tensor]) -> str:
        """Why no other gradient than a surrogate can be meant, where that is so."""
        aside = self.aside(values)
        middle, moved_middle = self.forward(values), self.forward(aside)
        for (place, x), gradient in zip(values.items(), given, strict=True):
            if gives_back(middle, x) and gives_back(moved_middle, aside[place]):
                return "its forward pass gives its input back"
            for at, results in ((values, middle), (aside, moved_middle)):
                if torch.count_nonzero(gradient) and (
                    self.is_constant(at, place, results) or self.is_stepwise(at, place, results, gradient)
                ):
                    return "its forward pass is constant between steps"
        if self.has_its_own(values, middle, given):
            return "its backward pass is given a tensor that its forward pass has no use for"
        return ""

    def has_its_own(self, values: dict[int, Tensor], middle: Gradients, given: Gradients) -> bool:
        """Whether another value of some other tensor changes x̄ and no result: fixed weights for errors to go by."""
        for place, one in enumerate(self.applied.leaves):
            if place in values or not isinstance(one, Tensor) or not one.is_floating_point():
                continue
            leaves = [*self.applied.leaves[:place], 1 - 2 * one, *self.applied.leaves[place + 1 :]]
            other = shallow(self)
            other.applied = replace(self.applied, leaves=leaves)
            try:
                still = hardly_differ(middle, other.forward(values), 1.0)
                if still and not hardly_differ(given, other.backward(values), 1.0):
                    return True
            except Exception:  # of what may not stand there
                continue
        return False

    def is_constant(self, values: dict[int, Tensor], place: int, middle: Gradients) -> bool:
        """Whether a fine step in one input changes hardly any result."""
        return hardly_differ(middle, self.moved(values, place, finely_moved(values[place])))

    def is_stepwise(self, values: dict[int, Tensor], place: int, middle: Gradients, gradient: Tensor) -> bool:
        """Whether most entries alone change nothing by a fine step, and something by a coarse one.

        The step of a rounding may itself follow from a few entries, such as the largest.
        """
        x = values[place]
        entries = gradient.flatten().nonzero()[:, 0].cpu()
        entries = entries[torch.randperm(len(entries), generator=torch.Generator().manual_seed(place))[:ENTRIES]]
        fine = coarse = 0
        for entry in entries.tolist():
            try:
                still = [hardly_differ(middle, self.moved(values, place, one), 1.0) for one in moved_at(x, entry)]
            except Exception:  # of what may not stand there, such as a matrix that has no factors
                return False
            fine += still[0]
            coarse += still[0] and not still[1]
        return 4 * fine >= 3 * len(entries) and 2 * coarse >= fine > 0

    def hold_engine(
        self, adjoint: Adjoint, inputs: dict[int, Tensor], given: dict[int, Tensor], again: list[Tensor],
        engine: Gradients,
    ) -> None:  # fmt: skip
        """Hold what came in the step against what the Function gives again, and that against float64."""
        owns = self.applied.backward(inputs, self.applied.gradients, wide=False)
        scattered = list(self.scattered(given))
        for number, (got, own, exact) in enumerate(zip(engine, owns, again, strict=True)):
            came = torch.zeros_like(own) if got is None else got.detach()
            scatter = max(float((one[number].double() - exact.double()).norm()) for one in scattered)
            size = float(exact.double().norm())
            bound = LUCK * (scatter + self.unit * size)
            coarse = LUCK * (LUCK * (scatter + self.forward_off * size) + self.unit * size)
            for one, other, most, why in ((came, own, bound, CHANGED), (own, exact, coarse, COARSE)):
                apart = towards(number, one, other, most)
                if apart.is_apart:
                    adjoint.verdict, adjoint.along, adjoint.worst, adjoint.why = Verdict.WRONG, (), apart, why
                    return


class _Wide(_Run):
    """In float64, every operation."""

    wide, step = True, 2.0**-53

    def forward(self, values: dict[int, Tensor]) -> list[Tensor | None]:
        with Widened(self.drawn):
            return self.applied.forward({place: copy(one) for place, one in values.items()}, wide=True)

    def backward(self, values: dict[int, Tensor]) -> list[Tensor]:
        with Widened(self.drawn):
            return self.applied.backward(values, self.applied.gradients, wide=True)

    def scattered(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        for seed in range(DRAWS):
            noise = Rounded(self.unit, seed, self.drawn)
            near = {place: noise.rounded(one) for place, one in values.items()}
            gradients = [None if one is None else noise.rounded(wider(one)) for one in self.applied.gradients]
            with noise:
                yield self.applied.backward(near, gradients, wide=True)

    def bounds_of(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        yield from ()

    def given(self, tensor: Tensor) -> Tensor:
        return wider(tensor)

    def holds_for(self, results: Gradients) -> bool:
        found = self.forward({place: wider(self.applied.leaves[place]) for place in self.applied.owed})
        pairs = [(a, b) for a, b in zip(found, results, strict=True) if a is not None and b is not None]
        self.forward_off = max((apart_by(a, b) for a, b in pairs), default=0.0)
        return self.forward_off <= SAME


class _Own(_Run):
    """In its own format: of kernels that know no other."""

    wide = False

    def __init__(self, applied: Applied, unit: float, drawn: Sequence[torch.dtype]) -> None:
        super().__init__(applied, unit, drawn)
        self.step = unit

    def forward(self, values: dict[int, Tensor]) -> list[Tensor | None]:
        return self.applied.forward({place: copy(one) for place, one in values.items()}, wide=False)

    def backward(self, values: dict[int, Tensor]) -> list[Tensor]:
        return self.applied.backward(values, self.applied.gradients, wide=False)

    def scattered(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        for seed in range(DRAWS):
            noise = Rounded(2 * self.unit, seed)
            near = {place: noise.rounded(one) for place, one in values.items()}
            gradients = [None if one is None else noise.rounded(one) for one in self.applied.gradients]
            yield self.applied.backward(near, gradients, wide=False)

    bounds_of = scattered

    def given(self, tensor: Tensor) -> Tensor:
        return tensor

    def holds_for(self, results: Gradients) -> bool:
        return True
