"""The verdict in plain words, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from limpid.compare.verdict import Difference, Verdict

SHOWN = 8


def lines(verdict: Verdict) -> list[Text]:
    """What was compared, the verdict, and where it comes from."""
    return [*_head(verdict), *_verdict(verdict), *_table(verdict)]


def _head(verdict: Verdict) -> list[Text]:
    rows, positions = verdict.first.tokens.shape
    forward = sum(difference.kind == "forward" for difference in verdict.differences)
    lines = [
        Text.assemble(
            (verdict.first.name, "bold"), " against ", (verdict.second.name, "bold"),
            f"  {rows} × {positions} tokens, {forward} quantities and {len(verdict.differences) - forward} gradients "
            "observed in both\n",
        )
    ]  # fmt: skip
    weights = verdict.weights
    if weights.differing:
        lines.append(
            Text(
                f"not the same weights: {len(weights.differing)} of {weights.count} parameters differ, "
                f"{weights.differing[0]} by {weights.worst:.2g} of its largest entry",
                "bold red",
            )
        )
    lines += [Text(f"their configurations differ: {option}", "bold yellow") for option in verdict.options]
    return lines


def _verdict(verdict: Verdict) -> list[Text]:
    if not verdict.differences:
        return [Text("nothing to compare: no quantity is observed in both variants", "bold red")]
    where = verdict.first_disagreement
    if where is None:
        worst = max(verdict.differences, key=lambda difference: difference.worst)
        if verdict.bitwise and worst.worst == 0:
            return [Text("identical to the last bit", "bold green")]
        how = f"worst {worst.worst:.2g} of the bound at {_spelled(worst)}"
        return [Text.assemble(("identical up to rounding", "bold green"), f": {how}")]
    lines = [
        Text.assemble(
            ("not rounding", "bold red"),
            f": {_spelled(where)} differs by {where.worst:.3g} bounds{_where(where)} "
            f"(by {where.distance:.3g} where its size is {where.size:.3g})",
        )
    ]
    if verdict.outlier is not None:
        right, wrong = (verdict.second, verdict.first) if verdict.outlier == 0 else (verdict.first, verdict.second)
        lines.append(Text(f"  {wrong.name} departs from the mathematics there; {right.name} agrees with it"))
    elif where.off[0] > 1:
        lines.append(Text("  both depart from the mathematics there"))
    for explanation in verdict.explanations[:3]:
        lines.append(
            Text.assemble(
                "  explained: ", (explanation.words, "bold"), f" (then it agrees, {explanation.worst:.2g} bounds)"
            )
        )
    if not verdict.explanations and where.kind == "forward" and verdict.outlier is not None:
        lines.append(Text("  no known fault explains it"))
    return lines


def _where(difference: Difference) -> str:
    if not difference.positions:
        return ""
    if len(difference.positions) == difference.length:
        return " at every position"
    if difference.positions == tuple(range(difference.positions[0], difference.length)):
        return f" from position {difference.positions[0]} on"
    shown = ", ".join(map(str, difference.positions[:SHOWN]))
    return f" at positions {shown}{' …' if len(difference.positions) > SHOWN else ''}"


def _spelled(difference: Difference) -> str:
    return difference.name if difference.kind == "forward" else f"grad({difference.name})"


def _table(verdict: Verdict) -> list[Text]:
    worst = sorted(verdict.differences, key=lambda difference: -difference.worst)[:SHOWN]
    lines = [Text("\nlargest differences, in bounds of rounding", "bold")]
    for difference in worst:
        colour = "green" if difference.holds else "red"
        lines.append(
            Text.assemble(
                f"  {_spelled(difference):<44}", (f"{difference.worst:8.3g}", colour),
                f"   from the mathematics: {difference.off[0]:.3g} and {difference.off[1]:.3g}",
            )
        )  # fmt: skip
    return lines


def document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain values, for JSON."""
    where, outlier = verdict.first_disagreement, verdict.outlier
    return {
        "first": verdict.first.name,
        "second": verdict.second.name,
        "agrees": verdict.agrees,
        "bitwise": verdict.bitwise,
        "weights": asdict(verdict.weights),
        "options": list(verdict.options),
        "first_disagreement": None if where is None else _in_json(where),
        "outlier": None if outlier is None else (verdict.first, verdict.second)[outlier].name,
        "explanations": [asdict(explanation) for explanation in verdict.explanations],
        "differences": [_in_json(difference) for difference in verdict.differences],
    }


def _in_json(difference: Difference) -> dict[str, Any]:
    plain = asdict(difference)
    plain |= {name: list(plain[name]) for name in ("index", "positions", "off")}
    return {key: str(value) if value == float("inf") else value for key, value in plain.items()}
