"""What the model is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import MASK_NAMES
from limpid.doctor.description.likeness import likeness, same_rows, shared_rows
from limpid.doctor.description.rows import rows as rows_of
from limpid.doctor.description.words import counted, format_of, listed, number, share

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

COMMON = 0.1
"""Share of its places from which on a number is called common."""
ZEROS = 0.01
"""Share of exact zeros from which on it is told."""
COLUMNS = 12
"""Columns or channels whose means and deviations are told one by one."""
PASSES = 4
"""Forward passes of which it is told what they are given."""
MOST = 6
"""Tensors told of a batch that the model is not given."""


def inputs(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Forward passes of an update, each tensor that they are given, and whether rows come again."""
    unused = record.dropped | record.asides
    calls = [call for index, call in enumerate(record.calls) if index not in unused]
    aside = len(record.calls) - len(calls)
    if not record.calls and record.token_ids:
        yield "the model as a whole is not called, its parts are"
        yield from (f"in the batch, {name}: {_tensor(name, one.detach())}" for name, one in _held(record).items())
        yield from rows_of(watched, record, history)
    if not calls:
        return
    also = f"; of {counted(aside, 'other')} nothing reaches the update" if aside else ""
    yield f"{counted(len(calls), 'forward pass', 'forward passes')} with gradients make an update{also}"
    if calls[0].part is not None:
        parts = [watched.info.name_of(one) for one in calls[0].own_parts]
        yield f"the model as a whole is not called, its parts are: {listed(parts, 8)}"
    for name, tensor in calls[0].tensors.items():
        if tensor.numel():
            yield f"{name}: {_tensor(name, tensor.detach())}"
    yield from _later(calls)
    yield from _hidden(calls[0])
    others = [name for name, value in calls[0].kwargs.items() if not isinstance(value, Tensor) and _is_plain(value)]
    if others:
        yield "given besides: " + ", ".join(f"{name}={calls[0].kwargs[name]}" for name in others)
    yield from _beside(record, calls)
    yield from rows_of(watched, record, history)
    rows = history.rows
    if rows.count:
        again = rows.count - min(rows.count, rows.distinct)
        come = "none came twice" if not again else f"{number(rows.distinct)} of them different"
        yield f"rows so far: {number(rows.count)}, {come}"
    yield from history.so_far.stretches.told()
    yield from history.so_far.next_tokens.told()


def _later(calls: list[Call]) -> Iterator[str]:
    """What further forward passes are given, held against the first and the ones between."""
    for index, call in enumerate(calls[1:PASSES], 2):
        said = []
        for name, tensor in call.tensors.items():
            before = [(i, one.tensors[name]) for i, one in enumerate(calls[: index - 1], 1) if name in one.tensors]
            same = (same_rows(tensor, own, f"what pass {i} is given") for i, own in before)
            near = (how(tensor, own, f"what pass {i} is given") for i, own in before for how in (likeness, shared_rows))
            known = next(filter(None, same), "") if tensor.numel() and tensor.layout == torch.strided else ""
            if tensor.numel() and not known:
                like = next(filter(None, near), "") if tensor.layout == torch.strided else ""
                known = _tensor(name, tensor.detach()) + (f"; {like}" if like else "")
            said += [f"{name}: {known}"] if known else []
        if said:
            yield f"forward pass {index}, {'; '.join(said)}"


def _beside(record: StepRecord, calls: list[Call]) -> Iterator[str]:
    """Named tensors of the batch that the model is not given."""
    named = held_by_name(record)
    seen = [one for call in calls for one in call.tensors.values()]
    besides = [name for name, one in named.items() if not any(one is other or _equal(one, other) for other in seen)]
    for name in besides[:MOST]:
        yield f"in the batch besides, {name}: {_tensor(name, named[name].detach())}"


def held_by_name(record: StepRecord) -> dict[str, Tensor]:
    """The tensors of the first micro-batch, by name or by place."""
    given = record.micros[0].given if record.micros else None
    several = isinstance(given, tuple | list) and all(isinstance(one, Tensor) for one in given)
    pairs = given.items() if isinstance(given, Mapping) else enumerate(given) if several and given is not None else ()
    return {str(name): one for name, one in pairs if isinstance(one, Tensor) and one.numel()}


def _held(record: StepRecord) -> dict[str, Tensor]:
    """The tensors of the batch by name, or its tokens alone."""
    return held_by_name(record) or {"tokens": record.token_ids[0]}


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


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def _tensor(name: str, tensor: Tensor) -> str:
    shape = " × ".join(map(number, tensor.shape)) or "one number"
    described = f"{shape}, {format_of(tensor.dtype)}"
    if tensor.layout != torch.strided:
        return f"{described}, sparse"
    if tensor.is_complex():
        return described
    if name in MASK_NAMES or tensor.dtype == torch.bool:
        return f"{described}, {share(float((tensor != 0).float().mean()))} not 0{_first_and_last(tensor)}"
    return f"{described}, {measured(tensor) if tensor.is_floating_point() else _counted(tensor)}"


def _counted(tensor: Tensor) -> str:
    """Of whole numbers: which there are, and the one that is told apart, what is below 0 or common."""
    values, counts = tensor.unique(return_counts=True)
    least, top = int(values[0]), int(counts.argmax())
    told = 0 if least < 0 else top if int(counts[top]) > COMMON * tensor.numel() else None
    also = "" if told is None else f"; {share(float(counts[told]) / tensor.numel())} are {int(values[told])}"
    return f"{least} to {int(values[-1])}, {number(len(values))} different{also}"


def measured(tensor: Tensor) -> str:
    """Of measured numbers: mean, deviation, range, zeros."""
    x, zeros = tensor.float(), float((tensor == 0).float().mean())
    also = f", {share(zeros)} exactly 0" if zeros > ZEROS else ""
    span = f"{float(x.min()):.3g} to {float(x.max()):.3g}"
    return f"mean {float(x.mean()):.3g}, deviation {float(x.std(correction=0)):.3g}, {span}{also}{_by_column(x)}"


def _by_column(x: Tensor) -> str:
    """Mean and deviation of each column of rows or of series, of each channel of pictures, where these are few."""
    columns, axis = ("channel", 1) if x.ndim == 4 else ("column", x.ndim - 1)
    if not 2 <= x.ndim <= 4 or not 1 < x.shape[axis] <= COLUMNS or len(x) < 2:
        return ""
    each = x.movedim(axis, 0).flatten(1)
    said = (f"{float(one.mean()):.4g} ± {float(one.std(correction=0)):.2g}" for one in each)
    return f"; by {columns} {', '.join(said)}"


def _first_and_last(mask: Tensor) -> str:
    """At which end of its rows a mask has its zeros."""
    if mask.ndim != 2 or bool((mask != 0).all()):
        return ""
    first, last = int((mask[:, 0] == 0).sum()), int((mask[:, -1] == 0).sum())
    return f" (0 at the first position in {first} rows, at the last in {last})"
