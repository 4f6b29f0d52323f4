"""A run's metrics as columns that are read on from where they ended, and drawn in few points."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
from jaxtyping import Float, Int

from limpid.history.curves import WINDOWS, Axis, Curve, running_mean
from limpid.view.columns import columns_of
from limpid.view.documents.runs import Column

MEAN = "mean_loss"
"""The column that no line has: the mean of the loss over neighbouring steps, with its interval."""
POINTS = 2000
"""Points of a curve that can be told apart on a screen."""
AT_ONCE = 1 << 18
"""Bytes that are read at once."""
END = 256
"""Bytes before the place where reading ended, which say whether it is still the same file."""
Array = np.ndarray


@dataclass
class Values:
    """One column: the steps whose lines have it, and what they say."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def arrays(self) -> tuple[Int[Array, " line"], Float[Array, " line"]]:
        """Both as arrays of their own."""
        return np.array(self.steps, np.int64), np.array(self.values, np.float64)


class Series:
    """The columns of one metrics.jsonl. Every line is read once; a file that was cut back or replaced is read anew."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self.offset, self.end = 0, b""
        self.columns: dict[str, Values] = {}

    def read_on(self) -> int:
        """Take in the whole lines that came since, and return where they end, in bytes."""
        with self._lock:
            try:
                with self.file.open("rb") as stream:
                    if not self._ended_here(stream):
                        self._forget()
                    for block in blocks(stream, self.offset):
                        self._take(block)
            except OSError:
                self._forget()
            return self.offset

    def _ended_here(self, stream: BinaryIO) -> bool:
        """Whether what stands before the place where reading ended is what stood there."""
        stream.seek(self.offset - len(self.end))
        return stream.read(len(self.end)) == self.end

    def _take(self, block: bytes) -> None:
        for name, steps, values in columns_of(block):
            column = self.columns.setdefault(name, Values())
            column.steps.extend(steps)
            column.values.extend(values)
        self.offset += len(block)
        self.end = block[-END:]

    def column(
        self, name: str, along: Axis = "step", points: int = POINTS, first: int = 0, last: int | None = None
    ) -> Column | None:
        """A column in so many points, of steps `first` … `last`; None where no line has it."""
        with self._lock:
            own = self.columns.get("loss" if name == MEAN else name)
            if own is None:
                return None
            step, y = own.arrays()
            x = self._along(step, along)
        low = high = None
        if name == MEAN:
            mean = running_mean(Curve(step.astype(np.float64), y), max(1, len(step) // WINDOWS))
            y, low, high = mean.y, mean.low, mean.high
        inside = np.flatnonzero((step >= first) & (step <= (np.inf if last is None else last)))
        chosen = inside[extremes(y[inside], points)]
        return Column(
            _plain(x[chosen]), _plain(y[chosen]), None if low is None else _plain(low[chosen]),
            None if high is None else _plain(high[chosen]), tuple(step[chosen].tolist()), len(inside),
        )  # fmt: skip

    def _along(self, step: Int[Array, " line"], along: Axis) -> Float[Array, " line"]:
        """Where steps lie along an axis; along the steps themselves where the run does not say."""
        amounts = self.columns.get({"step": "", "tokens": "num_tokens", "time": "seconds"}[along])
        if amounts is None:
            return step.astype(np.float64)
        at, values = amounts.arrays()
        return np.interp(step, at, values if along == "tokens" else np.cumsum(values))


def extremes(y: Float[Array, " line"], points: int) -> Int[Array, " point"]:
    """Which of many values to draw: the least and the greatest of each stretch, its first that is not finite, and the
    first and last of all.
    """
    if len(y) <= points:
        return np.arange(len(y))
    width = -(-len(y) // max(1, (points - 2) // 3))
    stretches = -(-len(y) // width)
    padded = np.full(stretches * width, np.nan)
    padded[: len(y)] = y
    table = padded.reshape(stretches, width)
    finite, first = np.isfinite(table), np.arange(stretches) * width
    least = first + np.where(finite, table, np.inf).argmin(1)
    greatest = first + np.where(finite, table, -np.inf).argmax(1)
    odd = first + finite.argmin(1)
    chosen = np.unique(np.concatenate(([0, len(y) - 1], least, greatest, odd[~finite.all(1)])))
    return chosen[chosen < len(y)]


def blocks(stream: BinaryIO, offset: int) -> Iterator[bytes]:
    """The whole lines of a file from some byte on, many at a time."""
    stream.seek(offset)
    rest = b""
    while content := stream.read(AT_ONCE):
        whole, end, after = content.rpartition(b"\n")
        if end:
            yield rest + whole + end
            rest = after
        else:
            rest += content


def lines_after(file: Path, offset: int) -> list[bytes]:
    """The whole lines of a file from some byte on, each with its end."""
    with file.open("rb") as stream:
        return [line for block in blocks(stream, offset) for line in block.splitlines(keepends=True)]


def last_lines(file: Path, size: int) -> list[bytes]:
    """The whole lines within the last `size` bytes of a file; all of a smaller one."""
    try:
        with file.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            start = max(0, end - size)
            stream.seek(start)
            content = stream.read(size)
    except OSError:
        return []
    parts = content.split(b"\n")[:-1]  # what comes after the last line's end is being written
    return parts[1:] if start else parts


def sampled_lines(file: Path, count: int) -> list[bytes]:
    """Some lines at equal distances in bytes, in order: of a file however long as many reads."""
    longest = 4096
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            if size <= count * longest:
                stream.seek(0)
                lines = stream.read().split(b"\n")[:-1]
                return lines[:: max(1, len(lines) // count)]
            found = []
            for at in np.linspace(0, size - longest, count).astype(np.int64).tolist():
                stream.seek(at)
                parts = stream.read(longest).split(b"\n")
                if len(parts) > 2 or at == 0:
                    found.append(parts[1] if at else parts[0])
            return found
    except OSError:
        return []


def _plain(values: Float[Array, " point"]) -> tuple[float, ...]:
    return tuple(values.tolist())
