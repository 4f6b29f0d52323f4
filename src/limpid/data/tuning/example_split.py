"""Examples of one split as they lie on disk, mapped into memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from jaxtyping import Bool, Int32, Int64

from limpid.data.records import document_name
from limpid.data.tuning.encoding import Answer

Array = np.ndarray


class Places(Sequence[str]):
    """Of every record the file and line that it is from."""

    def __init__(self, sources: Sequence[str], places: Int64[Array, "record 2"]) -> None:
        self.sources, self.places = sources, places

    @overload
    def __getitem__(self, record: int) -> str: ...
    @overload
    def __getitem__(self, record: slice) -> list[str]: ...
    def __getitem__(self, record: int | slice) -> str | list[str]:
        if isinstance(record, slice):
            return [self[number] for number in range(len(self))[record]]
        source, line = self.places[record]
        return document_name(self.sources[int(source)], int(line))

    def __len__(self) -> int:
        return len(self.places)


class Columns(Sequence[Mapping[str, Any]]):
    """Of every record its fields, read when they are asked for."""

    def __init__(self, lines: Array, ends: Int64[Array, " record"]) -> None:
        self.lines, self.ends = lines, ends

    @overload
    def __getitem__(self, record: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, record: slice) -> list[Mapping[str, Any]]: ...
    def __getitem__(self, record: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        if isinstance(record, slice):
            return [self[number] for number in range(len(self))[record]]
        record = range(len(self))[record]
        begin = int(self.ends[record - 1]) if record else 0
        fields: dict[str, Any] = json.loads(self.lines[begin : int(self.ends[record])].tobytes())
        return fields

    def __len__(self) -> int:
        return len(self.ends)


@dataclass(frozen=True)
class ExampleSplit:
    """Examples to train on, or held out: every answer with its prompt, one after the other.

    Of pairs two answers are a record, the chosen and the rejected; of all else one. Of prompts there is none: they go
    up to where it begins.
    """

    tokens: Int32[Array, " token"]
    learned: Bool[Array, " token"]  # which belong to the answer, with the token that stops it
    starts: Int64[Array, " answers_and_end"]  # where each answer begins; the last is the end
    where: Places
    columns: Columns  # what a reward function may see; of prompts alone
    desirable: Bool[Array, " record"] | None = None  # of judged answers
    pairs: bool = False

    @property
    def records(self) -> int:
        """Examples: pairs, answers or prompts."""
        return len(self.where)

    @property
    def lengths(self) -> Int64[Array, " record"]:
        """Tokens of each record, of a pair those of the longer answer."""
        sizes: Array = np.diff(self.starts)
        return sizes.reshape(-1, 2).max(1) if self.pairs else sizes

    def answer(self, number: int) -> Answer:
        """One answer, with its prompt."""
        here = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return Answer(self.tokens[here], self.learned[here])

    def prompt(self, record: int) -> tuple[int, ...]:
        """The tokens of a record up to where its answer begins."""
        answer = self.answer(2 * record if self.pairs else record)
        end = int(np.argmax(answer.learned)) if answer.learned.any() else len(answer.tokens)
        return tuple(answer.tokens[:end].tolist())


PARTS = "tokens", "learned", "columns"


class SplitWriter:
    """Appends records to the files of a split."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._files: dict[str, BinaryIO] = {part: self._file(part).open("wb") for part in PARTS}
        self._starts, self._places, self._ends = array("q", [0]), array("q"), array("q")
        self._desirable = bytearray()

    def add(
        self,
        answers: Sequence[Answer],
        place: tuple[int, int],
        desirable: bool | None,
        columns: Mapping[str, Any] | None,
    ) -> None:
        for answer in answers:
            self._files["tokens"].write(answer.tokens.tobytes())
            self._files["learned"].write(answer.learned.tobytes())
            self._starts.append(self._starts[-1] + len(answer.tokens))
        self._places.extend(place)
        if desirable is not None:
            self._desirable.append(desirable)
        if columns is not None:
            line = json.dumps(columns, default=str).encode()
            self._files["columns"].write(line)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(line))

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()
        np.save(self._file("starts", ".npy"), np.frombuffer(self._starts, np.int64))
        np.save(self._file("places", ".npy"), np.array(self._places, np.int64).reshape(-1, 2))
        np.save(self._file("ends", ".npy"), np.array(self._ends, np.int64))
        np.save(self._file("desirable", ".npy"), np.frombuffer(bytes(self._desirable), bool))

    def _file(self, part: str, ending: str = ".bin") -> Path:
        return self.folder / f"{self.name}-{part}{ending}"


def read_split(folder: Path, name: str, kind: str, sources: Sequence[str]) -> ExampleSplit:
    """What a `SplitWriter` wrote.

    Raises  ValueError where the files do not fit each other, OSError as reading does
    """
    starts, places, ends, desirable = (
        np.load(folder / f"{name}-{part}.npy") for part in ("starts", "places", "ends", "desirable")
    )
    answers = len(places) * (2 if kind == "pairs" else 1)
    if len(starts) != answers + 1:
        raise ValueError(f"{folder / name}-starts.npy does not fit its places")
    return ExampleSplit(
        tokens=_mapped(folder / f"{name}-tokens.bin", np.int32, int(starts[-1])),
        learned=_mapped(folder / f"{name}-learned.bin", np.bool_, int(starts[-1])),
        starts=starts,
        where=Places(sources, places),
        columns=Columns(_mapped(folder / f"{name}-columns.bin", np.uint8, int(ends[-1]) if len(ends) else 0), ends),
        desirable=desirable if kind == "judged" else None,
        pairs=kind == "pairs",
    )


def _mapped(file: Path, dtype: type[Any], count: int) -> Array:
    if file.stat().st_size != count * np.dtype(dtype).itemsize:
        raise ValueError(f"{file} is cut short")
    return np.memmap(file, dtype, "r") if count else np.empty(0, dtype)


@dataclass
class Tally:
    """What became of the records of a split."""

    records: int = 0  # that are taken
    cut: int = 0  # of them, those that are cut to the context
    tokens: int = 0
    learned: int = 0
    longest: int = 0  # tokens of an answer with its prompt

    def add(self, answers: Sequence[Answer], cut: bool) -> None:
        self.records += 1
        self.cut += cut
        for answer in answers:
            self.tokens += len(answer.tokens)
            self.learned += int(answer.learned.sum())
            self.longest = max(self.longest, len(answer.tokens))
