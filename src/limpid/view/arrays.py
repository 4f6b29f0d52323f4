"""The arrays of a recorded step as the page asks for them: what the engine had, what the mathematics gives, and both
against each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from limpid.maths.operation import Array
from limpid.tracing import Trace
from limpid.tracing.mask import visible
from limpid.tracing.names import AROUND, bare
from limpid.tracing.redone import compared_place, redone
from limpid.tracing.tensor_file import WORDS
from limpid.view.answers import Refused
from limpid.view.documents.step import ArrayPlace, SliceKind
from limpid.view.kept import Kept
from limpid.view.pyramid import NAMES, TILE, Pyramid, as_bytes, from_bytes, pyramid, tile
from limpid.view.slices import Asked, Readable, part_of, safetensors

REDONE: tuple[SliceKind, ...] = ("exact", "difference", "share")
AT_ONCE = 1 << 20
"""Entries of an array that is redone while the page waits; of a larger one that takes seconds, and is a job."""
WORTH_KEEPING = 1 << 21
"""Entries of a matrix below which making its pyramid anew takes less than 20 ms."""


@dataclass(frozen=True)
class Derived:
    """An array that is computed of others of its shape, of each part when it is asked for."""

    shape: tuple[int, ...]
    of: Callable[[Any], Array]

    def __getitem__(self, index: Any, /) -> Array:
        return self.of(index)


@dataclass(frozen=True)
class StepArrays:
    """The arrays of one recorded step."""

    trace: Trace
    kept: Kept

    def places(self) -> dict[str, ArrayPlace]:
        """Every array that can be asked for by name; its gradient is grad(NAME), or the kind `gradient`."""
        record, found = self.trace.record, {}
        made = {link.name for link in self.trace.entries.links}
        learned = {one.name: one for one in record.trained}
        for name in self.trace.names():
            try:
                place = record.place(name)
            except KeyError:
                continue
            kinds: list[SliceKind] = ["value"]
            kinds += ["gradient"] if record.gradient_place(name) is not None else []
            kinds += REDONE if name in made else ()
            found[name] = self._place(place, name, kinds)
        for name in learned:
            for around, before in (("update", ""), ("m", "m/"), ("v", "v/")):
                if f"after/{before}{name}" in record.names:
                    found[f"{around}({name})"] = self._place(f"after/{before}{name}", name, ["value", *REDONE])
        return found

    def _place(self, tensor: str, name: str, kinds: list[SliceKind]) -> ArrayPlace:
        record = self.trace.record
        word = WORDS.get(record.format(tensor), "int64")
        return ArrayPlace(record.shape(tensor), word, record.axes(name), tuple(kinds))

    def slice(self, asked: Asked, kind: SliceKind) -> bytes:
        """A part of an array as safetensors, with what the mask hides of it."""
        name, array = self.array(asked.name, kind)
        part, start = part_of(array, asked)
        tensors = {"data": part}
        seen = visible(self.trace.record, bare(name), array.shape)
        if seen is not None:
            index, _ = asked.of(array.shape)
            tensors["hidden"] = np.broadcast_to(~seen, array.shape)[index]
        about = {"name": name, "kind": kind, "shape": list(array.shape), "start": list(start)}
        return safetensors(tensors, about)

    def tiles(self, asked: Asked, kind: SliceKind, level: int, row: int, column: int) -> bytes:
        """One tile of the matrix that leading indices leave of an array, as safetensors.

        Raises  Refused where they leave no matrix, or the tile lies outside
        """
        name, array = self.array(asked.name, kind)
        matrix = within_matrix(array, asked)
        return send_tile(name, matrix, self._pyramid(f"{name} {kind} {asked.parts}", matrix), level, row, column)

    def _pyramid(self, what: str, matrix: Readable) -> Pyramid:
        shape = (matrix.shape[0], matrix.shape[1])
        if math.prod(shape) < WORTH_KEEPING:
            return pyramid(matrix)
        return from_bytes(self.kept.made_mapped(what, "tiles", lambda: as_bytes(pyramid(matrix))), shape)

    def array(self, asked: str, kind: SliceKind) -> tuple[str, Array | Derived]:
        """An array left on the disk, or computed part by part; and our name of it.

        Raises  Refused for what there is not, or has to be redone by a job first; ConfigError for an unknown name
        """
        if kind not in get_args(SliceKind):
            raise Refused(f"kind is {kind[:40]!r}: choose one of {', '.join(get_args(SliceKind))}")
        name, tensor = self.trace.tensor(f"grad({asked})" if kind == "gradient" else asked)
        if tensor not in self.trace.record.names:
            raise Refused(f"{name}: nothing of it was recorded, or nothing depends on it", 404)
        engine = self.trace.record.mapped(tensor)
        if kind in ("value", "gradient"):
            return name, engine
        around = AROUND.fullmatch(name)
        if around is not None and around[1] == "grad":
            engine = self.trace.record.mapped(compared_place(self.trace.record, around[2]))
        found = self.kept.arrays(name)
        if found is None:
            if engine.size > AT_ONCE:
                raise Refused(f"{name} was not redone in float64 yet", 404, "exact")
            found = self.redo(name)
        exact, bound = found["exact"], found["bound"]
        if kind == "exact":
            return name, exact
        if kind == "difference":
            return name, Derived(engine.shape, lambda index: engine[index].astype(np.float64) - exact[index])
        return name, Derived(engine.shape, lambda index: _share(engine[index], exact[index], bound[index]))

    def limit(self, name: str) -> Array:
        """How far rounding alone may lead each entry.

        Raises  Refused for what nothing made, or has to be redone by a job first
        """
        found = self.kept.arrays(name)
        if found is None:
            if math.prod(self.trace.record.shape(self.trace.tensor(name)[1])) > AT_ONCE:
                raise Refused(f"{name} was not redone in float64 yet", 404, "exact")
            found = self.redo(name)
        return found["bound"]

    def flops(self) -> float:
        """Of the step's forward pass."""
        record = self.trace.record

        def shaped(names: tuple[str, ...]) -> list[Array]:
            return [np.broadcast_to(0.0, record.shape(record.place(name))) for name in names]

        return sum(link.operation.flops(*shaped(link.inputs)) for link in self.trace.entries.links)

    def redo(self, asked: str) -> dict[str, Array]:
        """An array in float64 with the bound of each entry, kept for the next time.

        Raises  Refused for what nothing made
        """
        name, tensor = self.trace.tensor(asked)
        expected = redone(self.trace.record, name)
        if expected is None:
            raise Refused(f"{name} was given, or nothing came of it: there is nothing to redo", 404)
        shape = self.trace.record.shape(tensor)
        with np.errstate(all="ignore"):
            bound = expected.limit(expected.value, np.broadcast_to(expected.reach, shape))
        self.kept.write_arrays(name, expected.value, bound)
        return {"exact": np.asarray(expected.value), "bound": np.asarray(bound)}


def _share(engine: Array, exact: Array, bound: Array) -> Array:
    """How much of its bound a difference takes: 0 where both are the same, also where they are the same infinity."""
    with np.errstate(all="ignore"):
        value = np.asarray(engine).astype(np.float64)
        return np.asarray(np.where(value == exact, 0.0, np.abs(value - exact) / bound))


def send_tile(name: str, matrix: Readable, levels: Pyramid, level: int, row: int, column: int) -> bytes:
    """One tile of a matrix, as safetensors.

    Raises  Refused where there is none
    """
    rows, columns = (-(-size // (TILE << level)) for size in levels.shape) if level < levels.height else (0, 0)
    if not (row < rows and column < columns):
        said = f"level {level} of {name} has {rows} × {columns} tiles" if rows else f"{name} has {levels.height} levels"
        raise Refused(f"{said}: there is none at row {row}, column {column} of level {level}")
    cells = tile(matrix, levels, level, row, column)
    about = {"shape": list(levels.shape), "levels": levels.height, **levels.whole()}
    return safetensors(dict(zip(NAMES, cells, strict=True)), {key: _word(value) for key, value in about.items()})


def within_matrix(array: Readable, asked: Asked) -> Readable:
    """What leading indices leave of an array: its first axis down, the others along, as heads and features do.

    What has fewer than two axes is one row.
    """
    shape, leading = array.shape, max(0, len(array.shape) - 2)
    index, _ = asked.of(shape)
    if len(index) > leading or any(isinstance(part, slice) for part in index):
        raise Refused(f"{asked.name} has shape {list(shape)}: give at most {leading} leading indices")
    if not shape or len(shape) == 1:
        return np.asarray(array[...]).reshape(1, -1)
    if len(index) < leading:
        return _joined(array, index)
    return Derived(
        shape[leading:], lambda part: np.asarray(array[(*index, *(part if isinstance(part, tuple) else (part,)))])
    )


def _joined(array: Readable, index: tuple[int | slice, ...]) -> Readable:
    """All axes but the first that is left as one."""
    rows, *along = array.shape[len(index) :]

    def read(part: Any) -> Any:
        down, across = part if isinstance(part, tuple) else (part, slice(None))
        found = np.asarray(array[(*index, down)])
        return found.reshape(*found.shape[: found.ndim - len(along)], -1)[..., across]

    return Derived((rows, math.prod(along)), read)


def _word(value: Any) -> str:
    """A value of the header: what is not finite is a word."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return str(value)
