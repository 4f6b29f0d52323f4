"""The verdict in plain words, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from limpid.compare.verdict import Difference, Verdict

SHOWN = 8


def tell(found: Verdict, console: Console) -> None:
    """Print what was compared, the verdict, and where it comes from."""
    for line in (*_head(found), *_verdict(found), *_table(found)):
        console.print(line, soft_wrap=True)


def _head(found: Verdict) -> list[Text]:
    rows, positions = found.first.tokens.shape
    forward = sum(one.kind == "forward" for one in found.differences)
    lines = [
        Text.assemble(
            (found.first.name, "bold"), " against ", (found.second.name, "bold"),
            f"  {rows} × {positions} tokens, {forward} quantities and {len(found.differences) - forward} gradients "
            "that both show\n",
        )
    ]  # fmt: skip
    weights = found.weights
    if weights.differing:
        lines.append(
            Text(
                f"not the same weights: {len(weights.differing)} of {weights.count} parameters differ, "
                f"{weights.differing[0]} by {weights.worst:.2g} of its largest entry",
                "bold red",
            )
        )
    lines += [Text(f"their configurations differ: {option}", "bold yellow") for option in found.options]
    return lines


def _verdict(found: Verdict) -> list[Text]:
    if not found.differences:
        return [Text("nothing to compare: no quantity is shown by both ways", "bold red")]
    where = found.first_disagreement
    if where is None:
        worst = max(found.differences, key=lambda one: one.worst)
        if found.bitwise and worst.worst == 0:
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
    if found.culprit is not None:
        right, wrong = (found.second, found.first) if found.culprit == 0 else (found.first, found.second)
        lines.append(Text(f"  {wrong.name} leaves the mathematics there; {right.name} agrees with it"))
    elif where.off[0] > 1:
        lines.append(Text("  both leave the mathematics there"))
    for cause in found.causes[:3]:
        lines.append(
            Text.assemble("  explained: ", (cause.words, "bold"), f" (then it agrees, {cause.worst:.2g} bounds)")
        )
    if not found.causes and where.kind == "forward" and found.culprit is not None:
        lines.append(Text("  none of the slips known here explains it"))
    return lines


def _where(one: Difference) -> str:
    if not one.positions:
        return ""
    if len(one.positions) == one.length:
        return " at every position"
    if one.positions == tuple(range(one.positions[0], one.length)):
        return f" from position {one.positions[0]} on"
    shown = ", ".join(map(str, one.positions[:SHOWN]))
    return f" at positions {shown}{' …' if len(one.positions) > SHOWN else ''}"


def _spelled(one: Difference) -> str:
    return one.name if one.kind == "forward" else f"grad({one.name})"


def _table(found: Verdict) -> list[Text]:
    worst = sorted(found.differences, key=lambda one: -one.worst)[:SHOWN]
    lines = [Text("\nfarthest apart, in bounds of rounding", "bold")]
    for one in worst:
        colour = "green" if one.holds else "red"
        lines.append(
            Text.assemble(
                f"  {_spelled(one):<44}", (f"{one.worst:8.3g}", colour),
                f"   from the mathematics: {one.off[0]:.3g} and {one.off[1]:.3g}",
            )
        )  # fmt: skip
    return lines


def document(found: Verdict) -> dict[str, Any]:
    """Everything that was found, as JSON."""
    where = found.first_disagreement
    return {
        "first": found.first.name,
        "second": found.second.name,
        "agrees": found.agrees,
        "bitwise": found.bitwise,
        "weights": asdict(found.weights),
        "options": list(found.options),
        "first_disagreement": None if where is None else _in_json(where),
        "leaves_the_mathematics": None if found.culprit is None else (found.first, found.second)[found.culprit].name,
        "causes": [asdict(cause) for cause in found.causes],
        "differences": [_in_json(one) for one in found.differences],
    }


def _in_json(one: Difference) -> dict[str, Any]:
    found = {**asdict(one), "index": list(one.index), "positions": list(one.positions), "off": list(one.off)}
    return {key: str(value) if value == float("inf") else value for key, value in found.items()}
