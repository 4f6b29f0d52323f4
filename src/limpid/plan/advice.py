"""What to change so that a plan fits its devices, each change planned as the plan itself was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from limpid.plan.architecture import Architecture
from limpid.plan.figure import shown
from limpid.plan.memory_model import layout_of, memory_model
from limpid.plan.options import Options
from limpid.plan.subject import Subject

Change = dict[str, Any]
"""Options, and what they would be instead."""
MOST_TENSOR_PARALLEL = 8
"""Devices that share a matrix: those of one machine at most, as their sums travel between them in every layer."""


def what_would_fit(subject: Subject, options: Options, context: int, limit: float) -> Iterator[str]:
    """Changes that bring the plan below the limit: one at a time; else together, with more devices, or shorter."""

    def total(change: Change) -> float:
        changed = dataclasses.replace(options, **change)
        figures, _ = memory_model(subject, changed, changed.context_length or context)
        return float(next(one.value for one in figures if one.name == "memory.total"))

    def fits(change: Change) -> bool:
        return total(change) <= limit

    def line(change: Change) -> str:
        return f"{_flags(change)}: {shown(total(change), 'bytes')} per device"

    single = [change for change in _single(subject, options, fits) if fits(change)]
    yield from map(line, single)
    if single:
        return
    for change in _together(subject.architecture, options, context):
        if fits(change):
            yield line(change)
            return
    yield f"nothing that is planned here makes a device of {shown(limit, 'bytes')} enough: it takes a larger one"


def _single(subject: Subject, options: Options, fits: Callable[[Change], bool]) -> Iterator[Change]:
    """Changes of one option each."""
    layout = layout_of(subject, options, 1)
    if layout.recompute != "full":
        yield {"recompute": "full"}
    if layout.batch > 1:
        halved = layout.batch // 2
        while halved > 1 and not fits({"batch_size": halved}):
            halved //= 2
        yield {"batch_size": halved}
    if layout.replicas > 1:
        yield from ({"zero": stage} for stage in range(layout.zero + 1, 4))
    if layout.precision in ("fp32", "fp64"):
        yield {"precision": "bf16"}
        yield {"precision": "bf16_pure"}


def _together(model: Architecture, options: Options, context: int) -> Iterator[Change]:
    """What needs least on these devices; then more devices, then more that share each matrix, then less text."""
    least: Change = {"recompute": "full", "batch_size": 1}
    replicas = options.devices // (options.tensor * options.pipeline)
    yield {**least, "zero": 3} if replicas > 1 else least
    least["zero"] = 3
    for devices in (options.devices << more for more in range(1, 17)):
        yield {"devices": devices, **least}
    machine, tensor = options.devices, options.tensor
    while tensor < MOST_TENSOR_PARALLEL and model.num_heads % (2 * tensor) == 0:
        machine, tensor = 2 * machine, 2 * tensor
        yield from ({"devices": machine << more, "tensor": tensor, **least} for more in range(12))
    for shorter in (context >> less for less in range(1, context.bit_length())):
        yield from (
            {"devices": n, "tensor": tensor, **least, "context_length": shorter} for n in (machine, 8 * machine)
        )


def _flags(change: Change) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
