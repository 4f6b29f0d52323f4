"""The catalogue in the terminal, or as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import track
from rich.text import Text

from limpid.equations.catalogue import STAGES, Entry
from limpid.equations.erratum import Erratum
from limpid.latex import readable
from limpid.theme import BACKWARD, FAULT, FORWARD, GOOD, HEADING, QUIET


def document(entries: tuple[Entry, ...], measured: bool, corrections: tuple[Erratum, ...]) -> dict[str, Any]:
    """Everything that is printed, as JSON."""
    return {
        "equations": [
            {
                "name": entry.name,
                "kind": entry.kind,
                "purpose": entry.purpose,
                "signature": entry.signature,
                "equation": entry.equation,
                "adjoint": list(entry.adjoint),
                "branch": entry.branch.value,
                "stages": list(entry.stages),
                "source": entry.source,
                "file": entry.file,
                "line": entry.line,
                **(checks(entry) if measured else {}),
            }
            for entry in entries
        ],
        "errata": [
            {"name": e.name, "claim": e.claim, "instead": e.instead, "numbers": dict(e.numbers())} for e in corrections
        ],
    }


def checks(entry: Entry) -> dict[str, Any]:
    """What the code behind an equation is found to do, now."""
    from dataclasses import asdict

    from limpid.equations.answers import KINDS
    from limpid.equations.measure import measure
    from limpid.equations.published import answered, reproduce

    rows = [reproduce(row) for row in answered() if entry.name in KINDS[row["kind"]].tests]
    return {
        "measured": [asdict(found) for found in measure(entry.name)],
        "published": [
            {"id": one.row["id"], "source": one.row["source"], "holds": one.holds, "deviation": one.worst}
            for one in rows
        ],
    }


def tell(entries: tuple[Entry, ...], measured: bool, corrections: tuple[Erratum, ...], console: Console) -> bool:
    """Print them, one with its whole text, several in brief; returns whether every check held."""
    everything_holds = True
    many = track(entries, "measuring", console=console, transient=True) if measured and len(entries) > 3 else entries
    stage = ""
    for entry in many:
        if len(entries) > 1 and entry.stages[0] != stage:
            stage = entry.stages[0]
            console.print(Text(f"\n{stage}", HEADING))
        _entry(entry, len(entries) == 1, console)
        if measured:
            everything_holds &= _checks(checks(entry), console)
    for erratum in corrections:
        _erratum(erratum, console)
    if len(entries) > 1:
        console.print(
            f"\n{len(entries)} equations. One in full: limpid equations NAME; measured: --measure; "
            f"filters: --branch, --stage ({', '.join(STAGES)}), --paper; where texts go wrong: --errata",
            markup=False,
        )
    return everything_holds


def _entry(entry: Entry, whole: bool, console: Console) -> None:
    where = f"{entry.file}:{entry.line}"
    console.print(Text.assemble((f"  {entry.name:<28}", f"bold {FORWARD}"), readable(entry.equation)))
    if not whole:
        console.print(Text(f"      {entry.purpose} [{entry.branch.value}; {where}]", QUIET))
        return
    console.print(f"\n{entry.signature}\n\n{entry.text}\n", markup=False)
    for number, line in enumerate(filter(None, entry.adjoint)):
        console.print(Text(f"  {'backward' if number == 0 else '':<10}{readable(line)}", BACKWARD))
    for label, value in (
        ("LaTeX", entry.equation),
        ("branch", entry.branch.value),
        ("used in", ", ".join(entry.stages)),
        ("source", entry.source),
        ("code", f"limpid/{where}"),
    ):
        console.print(f"  {label:<10}{value}", markup=False)


def _checks(found: dict[str, Any], console: Console) -> bool:
    for one in found["measured"]:
        parts = [f"value off PyTorch by {one['value']:.1e}"]
        if one["gradient"] is not None:
            parts.append(f"gradient by {one['gradient']:.1e}, off finite differences by {one['difference']:.1e}")
        console.print(Text(f"      {one['example']}: {'; '.join(parts)}", GOOD))
    for row in found["published"]:
        mark, colour = ("✓", GOOD) if row["holds"] else ("✗", f"bold {FAULT}")
        console.print(Text(f"      {mark} {row['source']} ({row['deviation']:.2g} of its tolerance)", colour))
    return all(row["holds"] for row in found["published"])


def _erratum(erratum: Erratum, console: Console) -> None:
    console.print(Text.assemble((f"\n  {erratum.name}\n", HEADING), f"      in print  {erratum.claim}\n"
                                f"      instead   {erratum.instead}"))  # fmt: skip
    for label, value in erratum.numbers():
        console.print(Text(f"      {label}: {value}", GOOD))
