"""`limpid compress` and `limpid decompress`: files and streams in and out, and what is said about them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table

from limpid.compress import Compressed, compress, decompress
from limpid.compress.container import read_header
from limpid.config import WeightFormat
from limpid.errors import CheckpointError, ConfigError, DataError, LimpidError
from limpid.evaluate.subject import Subject, open_subject
from limpid.progress import progress
from limpid.run import explained

ENDING = ".limpid"


def compress_file(
    what: str, file: str, output: str | None, *, weights: WeightFormat, force: bool, as_json: bool
) -> int:
    """Compress a file or standard input with a model.

    Raises  CheckpointError when there is no such model; DataError, ConfigError for files that cannot be used
    """
    target = _target(output, None if file == "-" else Path(file + ENDING), force, Path(file))
    with _opened(file) as source:
        subject = open_subject(what)
        expected = None if file == "-" else os.fstat(source.fileno()).st_size
        with _written(target) as stream, progress(Console(stderr=True)) as report:
            found = compress(
                subject.model, subject.tokenizer, subject.start, source, stream,
                name=subject.name, weights=weights, report=report, expected=expected,
            )  # fmt: skip
    said = sys.stderr if target is None else sys.stdout
    if as_json:
        said.write(json.dumps(_plain(found, subject)) + "\n")
    else:
        _tell(found, file, target, Console(file=said, highlight=False, soft_wrap=True))
    return 0


def decompress_file(file: str, what: str | None, output: str | None, *, force: bool, as_json: bool) -> int:
    """Give back the file that was compressed.

    Raises  DataError for a file that is damaged or was not made by limpid; CheckpointError for another model
    """
    source_name = "standard input" if file == "-" else file
    stripped = Path(file[: -len(ENDING)]) if file.endswith(ENDING) else None
    if file != "-" and stripped is None and output is None:
        raise ConfigError(f"{file} does not end in {ENDING}, so its original has no name: give one with --output")
    target = _target(output, stripped, force, Path(file))
    with _opened(file) as source:
        stream, subject = source, None
        if what is None:
            stream, subject = _named_inside(source, source_name)
        subject = subject or open_subject(str(what))
        with _written(target) as out, progress(Console(stderr=True)) as report:
            total = decompress(
                subject.model, subject.tokenizer, subject.start, stream, out, where=source_name, report=report
            )
    said = sys.stderr if target is None else sys.stdout
    where = "standard output" if target is None else str(target)
    if as_json:
        said.write(json.dumps({"file": where, "bytes": total, "model": subject.name}) + "\n")
    else:
        said.write(f"{source_name} → {where}: {total:,} bytes, as they were\n")
    return 0


class _Replayed:
    """A stream whose beginning was read already."""

    def __init__(self, begun: bytes, rest: BinaryIO) -> None:
        self._begun, self._rest = begun, rest

    def read(self, count: int = -1) -> bytes:
        if not self._begun:
            return self._rest.read(count)
        part, self._begun = self._begun[:count], self._begun[count:]
        return part


class _Kept:
    """A stream that remembers what was read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.seen = stream, b""

    def read(self, count: int = -1) -> bytes:
        part = self._stream.read(count)
        self.seen += part
        return part


def _named_inside(source: BinaryIO, where: str) -> tuple[Any, Subject]:
    """The stream from its beginning, and the model that its header names."""
    kept = _Kept(source)
    header = read_header(kept, where)  # type: ignore[arg-type]  # it only reads
    try:
        subject = open_subject(header.name)
    except LimpidError as error:
        raise CheckpointError(
            f"{where} was compressed with {header.name}, {header.model.hex()[:12]}, which is not here: "
            "give the model with --model"
        ) from error
    return _Replayed(kept.seen, source), subject


def _target(output: str | None, default: Path | None, force: bool, source: Path) -> Path | None:
    """Where to write; None is standard output.

    Raises  ConfigError rather than overwrite a file, or the one that is read
    """
    if output == "-" or (output is None and default is None):
        if sys.stdout.isatty():
            raise ConfigError("what is written is no text: give --output FILE, or lead standard output to a file")
        return None
    path = Path(output) if output is not None else default
    assert path is not None
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder: give a file's name")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it, or give another --output")
    if path.exists() and source.exists() and path.samefile(source):
        raise ConfigError(f"{path} is the file that is read: give another --output")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already: give another --output, or --force to replace it")
    return path


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; give a file, or - for standard input") from error
    with stream:
        yield stream


@contextlib.contextmanager
def _written(target: Path | None) -> Iterator[BinaryIO]:
    """A stream that becomes `target` when all went well; on an error nothing is left."""
    if target is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = target.with_name(f".{target.name}.writing")
    with explained(f"cannot write {target}", temporary):
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(target)


def _plain(found: Compressed, subject: Subject) -> dict[str, Any]:
    return {
        "model": subject.name,
        "bytes": found.original,
        "compressed": found.size,
        "header_and_end": found.overhead,
        "bits_per_byte": found.bits_per_byte,
        "cross_entropy_bits_per_byte": found.cross_entropy,
        "tokens": found.tokens,
        "seconds": found.seconds,
        "tokens_per_second": found.tokens / found.seconds if found.seconds else None,
        "others": found.others,
    }


def _tell(found: Compressed, file: str, target: Path | None, console: Console) -> None:
    source = "standard input" if file == "-" else file
    where = "standard output" if target is None else str(target)
    console.print(f"{source} → {where}: {found.original:,} → {found.size:,} bytes", markup=False)
    if not found.original:
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("", "bytes", "bits per byte", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    ideal = found.bits / 8
    over = found.size - found.overhead - ideal
    table.add_row("cross-entropy", f"{ideal:,.0f}", f"{found.cross_entropy:.4f}", "the model's surprise")
    more = f"header and end {found.overhead}, coding {over:+,.0f} ({over / max(ideal, 1):+.2%})"
    table.add_row("limpid", f"{found.size:,}", f"{found.bits_per_byte:.4f}", more)
    for name, size in found.others.items():
        ratio = f"{size / found.size:.2f} × limpid"
        table.add_row(name, f"{size:,}", f"{8 * size / found.original:.4f}", ratio)
    console.print(table)
    speed = f"{found.tokens / found.seconds:,.0f} tokens/s" if found.seconds else ""
    console.print(f"{found.tokens:,} tokens in {found.seconds:.1f} s, {speed}", markup=False)
