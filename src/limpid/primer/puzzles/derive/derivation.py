"""Derive a backward pass: the reader types the gradient, and it is held against central differences of the forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from limpid.maths.foundations import finite_difference
from limpid.maths.operation import Array
from limpid.primer.exercise import shown
from limpid.primer.grade import Grade
from limpid.primer.notebook import asked_html
from limpid.primer.progress import Sitting, now
from limpid.primer.puzzles.derive import of_matrices, of_vectors
from limpid.primer.puzzles.derive.case import Case
from limpid.primer.puzzles.derive.expression import OFFERED, evaluated
from limpid.primer.puzzles.puzzle import Choice

CASES = (*of_vectors.CASES, *of_matrices.CASES)
NAME = "derive"
DRAWS = 3
"""Sets of numbers on which an expression has to be right."""
STEP = 1e-3
"""Of the differences; they are taken at half of it too, and both together have an error of its fourth power."""
SAME = 1e-9
"""Relative: two expressions of the same thing, summed in another order."""


class Measured(NamedTuple):
    """A gradient by central differences, and how far it may be off."""

    gradient: Array
    within: Array


@dataclass(frozen=True)
class Derivation:
    """One operation with numbers to try a gradient on."""

    case: Case
    seed: int
    draws: tuple[dict[str, Any], ...] = field(compare=False)
    """The seed says which."""

    @property
    def name(self) -> str:
        return NAME

    @property
    def said(self) -> str:
        return f"{NAME} --seed {self.seed}"

    @property
    def question(self) -> str:
        case = self.case
        sizes = ", ".join(f"{name}{_size(value)}" for name, value in self.names[0].items())
        loss = f"A loss L comes of {case.out}, and {case.bar} = ∂L/∂{case.out} is known. " if case.bar else ""
        return (
            f"{case.name[0].upper()}{case.name[1:]}: {case.says}.\n{loss}Derive ∂L/∂{case.of}.\n"
            f"At hand are {sizes}.\nWrite it with {OFFERED}."
        )

    @property
    def asked(self) -> str:
        """All of the question: there is nothing to choose from."""
        return self.question

    @property
    def choices(self) -> tuple[Choice, ...]:
        return ()

    @property
    def looks(self) -> dict[str, str]:
        """There is no trace of it."""
        return {}

    @property
    def opens(self) -> str:
        return self.case.opens

    @property
    def solution(self) -> str:
        return f"{self.case.steps}\n{self.case.right}"

    @property
    def answer(self) -> str:
        return self.case.right

    @property
    def hints(self) -> tuple[str, ...]:
        return self.case.hints

    def sitting(self, tries: tuple[str, ...], hints: int = 0, gave_up: bool = False) -> Sitting:
        return Sitting(self.name, self.said, now().isoformat(), tries, hints, gave_up)

    def _repr_html_(self) -> str:
        return asked_html(self)

    @cached_property
    def names(self) -> tuple[dict[str, Any], ...]:
        """What an expression may name: inputs, the output's gradient, what the forward pass left; for each draw."""
        return tuple(
            {name: value for name, value in (given | self.case.known(given)).items() if name != "t"}
            for given in self.draws
        )

    @cached_property
    def measured(self) -> tuple[Measured, ...]:
        """By central differences of the forward pass, for each draw."""
        return tuple(_measured(self.case, given) for given in self.draws)

    @cached_property
    def derived(self) -> tuple[dict[str, Array], ...]:
        """By the hand-derived backward pass, of every input."""
        return tuple(self.case.done.backward(given) for given in self.draws)

    def made(self, text: str) -> list[Array]:
        """What an expression gives on each draw; raises Unreadable."""
        return [evaluated(text, names) for names in self.names]

    def judged(self, text: str, tried: int = 0) -> Grade:
        """What a gradient is worth; raises Unreadable."""
        typed = self.made(text)
        if self._right(typed):
            off, within = self._distance(typed)
            near = f"within {off:.0e} of central differences of the forward pass, themselves good to {within:.0e}"
            return Grade("right", "right", f"Right: on {DRAWS} draws it is {near}, and it is limpid's backward pass.")
        for note, says, wrong in self._slips():
            if _same(typed, wrong):
                return Grade("slip", note, f"{says} {self._where(typed)}".strip())
            if _same(typed, [-one for one in wrong]):
                return Grade("slip", f"{note}+sign", f"{says} And the sign is turned. {self._where(typed)}".strip())
        if ratio := _ratio(typed, [one[self.case.of] for one in self.derived]):
            return Grade("slip", "factor", f"Right but for a number: it is {shown(ratio, 4)} times as much everywhere.")
        hint = self.hints[min(tried, len(self.hints) - 1)]
        shape = self.measured[0].gradient.shape
        if typed[0].shape != shape:
            return Grade("wrong", "shape", f"This has {_shaped(typed[0].shape)}, and ∂L/∂{self.case.of} has "
                         f"{_shaped(shape)}, that of {self.case.of}. {hint}")  # fmt: skip
        return Grade("wrong", "wrong", f"{self._where(typed)} {hint}")

    def _right(self, typed: list[Array]) -> bool:
        by_hand = [one[self.case.of] for one in self.derived]
        near = all(
            one.shape == measured.gradient.shape and bool((np.abs(one - measured.gradient) <= measured.within).all())
            for one, measured in zip(typed, self.measured, strict=True)
        )
        return near and _same(typed, by_hand)

    def _distance(self, typed: list[Array]) -> tuple[float, float]:
        """How far from the differences, and how good those are, at most."""
        off = [np.abs(one - measured.gradient).max() for one, measured in zip(typed, self.measured, strict=True)]
        return float(max(off)), float(max(one.within.max() for one in self.measured))

    def _slips(self) -> Iterator[tuple[str, str, list[Array]]]:
        """Those of the operation, and those of any."""
        right = [one[self.case.of] for one in self.derived]
        yield "sign", "The size is right, the sign is turned.", [-one for one in right]
        for slip in self.case.slips:
            yield slip.note, slip.says, self.made(slip.way)
        if right[0].ndim == 2:
            turned = f"It is transposed: ∂L/∂{self.case.of} has the shape of {self.case.of}."
            yield "transposed", turned, [one.T for one in right]
        for other, bar in self.derived[0].items():
            if other != self.case.of and bar is not None:
                says = f"That is ∂L/∂{other}: asked for is ∂L/∂{self.case.of}."
                yield "other-argument", says, [one[other] for one in self.derived]
        if upstream := self.case.bar:
            ones = [{**given, upstream: np.ones_like(given[upstream])} for given in self.draws]
            says = f"That is the slope where {upstream} is 1: what comes from above, {upstream}, multiplies."
            yield "no-upstream", says, [self.case.done.backward(given)[self.case.of] for given in ones]

    def _where(self, typed: list[Array]) -> str:
        """The first entry that is not right, with the ratio."""
        for one, measured in zip(typed, self.measured, strict=True):
            if one.shape != measured.gradient.shape:
                return ""
            wrong = np.argwhere(np.abs(one - measured.gradient) > measured.within)
            if len(wrong):
                place = tuple(map(int, wrong[0]))
                made, true = float(one[place]), float(measured.gradient[place])
                ratio = f", {shown(made / true, 4)} times as much" if abs(true) > 1e-6 else ""
                at = f"At {self.case.of}[{', '.join(map(str, place))}]" if place else "Here"
                return f"{at} it gives {shown(made, 4)}, and central differences {shown(true, 4)}{ratio}."
        return ""


def derivation(seed: int) -> Derivation:
    """An operation and numbers; seeds one after the other go through all operations."""
    case = CASES[seed % len(CASES)]
    rng = np.random.Generator(np.random.PCG64(seed))
    first = {name: np.asarray(value) for name, value in case.draw(rng).items()}
    return Derivation(case, seed, (first, *(_again(first, rng) for _ in range(DRAWS - 1))))


def _again(first: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Other numbers of the same sizes and signs; targets stay."""
    return {
        name: value if value.dtype.kind == "i" else value * rng.uniform(0.5, 1.5, value.shape)
        for name, value in first.items()
    }


def _measured(case: Case, given: dict[str, Any]) -> Measured:
    """Extrapolated from two steps; what the second changed, and rounding, bound the error."""
    bar = given[case.bar] if case.bar else np.float64(1.0)

    def loss(moved: Array) -> float:
        return float((bar * case.done.forward({**given, case.of: moved})).sum())

    wide, narrow = (finite_difference(loss, given[case.of], step) for step in (STEP, STEP / 2))
    gradient = np.asarray((4 * narrow - wide) / 3)
    rounding = 64 * np.finfo(np.float64).eps * (abs(loss(given[case.of])) + np.abs(bar).sum()) / STEP
    return Measured(gradient, np.abs(gradient - narrow) + rounding)


def _same(typed: list[Array], other: list[Array]) -> bool:
    """Whether these are the same numbers on every draw, up to the order of summation."""
    return all(
        a.shape == b.shape and float(np.abs(a - b).max()) <= SAME * float(np.abs(b).max())
        for a, b in zip(typed, other, strict=True)
    )


def _ratio(typed: list[Array], right: list[Array]) -> float | None:
    """The one number by which all draws differ, if there is one."""
    if typed[0].shape != right[0].shape:
        return None
    ratio = float((typed[0] * right[0]).sum() / (right[0] * right[0]).sum())
    return ratio if ratio and _same(typed, [ratio * one for one in right]) else None


def _size(value: Any) -> str:
    if np.ndim(value):
        return f" ({' × '.join(map(str, np.shape(value)))})"
    return f" = {value}" if isinstance(value, int) else " (a number)"


def _shaped(shape: tuple[int, ...]) -> str:
    return f"shape {' × '.join(map(str, shape))}" if shape else "no axis, it is a number"
