"""What to change so that a plan fits its devices, each change planned as the plan itself was."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from limpid.planning import flops
from limpid.planning.architecture import Architecture
from limpid.planning.figure import shown
from limpid.planning.memory_model import decoding, layout_of, memory_model, recomputation
from limpid.planning.options import Options
from limpid.planning.subject import Subject

Change = dict[str, Any]
"""Options, and what they would be instead."""
MOST_TENSOR_PARALLEL = 8
"""Devices that share a matrix: those of one machine at most, as their sums travel between them in every layer."""
MOST_LINES = 6
"""Changes that are listed; the ones that change least come first."""


def what_would_fit(subject: Subject, options: Options, context: int, limit: float) -> Iterator[str]:
    """Changes that bring training below the limit: the smallest on these devices; else more, or shorter text."""

    def total(change: Change) -> float:
        changed = dataclasses.replace(options, **change)
        figures, _ = memory_model(subject, changed, changed.context_length or context)
        return float(next(one.value for one in figures if one.name == "memory.total"))

    def fits(change: Change) -> bool:
        return total(change) <= limit

    def line(change: Change) -> str:
        meaning = _meaning(subject, options, change, context)
        return f"{_flags(change)}: {shown(total(change), 'bytes')} per device, {meaning}"

    found = list(itertools.islice(_smallest(_levers(subject, options), fits), MOST_LINES))
    yield from map(line, found)
    if found:
        return
    for change in _more(subject.architecture, options, context):
        if fits(change):
            yield line(_relaxed(change, fits))
            return
    yield f"nothing that is planned here makes a device of {shown(limit, 'bytes')} enough: it takes a larger one"


def what_would_generate(subject: Subject, options: Options, context: int, limit: float) -> Iterator[str]:
    """Changes that bring generating below the limit: these devices sharing matrices, more of them, or shorter text."""
    model, tensor, shorter = subject.architecture, [], []
    for share in (2**power for power in range(1, 12)):
        if model.num_heads % share == 0 and share > options.tensor:
            devices = max(options.devices, share * options.pipeline)
            tensor.append(
                {"devices": devices // (share * options.pipeline) * share * options.pipeline, "tensor": share}
            )
    if options.batch_size is not None and options.batch_size > 1:
        shorter.append({"batch_size": 1})
    shorter += [{"context_length": context >> less} for less in range(1, context.bit_length())]
    for group in (tensor, shorter):
        for change in group:
            figures = decoding(subject, dataclasses.replace(options, **change), change.get("context_length", context))
            if figures[-1].value <= limit:
                yield f"{_flags(change)}: {shown(figures[-1].value, 'bytes')} per device"
                break


def _levers(subject: Subject, options: Options) -> list[list[Change]]:
    """What can be changed on the same devices: of each kind nothing, a little, more."""
    layout = layout_of(subject, options, 1)
    halved = [layout.batch >> less for less in range(1, layout.batch.bit_length())]
    narrow = ("bf16", "bf16_pure") if layout.precision in ("fp32", "fp64") else ()
    return [
        [{}, *({"precision": precision} for precision in narrow)],
        [{}, *({"zero": stage} for stage in range(layout.zero + 1, 4) if layout.replicas > 1)],
        [{}, *({"batch_size": batch} for batch in halved)],
        [{}, *([{"recompute": "full"}] if layout.recompute != "full" else [])],
    ]


def _smallest(levers: Sequence[Sequence[Change]], fits: Callable[[Change], bool]) -> Iterator[Change]:
    """Combinations that fit and of which no lever could be moved less: few levers first."""
    places = sorted(
        itertools.product(*(range(len(lever)) for lever in levers)),
        key=lambda place: (sum(bool(moved) for moved in place), sum(place)),
    )
    found: list[tuple[int, ...]] = []
    for place in places:
        if any(all(less <= moved for less, moved in zip(known, place, strict=True)) for known in found):
            continue
        change = _joined(lever[moved] for lever, moved in zip(levers, place, strict=True))
        if fits(change):
            found.append(place)
            yield change


def _joined(changes: Iterator[Change]) -> Change:
    return {name: value for change in changes for name, value in change.items()}


def _more(model: Architecture, options: Options, context: int) -> Iterator[Change]:
    """More devices, then more that share each matrix, then less text; with everything that saves memory."""
    least: Change = {"recompute": "full", "batch_size": 1, "zero": 3}
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


def _relaxed(change: Change, fits: Callable[[Change], bool]) -> Change:
    """The same without recomputation, which costs time, where that fits too."""
    kept = {name: value for name, value in change.items() if name != "recompute"}
    return kept if fits(kept) else change


def _meaning(subject: Subject, options: Options, change: Change, context: int) -> str:
    """What the changed step is: its micro-batches, and how much more it computes."""
    changed = dataclasses.replace(options, **change)
    context = changed.context_length or context
    said = f"micro-batches of {layout_of(subject, changed, context).batch} × {context:,} tokens"
    before, after = (_computed(subject, each, context) for each in (options, changed))
    return f"{said}, {after / before:.2f} × the FLOPs" if after > before else said


def _computed(subject: Subject, options: Options, context: int) -> float:
    """FLOPs per token with what the backward pass repeats."""
    model = subject.architecture
    repeated = flops.recomputed(model, context, recomputation(subject, options), options.attention)
    return 3 * flops.forward_flops_per_token(model, context) + (0 if repeated is None else float(repeated.value))


def _flags(change: Change) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
