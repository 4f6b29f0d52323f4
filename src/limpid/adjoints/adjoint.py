"""What came of holding a backward pass by hand against its forward pass: ⟨ȳ, J v⟩ = ⟨x̄, v⟩ along random directions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

from limpid.adjoints.declared import declared_as


class Verdict(StrEnum):
    """Of a custom Function, or another operation that PyTorch has no backward pass of its own for."""

    HOLDS = "holds"
    WRONG = "not the adjoint"
    SURROGATE = "surrogate"  # of a forward pass that is constant between steps, or gives its input back
    UNCHECKED = "not checked"


class Along(NamedTuple):
    """One direction v in one input: what its derivative is there, and what the backward pass says."""

    place: int  # of the input, among the tensors that it was given
    given: float  # ⟨x̄, v⟩
    expected: float  # ⟨ȳ, J v⟩
    bound: float  # that they may be apart by
    size: float  # of both, where nothing cancels

    @property
    def is_apart(self) -> bool:
        return isfinite(self.bound) and not abs(self.given - self.expected) <= self.bound

    @property
    def is_told(self) -> bool:
        """Whether the bound tells a derivative from none."""
        return self.bound <= self.size / 8


@dataclass
class Adjoint:
    """A backward pass by hand, where it stands, and what came of it."""

    number: int
    function: str  # as its author calls it
    module: str
    source: str  # file:line that asked for it
    dtype: str
    shapes: list[tuple[int, ...]]  # of the inputs that it owes gradients
    names: list[str]  # of these inputs
    verdict: Verdict = Verdict.UNCHECKED
    why: str = ""
    worst: Along | None = None
    along: Sequence[Along] = field(default=(), repr=False)
    kind: type | None = field(default=None, repr=False)

    def declare(self, surrogates: Collection[type] = ()) -> bool:
        """Whether its author says that it is another gradient on purpose; then it is no fault.

        One that came out otherwise in the step than it does from the same inputs stays wrong: nobody means that.
        """
        found = declared_as(self.kind, self.function, surrogates)
        if self.verdict is not Verdict.WRONG or self.why or found is None:
            return False
        self.verdict, self.why = Verdict.SURROGATE, found
        return True

    def declared(self, surrogates: Collection[type]) -> Adjoint:
        """The same, with what is declared for this once."""
        found = replace(self)
        found.declare(surrogates)
        return found

    @property
    def ratio(self) -> float | None:
        """⟨x̄, v⟩ / ⟨ȳ, J v⟩ of the worst input, where it is the same along all directions."""
        if self.worst is None or not self.worst.is_apart:
            return None
        own = [one for one in self.along if one.place == self.worst.place and one.expected and one.is_told]
        ratios = [one.given / one.expected for one in own]
        allowed = max((one.bound / abs(one.expected) for one in own), default=0.0)
        alike = len(ratios) > 1 and max(ratios) - min(ratios) <= 2 * allowed
        return sum(ratios) / len(ratios) if alike else None

    @property
    def said(self) -> str:
        """In words, without where it stands."""
        worst = self.worst
        if self.verdict is Verdict.UNCHECKED:
            return f"not checked: {self.why}"
        if worst is None:
            return self.why or str(self.verdict)
        if self.verdict is Verdict.HOLDS:
            return f"the adjoint of its forward pass, {_share(worst):.2g} of the bound"
        what = "not the adjoint of its forward pass" if self.verdict is Verdict.WRONG else f"a surrogate ({self.why})"
        numbers = f"⟨x̄, v⟩ = {worst.given:.6g}, ⟨ȳ, J v⟩ = {worst.expected:.6g} ± {worst.bound:.2g}"
        of = f"the gradient of {self.names[worst.place]} is "
        of += _another(worst) if self.ratio is None else f"{self.ratio:.4g} times that along all directions"
        said = f"its backward pass is {what}: {of}; {numbers}"
        return f"{said}; {self.why}" if self.why and self.verdict is Verdict.WRONG else said

    def __str__(self) -> str:
        where = " ".join(part for part in (self.module or "(no module)", self.source) if part)
        return f"{self.function} in {where}: {self.said}"


def _another(one: Along) -> str:
    """By how much, as a share of what both come to where nothing cancels."""
    return f"another, off by {abs(one.given - one.expected) / one.size:.2g} of its size" if one.size else "another"


def _share(one: Along) -> float:
    return abs(one.given - one.expected) / one.bound if one.bound else 0.0
