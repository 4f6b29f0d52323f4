"""What came of holding a compiled region against the code as it was written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Of a compiled region."""

    HOLDS = "holds"
    OTHER = "compiled otherwise"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Off:
    """A result or a gradient of compiled code, against the same in float64."""

    what: str
    off: float  # as a share of its size, or its largest entry's
    bound: float

    @property
    def share(self) -> float:
        return self.off / self.bound if self.bound else float("inf") if self.off else 0.0


@dataclass
class Region:
    """Compiled code in a step, where it stands, and what came of it."""

    name: str  # class of its module, or function
    module: str
    source: str  # file:line that called it
    calls: int = 1  # of it in the step; the first is compared
    verdict: Verdict = Verdict.UNCHECKED
    why: str = ""
    worst: Off | None = None
    is_anew: bool = False  # nothing that was compiled before fitted this call

    @property
    def said(self) -> str:
        """In words, without where it stands."""
        worst = self.worst
        if self.verdict is Verdict.UNCHECKED or worst is None:
            return f"not checked: {self.why}"
        anew = "; it was compiled for this, as nothing that was there fitted" if self.is_anew else ""
        if self.verdict is Verdict.HOLDS:
            return f"results and gradients of the code as written, {worst.share:.2g} of the bound{anew}"
        return (f"another {worst.what} than that of the code as written: off by {worst.off:.3g} of its size, where "
                f"rounding comes to {worst.bound:.2g}{anew}")  # fmt: skip

    def __str__(self) -> str:
        where = " ".join(part for part in (self.module or "(no module)", self.source) if part)
        return f"compiled {self.name} in {where}: {self.said}"
