"""One quantity, gradient, moment or parameter in full."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from limpid.jsonable import jsonable
from limpid.latex import readable
from limpid.maths.operation import Array
from limpid.maths.update import UpdateInput
from limpid.quantities import parameters, quantities
from limpid.trace.names import our_name
from limpid.trace.terminal import BACKWARD, FORWARD, UPDATE, shown
from limpid.trace.verify import ParameterReport, QuantityReport, Statistics, StepReport


def look(step: StepReport, asked: str) -> tuple[str, str]:
    """Our name of what was asked for, and the name of its tensor in the record."""
    record, model = step.record, step.record.config.model
    known = [q.name for q in quantities(model)] + [p.name for p in parameters(model)]
    name = our_name(asked, known)
    around = re.match(r"^(grad|m|v)\((.+)\)$", name)
    if around is None:
        return name, f"plain/{name}" if f"plain/{name}" in record.names else f"before/{name}"
    kind, inner = around.groups()
    learned = f"before/{inner}" in record.names
    if kind == "grad":
        return name, f"{'fast' if learned else 'plain'}/grad({inner})"
    return name, f"after/{kind}/{inner}"


def array_of(step: StepReport, asked: str) -> dict[str, Any]:
    """The array as nested lists, for JSON; NaN and infinities are the words nan, inf and -inf."""
    name, tensor = look(step, asked)
    array = step.record.exact(tensor) if tensor in step.record.names else None
    words = None if array is None else jsonable(array.tolist())
    return {"name": name, "shape": None if array is None else list(array.shape), "values": words}


def show(step: StepReport, asked: str, console: Console) -> None:
    """Print what there is to know about it, with a corner of its numbers."""
    name, tensor = look(step, asked)
    if tensor not in step.record.names:
        console.print(f"{name}: this update rule keeps no such array, or nothing here depends on it", markup=False)
        return
    array = step.record.exact(tensor)
    console.print(
        Text.assemble(
            (name, "bold"), f"  {'×'.join(map(str, array.shape)) or 'scalar'}, {step.record.stored(tensor).dtype}"
        )
    )
    _print_numbers(array, console)
    inner = re.sub(r"^(grad|m|v)\((.+)\)$", r"\2", name)
    for entry in step.quantities:
        if entry.name == inner:
            _print_entry(entry, console)
    for parameter in step.parameters:
        if parameter.name == inner:
            _print_parameter(step, parameter, console)


def _print_numbers(array: Array, console: Console) -> None:
    numbers = Statistics.of(array)
    console.print(
        f"  mean {numbers.mean:+.4e}  rms {numbers.rms:.4e}  min {numbers.smallest:+.4e}  max {numbers.largest:+.4e}"
        f"  norm {np.linalg.norm(array):.4e}  not finite {numbers.not_finite}",
        markup=False,
    )
    corner = array.reshape(-1, array.shape[-1])[:6, :8] if array.ndim else array.reshape(1, 1)
    with np.printoptions(precision=4, suppress=False, linewidth=120):
        console.print(str(corner), markup=False, highlight=False)


def _print_entry(entry: QuantityReport, console: Console) -> None:
    operation = entry.operation
    console.print(f"  axes      {', '.join(entry.quantity.axes) or 'none'}   {entry.quantity.unit}", markup=False)
    console.print(f"  made by   {type(operation).__name__} of {', '.join(entry.inputs)}", markup=False)
    console.print(Text(f"  forward   {readable(operation.equation)}", FORWARD))
    for place, line in enumerate(operation.adjoint):
        if line:
            console.print(
                Text(
                    f"  backward  to {entry.inputs[place] if place < len(entry.inputs) else '…'}: {readable(line)}",
                    BACKWARD,
                )
            )
    console.print(f"  source    {operation.source}", markup=False)
    drift = f", drift of the whole chain {entry.drift:.3g} u"
    agreement = ("  agreement forward ", shown(entry.forward), ", backward ", shown(entry.backward), drift)
    console.print(Text.assemble(*agreement))
    if entry.grad_norm is not None:
        console.print(f"  gradient  norm {entry.grad_norm:.4e}", markup=False)


def _print_parameter(step: StepReport, parameter: ParameterReport, console: Console) -> None:
    record, update = step.record, step.update
    decay = "applies" if parameter.decayed else "does not apply"
    console.print(f"  axes      {', '.join(parameter.axes)}; weight decay {decay}", markup=False)
    console.print(f"  gradient  norm {parameter.grad_norm:.4e}; change {parameter.change:.3e} of the parameter's norm")
    checks = [*([parameter.gradient] if parameter.gradient else []), *parameter.checks]
    for check in checks:
        console.print(Text.assemble(f"  agreement {check.kind:<9} {check.name}: ", shown(check)))
    gradient = record.exact(f"fast/grad({parameter.name})")
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.abs(gradient))), gradient.shape))
    how = update.rules[parameter.name]
    moments = {kind: record.exact(f"before/{kind}/{parameter.name}") for kind in how.moments}
    given = UpdateInput(
        record.exact(f"before/{parameter.name}"),
        gradient * update.clip_scale,
        moments,
        update.learning_rate,
        update.number,
        parameter.decayed,
    )
    lines = how.derivation(given, at)
    console.print(
        Text(
            f"  update of entry {list(at)}, the one with the largest gradient ({gradient[at]:.8g} before clipping)",
            UPDATE,
        )
    )
    for line in lines:
        console.print(Text(f"    {line}", UPDATE))
    console.print(f"    engine: {float(record.exact(f'after/{parameter.name}')[at]):.8g}", markup=False)
