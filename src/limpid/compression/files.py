"""`limpid compress` and `limpid decompress`: files and streams in and out, and the report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rich.table import Table

from limpid.compression import Compressed, compress, decompress
from limpid.compression.container import read_header
from limpid.config import WeightFormat
from limpid.errors import CheckpointError, ConfigError, DataError, LimpidError
from limpid.files import explained, open_to_read, standard_input, standard_output, user_path
from limpid.loaded import LoadedModel, open_model
from limpid.reporter import Reporter
from limpid.source import ModelFolder, find_model

ENDING = ".limpid"


def compress_file(
    what: str, file: str, output: str | None, *, weights: WeightFormat, force: bool, as_json: bool
) -> int:
    """Compress a file or standard input with a model.

    Raises  CheckpointError when there is no such model; DataError, ConfigError for files that cannot be used
    """
    target = _target(output, None if file == "-" else Path(file + ENDING), force, user_path(file))
    _require_no_part(target, what)
    with _opened(file) as source, _reporter(target, as_json) as reporter:
        model = open_model(what)
        expected = None if file == "-" else os.fstat(source.fileno()).st_size
        with _written(target) as stream:
            result = compress(
                model.transformer, model.tokenizer, model.start, source, stream,
                name=model.name, weights=weights, reporter=reporter, expected=expected,
            )  # fmt: skip
        reporter.close()
        reporter.document(_plain(result, model))
        for line in lines_of(result, file, target):
            reporter.line(line)
    return 0


def decompress_file(file: str, what: str | None, output: str | None, *, force: bool, as_json: bool) -> int:
    """Give back the file that was compressed.

    Raises  DataError for a file that is damaged or was not made by limpid; CheckpointError for another model
    """
    source_name = "standard input" if file == "-" else file
    stripped = Path(file[: -len(ENDING)]) if file.endswith(ENDING) else None
    if file != "-" and stripped is None and output is None:
        raise ConfigError(f"{file} does not end in {ENDING}, so its original has no name: give one with --output")
    target = _target(output, stripped, force, user_path(file))
    if what is not None:
        _require_no_part(target, what)
    with _opened(file) as source, _reporter(target, as_json) as reporter:
        stream, model = source, None
        if what is None:
            stream, model = _model_in_header(source, source_name)
        model = model or open_model(str(what))
        with _written(target) as out:
            total = decompress(
                model.transformer, model.tokenizer, model.start, stream, out, where=source_name, reporter=reporter
            )
        reporter.close()
        where = "standard output" if target is None else str(target)
        reporter.document({"file": where, "bytes": total, "model": model.name})
        reporter.line(f"{source_name} → {where}: {total:,} bytes, as they were")
    return 0


def _reporter(target: Path | None, as_json: bool) -> Reporter:
    """A reporter that leaves standard output to the bytes, where they go there."""
    from limpid.console import Console

    return Reporter(as_json, Console(file=sys.stderr if target is None else sys.stdout))


class _Prefixed:
    """A stream whose beginning was read already and comes first."""

    def __init__(self, begun: bytes, rest: BinaryIO) -> None:
        self._begun, self._rest = begun, rest

    def read(self, count: int = -1) -> bytes:
        if not self._begun:
            return self._rest.read(count)
        part, self._begun = self._begun[:count], self._begun[count:]
        return part


class _Remembering:
    """A stream that remembers what was read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.seen = stream, b""

    def read(self, count: int = -1) -> bytes:
        part = self._stream.read(count)
        self.seen += part
        return part


def _model_in_header(source: BinaryIO, where: str) -> tuple[Any, LoadedModel]:
    """The stream from its beginning, and the model that its header names."""
    kept = _Remembering(source)
    header = read_header(kept, where)  # type: ignore[arg-type]  # it only reads
    try:
        model = open_model(header.name)
    except LimpidError as error:
        raise CheckpointError(
            f"{where} was compressed with {header.name}, {header.model.hex()[:12]}, which is not here: "
            "give the model with --model"
        ) from error
    return _Prefixed(kept.seen, source), model


def _target(output: str | None, default: Path | None, force: bool, source: Path) -> Path | None:
    """Where to write; None is standard output.

    Raises  ConfigError rather than overwrite a file, or the one that is read
    """
    if output == "-" or (output is None and default is None):
        if standard_output().isatty():
            raise ConfigError("what is written is no text: give --output FILE, or lead standard output to a file")
        return None
    path = user_path(output) if output is not None else default
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


def _require_no_part(target: Path | None, what: str) -> None:
    """Raise ConfigError rather than overwrite a file of the model, which --force does not mean."""
    model = find_model(what)
    folder = model.path if isinstance(model, ModelFolder) else model.run.path
    if target is not None and target.exists() and target.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"--output {target} is a file of the model {folder}: give another")


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield standard_input().buffer
        return
    try:
        stream = open_to_read(user_path(file), file)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; give a file, or - for standard input") from error
    with stream:
        yield stream


@contextlib.contextmanager
def _written(target: Path | None) -> Iterator[BinaryIO]:
    """A stream that becomes `target` when all went well; on an error nothing is left."""
    if target is None:
        yield standard_output().buffer
        standard_output().buffer.flush()
        return
    temporary = target.with_name(f".{target.name}.writing")
    with explained(f"cannot write {target}", temporary):
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(target)


def _plain(result: Compressed, model: LoadedModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "bytes": result.original,
        "compressed": result.size,
        "header_and_end": result.overhead,
        "bits_per_byte": result.bits_per_byte,
        "cross_entropy_bits_per_byte": result.cross_entropy,
        "stored_as_they_are": result.plain,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "tokens_per_second": result.tokens / result.seconds if result.seconds else None,
        "baselines": result.baselines,
    }


def lines_of(result: Compressed, file: str, target: Path | None) -> Iterator[str | Table]:
    """What is told of a file that was compressed."""
    source = "standard input" if file == "-" else file
    where = "standard output" if target is None else str(target)
    yield f"{source} → {where}: {result.original:,} → {result.size:,} bytes"
    if not result.original:
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("", "bytes", "bits per byte", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    ideal = result.bits / 8
    over = result.size - result.overhead - ideal
    coding = f"header and end {result.overhead}, coding {over:+,.0f} ({over / max(ideal, 1):+.2%})"
    if result.plain:
        what = "stored as it is" if result.plain == result.original else f"{result.plain:,} bytes stored as they are"
        coding = f"{what}: the model is worse than 8 bits per byte"
    table.add_row("cross-entropy", f"{ideal:,.0f}", f"{result.cross_entropy:.4f}", "the model's loss")
    table.add_row("limpid", f"{result.size:,}", f"{result.bits_per_byte:.4f}", coding)
    for name, size in result.baselines.items():
        ratio = f"{size / result.size:.2f} × limpid"
        table.add_row(name, f"{size:,}", f"{8 * size / result.original:.4f}", ratio)
    yield table
    speed = f"{result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    yield f"{result.tokens:,} tokens in {result.seconds:.1f} s, {speed}"
