"""An explained entry in the terminal: forward blue, backward red, update green."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from limpid.latex import readable
from limpid.theme import BACKWARD, FORWARD, HEADING, QUIET, UPDATE
from limpid.tracing.document import EntryDocument, Place


def show(found: EntryDocument, console: Console) -> None:
    """Print how the entry was made, what it led to, its gradient, and its update."""
    for line in (*_value(found), *_gradient(found), *_update(found)):
        console.print(line)


def _value(found: EntryDocument) -> list[Text]:
    lines = [Text.assemble((found.address, f"bold {FORWARD}"), f" = {found.value:.8g} {found.note}".rstrip())]
    if found.made is None:
        lines.append(Text("  given: learned, or from the batch", QUIET))
    else:
        made = found.made
        lines.append(Text(f"  {readable(made.equation)}   [{made.operation}]", QUIET))
        lines.append(Text(f"  {made.symbols}", FORWARD))
        lines.append(Text(f"    = {made.numbers}", FORWARD))
        lines.append(Text.assemble((f"    = {made.value:.8g}", FORWARD), f"   {_off(found.roundings_off)}"))
        lines += _walk("came from", found.came_from)
    if found.went_to:
        lines.append(Text.assemble(("  went into ", HEADING), ", ".join(found.went_to)))
    if len(found.to_tokens) > 1:
        lines += _walk("the strongest way back to the tokens", found.to_tokens, arrow="← ")
    return lines


def _off(off: float | None) -> str:
    if off is None or off == 0:
        return "the engine has the same number"
    if not math.isfinite(off):
        return "the engine has another: one of the two is not finite, or 0"
    return f"the engine is {abs(off):.2g} roundings {'above' if off > 0 else 'below'}"


def _walk(title: str, places: Sequence[Place], arrow: str = "") -> list[Text]:
    lines = [Text(f"  {title}", HEADING)]
    lines += [Text(f"    {arrow}{place.address} = {place.value:.6g} {place.note}".rstrip()) for place in places]
    return lines


def _gradient(found: EntryDocument) -> list[Text]:
    if found.gradient is None:
        return [Text("\n  no gradient: the loss does not depend on it smoothly, or it is taken as a constant", QUIET)]
    lines = [Text.assemble(("\ngradient", f"bold {BACKWARD}"), f"  ∂loss/∂{found.address} = {found.gradient:.8g}")]
    for passed in found.passed:
        lines.append(Text.assemble(("  through ", QUIET), passed.quantity, f"   [{passed.operation}]"))
        lines.append(Text(f"    {passed.symbols}", BACKWARD))
        value = f"{passed.value:.8g}"
        lines.append(Text(f"    = {passed.numbers}" + (f" = {value}" if passed.numbers != value else ""), BACKWARD))
    if len(found.passed) > 1:
        together = " + ".join(f"{passed.value:.6g}" for passed in found.passed)
        total = sum(passed.value for passed in found.passed)
        lines.append(Text(f"  together {together} = {total:.8g}", BACKWARD))
    if found.to_loss:
        lines += _walk("the strongest way on to the loss", found.to_loss, arrow="← ")
    if found.weighed_by:
        lines += _walk("weighed on the way by what was formed before the step", found.weighed_by)
    return lines


def _update(found: EntryDocument) -> list[Text]:
    if not found.update:
        return []
    return [Text("\nupdate", f"bold {UPDATE}"), *(Text(f"  {line}", UPDATE) for line in found.update)]
