"""What the model is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import MASK_NAMES
from limpid.doctor.description.words import counted, format_of, listed, number, share

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

COMMON = 0.1
"""Share of its places from which on a number is called common."""
MOST = 6
"""Tensors told of a batch that the model is not given."""


def inputs(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Forward passes of an update, each tensor that they are given, and whether rows come again."""
    unused = record.dropped | record.asides
    calls = [call for index, call in enumerate(record.calls) if index not in unused]
    aside = len(record.calls) - len(calls)
    if not calls:
        return
    also = f"; of {counted(aside, 'other')} nothing reaches the update" if aside else ""
    yield f"{counted(len(calls), 'forward pass', 'forward passes')} with gradients make an update{also}"
    for name, tensor in arguments(calls[0]).items():
        yield f"{name}: {_tensor(name, tensor)}"
    yield from _hidden(calls[0])
    others = [name for name, value in calls[0].kwargs.items() if not isinstance(value, Tensor) and _is_plain(value)]
    if others:
        yield "given besides: " + ", ".join(f"{name}={calls[0].kwargs[name]}" for name in others)
    yield from _beside(record, calls)
    rows = history.rows
    if rows.count:
        again = rows.count - min(rows.count, rows.distinct)
        come = "none came twice" if not again else f"{number(rows.distinct)} of them different"
        yield f"rows so far: {number(rows.count)}, {come}"


def _beside(record: StepRecord, calls: list[Call]) -> Iterator[str]:
    """Named tensors of the batch that the model is not given."""
    given = record.micros[0].given if record.micros else None
    if not isinstance(given, Mapping):
        return
    seen = {id(one) for call in calls for one in (*call.args, *call.kwargs.values())}
    named = [(k, v) for k, v in given.items() if isinstance(v, Tensor) and v.numel() and id(v) not in seen]
    shown = [
        name
        for name, value in named
        if not any(_equal(value, one) for call in calls for one in arguments(call).values())
    ]
    for name in shown[:MOST]:
        yield f"in the batch besides, {name}: {_tensor(str(name), given[name].detach())}"


def _equal(one: Tensor, other: Tensor) -> bool:
    same = one.shape == other.shape and one.device == other.device and one.layout == other.layout == torch.strided
    return same and bool(torch.equal(one, other))


def _hidden(call: Call) -> Iterator[str]:
    """Which tokens stand where the mask is 0."""
    ids, mask = call.ids, call.mask
    if ids is not None and mask is not None and mask.shape == ids.shape and bool((mask == 0).any()):
        hidden, shown = ids[mask == 0].unique().tolist(), set(ids[mask != 0].unique().tolist())
        also = "never where it is not" if not shown & set(hidden) else "there are such where it is not 0, too"
        yield f"where the mask is 0 the tokens are {listed(list(map(str, hidden)), 8)}; {also}"


def arguments(call: Call) -> dict[str, Tensor]:
    """The tensors that a call is given, by name where that is known."""
    named = dict(zip(call.names or map(str, range(len(call.args))), call.args, strict=False)) | call.kwargs
    return {name: one.detach() for name, one in named.items() if isinstance(one, Tensor) and one.numel()}


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def _tensor(name: str, tensor: Tensor) -> str:
    shape = " × ".join(map(number, tensor.shape)) or "one number"
    described = f"{shape}, {format_of(tensor.dtype)}"
    if tensor.is_cuda or tensor.is_complex() or tensor.layout != torch.strided:
        return described if tensor.layout == torch.strided else f"{described}, sparse"
    if name in MASK_NAMES or tensor.dtype == torch.bool:
        return f"{described}, {share(float((tensor != 0).double().mean()))} not 0{_first_and_last(tensor)}"
    if not tensor.is_floating_point():
        values, counts = tensor.unique(return_counts=True)
        top = 0 if int(values[0]) < 0 else int(counts.argmax())
        often = float(counts[top]) / tensor.numel()
        common = f"; {share(often)} are {int(values[top])}" if often > COMMON or int(values[0]) < 0 else ""
        return f"{described}, {int(values[0])} to {int(values[-1])}, {number(len(values))} different{common}"
    x = tensor.double()
    spread = float(x.std(correction=0))
    zeros = float((tensor == 0).double().mean())
    also = f", {share(zeros)} exactly 0" if zeros > 0.01 else ""
    span = f"{float(x.min()):.3g} to {float(x.max()):.3g}"
    return f"{described}, mean {float(x.mean()):.3g}, deviation {spread:.3g}, {span}{also}"


def _first_and_last(mask: Tensor) -> str:
    """At which end of its rows a mask has its zeros."""
    if mask.ndim != 2 or bool((mask != 0).all()):
        return ""
    first, last = int((mask[:, 0] == 0).sum()), int((mask[:, -1] == 0).sum())
    return f" (0 at the first position in {first} rows, at the last in {last})"
