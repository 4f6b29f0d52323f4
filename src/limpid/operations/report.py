"""What came of checking every operation of a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from limpid.adjoints.adjoint import Adjoint
from limpid.adjoints.adjoint import Verdict as AdjointVerdict
from limpid.operations.account import Account, account
from limpid.operations.call import ILL, Call, Check
from limpid.operations.document import RecordingDocument, document
from limpid.operations.gradients.projection import Projected
from limpid.operations.region import Region
from limpid.operations.region import Verdict as RegionVerdict

SHOWN = 8
"""Rows of a table."""
Precision = Literal["fp32", "bf16", "fp64"]


@dataclass(frozen=True)
class Part:
    """Operations that belong together."""

    name: str
    calls: int
    worst: float  # largest share of a bound
    error: float  # added to the loss


@dataclass(frozen=True)
class Again:
    """What takes a folder's step once more."""

    model: str  # its folder
    text: str
    precision: Precision


@dataclass
class Facts:
    """What is known of a step beside its calls."""

    title: str = "a step"
    fed: list[str] = field(default_factory=list)  # what the model was given, in words
    loss: float | None = None
    parameters: int = 0
    not_finite: str = ""  # the loss, a gradient or parameter after the step, the first of them; else nothing
    again: Again | None = None


@dataclass(frozen=True)
class Report:
    """Verdicts on the operations of a step, in their order."""

    calls: list[Call]
    facts: Facts = field(default_factory=Facts)
    began: float | None = None  # the number that the backward pass began at
    adjoints: list[Adjoint] = field(default_factory=list)  # backward passes by hand, in the order of the backward pass
    projected: dict[str, Projected] = field(default_factory=dict)  # numbers of the gradient that were asked for
    exact: dict[str, float] = field(default_factory=dict)  # the loss, or one of these, in float64, where it was told
    regions: list[Region] = field(default_factory=list)  # compiled, in the order in which they are first called

    def document(self) -> RecordingDocument:
        """All of it as plain values: for JSON, the page, and whoever compares it."""
        return document(self)

    @property
    def arithmetic(self) -> list[Call]:
        """Those that compute: all but movement of data and what is drawn."""
        return [call for call in self.calls if call.check in (Check.REDONE, Check.UNCHECKED)]

    @property
    def unchecked(self) -> list[Call]:
        return [call for call in self.calls if call.check is Check.UNCHECKED]

    @property
    def wrong(self) -> list[Call]:
        """Calls with a result beyond rounding."""
        return [call for call in self.calls if call.is_wrong]

    @property
    def not_adjoint(self) -> list[Adjoint]:
        """Custom Functions whose backward pass is not that of their forward pass."""
        return [one for one in self.adjoints if one.verdict is AdjointVerdict.WRONG]

    @property
    def compiled_otherwise(self) -> list[Region]:
        """Compiled regions that give another result or gradient than the code as it was written."""
        return [one for one in self.regions if one.verdict is RegionVerdict.OTHER]

    @property
    def worst(self) -> Call | None:
        """The call with the largest share of its bound."""
        return max((call for call in self.calls if call.worst is not None), key=_share, default=None)

    @property
    def checked(self) -> float:
        """Share of the arithmetic operations, additions and multiplications counted, that was done again."""
        whole = sum(call.operations for call in self.arithmetic)
        return sum(call.operations for call in self.arithmetic if call.check is Check.REDONE) / whole if whole else 1.0

    @property
    def checked_calls(self) -> float:
        """Share of the arithmetic calls."""
        return 1 - len(self.unchecked) / len(self.arithmetic) if self.arithmetic else 1.0

    def by_module(self) -> list[Part]:
        """Modules in the order in which they are first called."""
        groups: dict[str, list[Call]] = {}
        for call in self.calls:
            groups.setdefault(call.module, []).append(call)
        return [
            Part(name, len(calls), max(map(_share, calls)), sum(call.error + call.inherited_error for call in calls))
            for name, calls in groups.items()
        ]

    @property
    def error(self) -> float:
        """By how much rounding moved the number that the backward pass began at, to first order: Σ ⟨ḡ, δ⟩."""
        return sum(call.error + call.inherited_error for call in self.calls)

    @property
    def beyond(self) -> float:
        """By how much it moved that beyond the first order."""
        return sum(call.beyond for call in self.calls)

    def error_of(self, of: str = "loss", exact: float | None = None) -> Account:
        """The account of it: parts by module and operation; `exact` is the number in float64, to be held against.

        of     the loss, or one of the `errors_of` that the recording was asked for
        exact  that number in float64; when left out, what `Recording.in_float64` gave last, if it was called

        Raises  ConfigError for what was not asked for, or no gradient came to
        """
        return account(self, of, self.exact.get(of) if exact is None else exact)

    def errors(self) -> list[Call]:
        """Calls by the size of what their rounding adds to it."""
        return sorted((call for call in self.calls if call.error), key=lambda call: -abs(call.error))

    def amplifying(self) -> list[Call]:
        """Calls that are badly conditioned on this data, the worst first: they lose digits of what came in."""
        return sorted((call for call in self.calls if call.condition >= ILL), key=lambda call: -call.condition)

    def __str__(self) -> str:
        of_gradients = [f"\n{self.error_of(of)}" for of in self.projected]
        return "\n".join([*self._verdicts(), *self._account(), *self._amplifying(), *of_gradients])

    def _amplifying(self) -> list[str]:
        found = self.amplifying()
        lines = [f"  × {call.condition:.3g}  {call.operation} {call.dtype} in {call.module}" for call in found[:SHOWN]]
        said = f"relative errors of what came in are amplified ten times or more by {len(found):,}:"
        return [said, *lines] if found else []

    def _verdicts(self) -> list[str]:
        checked = [call for call in self.arithmetic if call.check is Check.REDONE]
        lines = [
            f"{100 * self.checked:.2f}% of the arithmetic checked: {len(checked):,} of {len(self.arithmetic):,} calls; "
            f"{sum(call.check is Check.MOVED for call in self.calls):,} that move data, "
            f"{sum(call.check is Check.DRAWN for call in self.calls):,} that draw or reserve{self._compiled()}"
        ]
        lines += [f"  {one}" for one in self.regions if one.verdict is not RegionVerdict.HOLDS]
        for (operation, why), count in Counter((call.operation, call.why) for call in self.unchecked).most_common():
            lines.append(f"not checked: {count} × {operation}, {why}")
        lines += self._adjoints()
        if self.wrong:
            lines.append(f"{len(self.wrong):,} beyond rounding, the first of them:")
            lines += [f"  {call}" for call in self.wrong[:SHOWN]]
        elif self.worst is not None:
            which = "what was checked is" if self.unchecked else "all"
            lines.append(f"{which} within rounding; nearest to its bound: {self.worst}")
        return lines

    def _compiled(self) -> str:
        """That compiled code ran as it was written, and how much of it was held against that."""
        held = sum(one.verdict is RegionVerdict.HOLDS for one in self.regions)
        return f"; compiled code ran as written, {held:,} of {len(self.regions):,} regions hold" if self.regions else ""

    def _adjoints(self) -> list[str]:
        """Backward passes by hand: how many hold, then each that does not."""
        if not self.adjoints:
            return []
        held = sum(one.verdict is AdjointVerdict.HOLDS for one in self.adjoints)
        said = f"of {held:,} of {len(self.adjoints):,} calls of custom Functions, backward is the adjoint of forward"
        rest = Counter(f"{one.function}: {one.said}" if one.verdict is AdjointVerdict.UNCHECKED else str(one)
                       for one in self.adjoints if one.verdict is not AdjointVerdict.HOLDS)  # fmt: skip
        return [said, *(f"  {count} × {one}" if count > 1 else f"  {one}" for one, count in rest.items())]

    def _account(self) -> list[str]:
        found = self.errors()[:SHOWN]
        lines = [f"  {call.error:+.3g}  {call.operation} {call.dtype} in {call.module}" for call in found]
        began = "what backward() began at (the loss, times its scale where there is one)"
        said = f"rounding moved {began} by {self.error:+.3g} to first order, {self.beyond:+.3g} beyond; most of it by"
        return [said, *lines] if found else []

    def _repr_html_(self) -> str:
        from limpid.operations.notebook import page

        return page(self.document())


def _share(call: Call) -> float:
    return call.worst.share if call.worst is not None else -1.0
