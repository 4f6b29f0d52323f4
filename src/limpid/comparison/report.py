"""The verdict in plain words."""

from __future__ import annotations

from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.comparison.difference import Difference
from limpid.comparison.observed import Observed
from limpid.comparison.verdict import Comparison
from limpid.theme import FAULT, GOOD, HEADING, WARNING
from limpid.tracing.verdict import Beyond, NotFinite, Unchecked, address

SHOWN = 8


def lines(comparison: Comparison) -> list[Text | Columns]:
    """What was compared, the verdict, and where it comes from."""
    kernels = [line for variant in (comparison.first, comparison.second) for line in _kernels(variant)]
    return [*_head(comparison), *_verdict(comparison), *kernels, *_table(comparison)]


def _head(comparison: Comparison) -> list[Text]:
    rows, positions = comparison.first.tokens.shape
    forward = sum(difference.kind == "forward" for difference in comparison.differences)
    gradients = sum(difference.kind == "backward" for difference in comparison.differences)
    lines = [
        Text.assemble(
            (comparison.first.name, HEADING), f" ({comparison.first.way}) against ",
            (comparison.second.name, HEADING), f" ({comparison.second.way})"
            f"  {rows} × {positions} tokens, {forward} quantities and {gradients} gradients "
            "observed in both\n",
        )
    ]  # fmt: skip
    weights = comparison.weights
    if weights.differing:
        lines.append(
            Text(
                f"not the same weights: {len(weights.differing)} of {weights.count} parameters differ, "
                f"{weights.differing[0]} by {weights.worst:.2g} of its largest entry",
                f"bold {FAULT}",
            )
        )
    lines += [Text(f"their configurations differ: {option}", f"bold {WARNING}") for option in comparison.options]
    return lines


def _verdict(comparison: Comparison) -> list[Text]:
    outcome, where = comparison.verdict, comparison.first_disagreement
    if isinstance(outcome, Unchecked):
        return [Text.assemble(("not checked", f"bold {FAULT}"), f": {outcome.why}")]
    if isinstance(outcome, NotFinite):
        return [Text.assemble(("not finite", f"bold {FAULT}"), f": {outcome.explanation}")]
    if where is None and isinstance(outcome, Beyond):
        return [
            Text.assemble(
                ("not rounding", f"bold {FAULT}"), ": what was observed agrees, but not each kernel by itself"
            )
        ]
    if where is None:
        worst = max(comparison.differences, key=lambda difference: difference.worst)
        if comparison.bitwise and worst.worst == 0:
            return [Text("identical to the last bit", f"bold {GOOD}")]
        how = f"worst {worst.worst:.2g} of the bound at {worst.title}"
        return [Text.assemble(("identical up to rounding", f"bold {GOOD}"), f": {how}")]
    lines = [
        Text.assemble(
            ("not rounding", f"bold {FAULT}"),
            f": {where.title} differs by {where.worst:.3g} bounds{_where(where)} "
            f"(by {where.distance:.3g} where its size is {where.size:.3g})",
        )
    ]
    if comparison.outlier is not None:
        right, wrong = (
            (comparison.second, comparison.first) if comparison.outlier == 0 else (comparison.first, comparison.second)
        )
        lines.append(Text(f"  {wrong.name} departs from the mathematics there; {right.name} agrees with it"))
    elif where.off[0] > 1:
        lines.append(Text("  both depart from the mathematics there"))
    for explanation in comparison.explanations[:3]:
        lines.append(
            Text.assemble(
                "  explained: ", (explanation.words, HEADING), f" (then it agrees, {explanation.worst:.2g} bounds)"
            )
        )
    if not comparison.explanations and where.kind == "forward" and comparison.outlier is not None:
        lines.append(Text("  no known fault explains it"))
    return lines


def _kernels(variant: Observed) -> list[Text]:
    """What came of redoing each kernel of a variant from its own inputs."""
    if not variant.kernels:
        return []
    wrong = [check for check in variant.kernels if not check.holds]
    head = Text(f"each kernel of {variant.name} redone from its own inputs: ")
    if not wrong:
        worst = max(variant.kernels, key=lambda check: check.worst)
        head.append(f"all {len(variant.kernels)} hold", f"bold {GOOD}")
        return [head.append(f", worst {worst.worst:.2g} of the bound at {worst.name}")]
    head.append(f"{len(wrong)} of {len(variant.kernels)} do not hold", f"bold {FAULT}")
    lines = [
        Text(
            f"  {address(check.name, check.index)} is {check.engine:.6g}, from its inputs {check.expected:.6g}"
            f" ± {check.bound:.1g}"
        )
        for check in wrong[:SHOWN]
    ]
    return [head, *lines]


def _where(difference: Difference) -> str:
    if not difference.positions:
        return ""
    if len(difference.positions) == difference.length:
        return " at every position"
    if difference.positions == tuple(range(difference.positions[0], difference.length)):
        return f" from position {difference.positions[0]} on"
    shown = ", ".join(map(str, difference.positions[:SHOWN]))
    return f" at positions {shown}{' …' if len(difference.positions) > SHOWN else ''}"


def _table(comparison: Comparison) -> list[Text | Columns]:
    worst = sorted(comparison.differences, key=lambda difference: -difference.worst)[:SHOWN]
    rows: list[list[Cell]] = []
    for difference in worst:
        sign, colour = ("✓", GOOD) if difference.holds else ("✗", FAULT)
        off = [f"{one:.3g}" for one in difference.off]
        rows.append([f"  {difference.title}", Text(f"{sign} {difference.worst:.3g}", colour), *off])
    heads = ("  in bounds of rounding", "apart", "first from exact", "second from exact")
    return [Text(), Columns(heads, rows, right=(1, 2, 3))]
