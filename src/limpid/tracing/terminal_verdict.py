"""How a comparison ended, in the terminal: one check, and the line that counts."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from limpid.latex import readable
from limpid.theme import ALARM, FAULT, GOOD, WARNING
from limpid.tracing.document import StepDocument, VerdictDocument
from limpid.tracing.verdict import Beyond, Check, Holds, NotFinite, Unchecked, address

NEAR = 0.95
"""Share of a bound from which it is said why that is none too near."""
KINDS = {
    "forward": "quantities",
    "backward": "gradients",
    "update": "clipping, rate, moments and parameters",
}


def severity(check: Check) -> tuple[int, float]:
    """What is worth showing first: not finite, beyond rounding, not checked, then the nearest to its bound."""
    return (Holds, Unchecked, Beyond, NotFinite).index(type(check.verdict)), check.worst


def shown(check: Check | None, unit: str = " of bound") -> Text:
    """How a check ended, in units of what rounding allows."""
    match None if check is None else check.verdict:
        case None:
            return Text()
        case Holds(share=share):
            return Text(f"✓ {share:.2f}{unit}" if share else "✓ equal", GOOD)
        case NotFinite() as origin:
            style = ALARM if origin.fault else WARNING
            return Text(f"✗ NOT FINITE: {origin.count:,} from {origin.address} = {origin.value:g} on", style)
        case Beyond(share=share):
            return Text(f"✗ OFF by {share:.3g} bounds", ALARM)
        case Unchecked(why=why):
            return Text(f"– not checked: {why}", WARNING)


def before_all_else(step: StepDocument) -> Iterator[Text]:
    """What makes the rest of the step's story moot: that it is another step, or where numbers stop being finite."""
    if _of_another_run(step):
        yield _another_step(step)
    if step.verdict.not_finite:
        yield _not_finite(step.verdict)


def verdict(step: StepDocument) -> Text:
    """The line that counts: first what is not finite, then what rounding does not explain."""
    found = step.verdict
    if _of_another_run(step):
        return _another_step(step)
    counted = ", ".join(f"{count.holds} of {count.checks} {KINDS[count.kind]}" for count in found.counts)
    worst = found.worst
    if found.verdict == "holds":
        return Text.assemble(
            ("\nagrees", f"bold {GOOD}"),
            f"  {counted} lie within their rounding bounds; {_paths(found)}; "
            f"worst: {worst.name} ({worst.kind}), {worst.worst:.2f} of its bound",
            _at_the_bound(worst.worst, step.precision["compute"]),
            _as_written(step),
        )
    line = _not_finite(found)
    if found.first_disagreement is not None:
        first = found.first_disagreement
        line.append("\nDISAGREES", f"bold {FAULT}")
        line.append(f"  first at {first.name} ({first.kind}): {_written_out(step, first)}")
    line.append(f"\n  {counted} lie within their rounding bounds; {_paths(found)}")
    if found.not_checked:
        line.append(f"; {found.not_checked} not checked: input not finite")
    line.append(f"; worst: {worst.name} ({worst.kind}), {worst.worst:.3g} bounds")
    return line


def _at_the_bound(share: float, compute: str) -> str:
    """Why a share of 1 is no near miss where results are rounded to few digits."""
    if share < NEAR or compute not in ("bf16", "fp16"):
        return ""
    return (
        f"\n  rounding a result to {compute} once takes it up to half a unit off, and is the whole bound: 1.00 is usual"
    )


def _of_another_run(step: StepDocument) -> bool:
    """Whether this is not the step that its run took."""
    first = step.verdict.first_disagreement
    return first is not None and first.kind == "run"


def _another_step(step: StepDocument) -> Text:
    """What differs from what the run wrote down, before anything else: value, expectation, way out."""
    assert step.written is not None
    one = next(one for one in step.written.checks if not one.check.holds)
    check = one.check
    allowed = f", rounding allows ± {check.bound:.2g}" if check.bound else ""
    return Text.assemble(
        ("\nNOT THE RUN'S STEP", f"bold {FAULT}"),
        f"  {address(check.name, check.index)} is {check.engine:.12g} here, {check.expected:.12g} in "
        f"{one.written_in}{allowed}\n  {one.way_out}",
    )


def _as_written(step: StepDocument) -> str:
    """That it is the step that its run took, as far as that could be compared."""
    if step.written is None:
        return ""
    lines = [
        f"; batch, log and checkpoints of {step.written.run} say the same ({len(step.written.checks)} comparisons)"
    ]
    return "\n  not compared: ".join([*lines, *step.written.not_compared])


def _paths(found: VerdictDocument) -> str:
    """What was checked on which path."""
    if not found.fast:
        return "all on the plain path: this record has no quantities of the one that trains"
    beside = f", {found.plain} that its kernels never form beside it" if found.plain else ""
    return f"{found.fast} quantities on the path that trains{beside}"


def _not_finite(found: VerdictDocument) -> Text:
    """The first origin of what is not finite, and the others."""
    first, line = found.origin, Text()
    if first is None:
        return line
    line.append("\nNOT FINITE" if first.fault else "\nSKIPPED", f"bold {FAULT if first.fault else WARNING}")
    entries = "entry" if first.count == 1 else "entries"
    line.append(f"  first at {first.address} = {first.value:g} ({first.format}, {first.count:,} such {entries})")
    line.append(f": {first.explanation}")
    others = [origin for origin in found.not_finite if origin != first]
    if others:
        line.append(f"\n  and apart from that at {', '.join(origin.address for origin in others[:4])}")
        line.append(f" and {len(others) - 4} more" if len(others) > 4 else "")
    return line


def _written_out(step: StepDocument, check: Check) -> str:
    at = f"[{', '.join(map(str, check.index))}]" if check.index else ""
    if check.over:
        return f"over {check.over} it is {check.engine:.6g} × the mathematics, rounding allows 1 ± {check.bound:.2g}"
    line = f"engine{at} = {check.engine:.9g}, mathematics {check.expected:.9g}, rounding allows ± {check.bound:.2g}"
    made = next((quantity for quantity in step.quantities if quantity.name == check.name), None)
    if made is not None and check.kind == "forward":
        line += f"\n  {readable(made.equation)}   {made.source}"
    return line
