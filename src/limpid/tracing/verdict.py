"""How a comparison ends: it holds, a number is not finite, it lies beyond rounding, or it was not checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["run", "given", "forward", "backward", "update"]
"""What a check is of: the parts of the step in their order, of which `given` is the batch, and weights and moments
before the step; `run` is whether this is the step that the run took."""

Cause = Literal["given", "overflow", "intermediate overflow", "loss scale", "no value", "operation"]
"""Why a number is not finite although all that it follows from is.

given                  it came into the step so
overflow               the exact result lies beyond the format's largest number
intermediate overflow  the exact result does not, but what is added up on the way may
loss scale             an overflow that is the loss scale's alone; the step was skipped, as float16 is meant to work
no value               the mathematics has no finite value there either
operation              none of these: the operation itself is at fault
"""


@dataclass(frozen=True)
class Holds:
    """Every entry was compared, and rounding explains every difference."""

    share: float  # largest |engine - exact| / bound, at most 1
    verdict: Literal["holds"] = "holds"


@dataclass(frozen=True)
class NotFinite:
    """Entries that are not finite although everything that they follow from is: an origin."""

    quantity: str  # grad(NAME) for a gradient, m(NAME) and v(NAME) for moments
    index: tuple[int, ...]  # of the first such entry
    value: float  # nan, inf or -inf
    count: int  # such entries in this array
    format: str
    largest: float  # the largest number of that format
    exact: float  # what the mathematics gives there; nan for what came into the step
    cause: Cause
    explanation: str
    verdict: Literal["not finite"] = "not finite"

    @property
    def fault(self) -> bool:
        """Whether something is wrong: a step skipped for its loss scale is not."""
        return self.cause != "loss scale"

    @property
    def address(self) -> str:
        return address(self.quantity, self.index)


@dataclass(frozen=True)
class Beyond:
    """An entry that rounding does not explain: the one that lies farthest beyond its bound."""

    index: tuple[int, ...]
    engine: float
    exact: float
    bound: float
    share: float  # |engine - exact| / bound, above 1
    verdict: Literal["beyond"] = "beyond"


@dataclass(frozen=True)
class Unchecked:
    """Some entries follow from numbers that are not finite: there is nothing to compare them with."""

    why: str
    share: float | None  # largest |engine - exact| / bound of the entries that were compared; None where none was
    verdict: Literal["not checked"] = "not checked"


Verdict = Holds | NotFinite | Beyond | Unchecked


@dataclass(frozen=True)
class Check:
    """One array of the engine against the mathematics, which was given the engine's own inputs."""

    name: str
    kind: Kind
    verdict: Verdict
    entries: int
    compared: int  # entries that were really compared
    worst: float = 0.0  # largest |engine - expected| / bound of those; above 1 is not rounding
    index: tuple[int, ...] = ()  # of that entry
    engine: float = 0.0
    expected: float = 0.0
    bound: float = 0.0
    over: str = ""  # which slice lies along itself, where that and no entry is the worst: then engine is a factor
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", isinstance(self.verdict, Holds))

    @property
    def origin(self) -> NotFinite | None:
        """Where numbers stop being finite, if that is here."""
        return self.verdict if isinstance(self.verdict, NotFinite) else None


def origins(checks: Sequence[Check]) -> list[NotFinite]:
    """Every place where numbers stop being finite, in the order of the checks."""
    return [check.origin for check in checks if check.origin is not None]


def first_beyond(checks: Sequence[Check]) -> Check | None:
    """The first comparison that rounding does not explain."""
    return next((check for check in checks if isinstance(check.verdict, Beyond)), None)


def address(name: str, index: tuple[int, ...]) -> str:
    """An entry as one writes it: name[i, j]."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def array_name(name: str) -> str:
    """A parameter or moment as one writes it: m(NAME) for m/NAME."""
    kind, _, parameter = name.partition("/")
    return f"{kind}({parameter})" if parameter else name
