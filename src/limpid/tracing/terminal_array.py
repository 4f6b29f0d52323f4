"""One quantity, gradient, moment or parameter in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from limpid.latex import readable
from limpid.maths.rounding import FORMATS, unit_roundoff
from limpid.theme import BACKWARD, FORWARD, HEADING, QUIET, UPDATE
from limpid.tracing import equations
from limpid.tracing.document import ArrayDocument, ParameterDocument, QuantityDocument
from limpid.tracing.drawn import check_drawn, drawn_links
from limpid.tracing.names import bare
from limpid.tracing.terminal_verdict import shown
from limpid.tracing.trace import Trace


def show(trace: Trace, asked: str, console: Console) -> None:
    """Print what there is to know about it, with a corner of its numbers."""
    found = trace.look(asked)
    if found is None:
        name, _ = trace.tensor(asked)
        console.print(f"{name}: this update rule keeps no such array, or nothing here depends on it", markup=False)
        return
    inner, step = bare(found.name), trace.step
    made = next((quantity for quantity in step.quantities if quantity.name == inner), None)
    _numbers(found, trace.record.axes(inner), console)
    if made is not None:
        _quantity(made, step.precision["compute"], console)
    if found.tensor.startswith("batch/"):
        _given(trace, inner, console)
    for parameter in step.parameters:
        if parameter.name == inner:
            _parameter(parameter, found, console)


def _numbers(found: ArrayDocument, axes: Sequence[str], console: Console) -> None:
    shape = "×".join(map(str, found.shape)) or "scalar"
    console.print(Text.assemble((found.name, HEADING), f"  {shape}, {found.format}"))
    numbers = found.statistics
    console.print(
        f"  mean {numbers.mean:+.4e}  rms {numbers.rms:.4e}  min {numbers.smallest:+.4e}  max {numbers.largest:+.4e}"
        f"  norm {found.norm:.4e}  not finite {numbers.not_finite}",
        markup=False,
    )
    if len(axes) == len(found.shape) > 1:
        at = "".join(f"{axis} 0, " for axis in axes[:-2])
        console.print(f"  {at}{axes[-2]} down, {axes[-1]} across", style=QUIET, markup=False)
    corner = np.array(found.corner)
    if found.hidden is not None:
        corner = np.where(found.hidden, np.nan, corner)
        console.print("  · is hidden by the mask: nothing reads it", style=QUIET, markup=False)
    with np.printoptions(precision=4, suppress=False, linewidth=120, nanstr="·" if found.hidden else "nan"):
        console.print(str(corner), markup=False, highlight=False)


def _quantity(quantity: QuantityDocument, compute: str, console: Console) -> None:
    console.print(f"  axes      {', '.join(quantity.axes) or 'none'}   {quantity.unit}", markup=False)
    console.print(f"  made by   {quantity.operation} of {', '.join(quantity.inputs)}", markup=False)
    console.print(Text(f"  forward   {readable(quantity.equation)}", FORWARD))
    for place, line in enumerate(quantity.adjoint):
        if line:
            to = quantity.inputs[place] if place < len(quantity.inputs) else "…"
            console.print(Text(f"  backward  to {to}: {readable(line)}", BACKWARD))
    console.print(f"  source    {quantity.source}", markup=False)
    unit = unit_roundoff(FORMATS[compute])
    drift = f", drift of the whole chain {quantity.drift:.3g} u (u = {unit:.2g}, half a unit of {compute})"
    back = shown(quantity.backward) if quantity.grad_norm is not None else "without a gradient"
    checks = ("  agreement forward ", shown(quantity.forward), ", backward ", back, drift)
    console.print(Text.assemble(*checks))
    if quantity.grad_norm is not None:
        console.print(f"  gradient  norm {quantity.grad_norm:.4e}", markup=False)


def _given(trace: Trace, name: str, console: Console) -> None:
    """An array of the batch, and what of it was derived a second time."""
    console.print("  given     before the step, by the batch", style=QUIET)
    link = next((link for link in drawn_links(trace.record) if link.name == name), None)
    if link is None:
        return
    check = next(check for check in check_drawn(trace.record) if check.name == name)
    equation = equations.forward(link.operation, link.inputs, [trace.array(one).shape for one in link.inputs])
    console.print(f"  made by   {link.operation.name} of {', '.join(link.inputs)}", markup=False)
    console.print(Text(f"  forward   {readable(equation)}", FORWARD))
    console.print(f"  source    {link.operation.source}", markup=False)
    console.print(Text.assemble("  agreement ", shown(check)))


def _parameter(parameter: ParameterDocument, found: ArrayDocument, console: Console) -> None:
    decay = "applies" if parameter.decayed else "does not apply"
    norm, change = parameter.grad_norm, parameter.relative_change
    console.print(f"  axes      {', '.join(parameter.axes)}; weight decay {decay}", markup=False)
    console.print(f"  gradient  norm {norm:.4e}; change {change:.3e} of the parameter's norm")
    checks = [*([parameter.gradient] if parameter.gradient else []), *parameter.checks]
    for check in checks:
        console.print(Text.assemble(f"  agreement {check.kind:<9} {check.name}: ", shown(check)))
    if found.update is None:
        return
    at, gradient = list(found.update.index), found.update.gradient
    said = f"  update of entry {at}, the one with the largest gradient ({gradient:.8g} before clipping)"
    console.print(Text(said, UPDATE))
    for line in found.update.lines:
        console.print(Text(f"    {line}", UPDATE))
    console.print(f"    engine: {found.update.engine:.8g}", markup=False)
