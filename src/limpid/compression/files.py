"""Files and standard streams, compressed by a model and given back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from limpid.compression import Compressed, Decompressed, compress_stream, decompress_stream
from limpid.compression.container import Header, read_header
from limpid.config import WeightFormat
from limpid.config.arguments import checked
from limpid.config.options import require
from limpid.errors import CheckpointError, ConfigError, DataError, LimpidError
from limpid.files import explained, open_to_read, standard_input, standard_output, user_path
from limpid.loaded import LoadedModel, Opened, open_model
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.source import Adapted, Checkpoint, find_model

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer

ENDING = ".limpid"


@checked
def compress(
    what: str | Path | Run | tuple[Transformer, Tokenizer],
    file: str | Path,
    output: str | Path | None = None,
    *,
    weights: WeightFormat = "auto",
    force: bool = False,
    reporter: Reporter = SILENT,
) -> Compressed:
    """Compress a file of any bytes by a model's predictions: a token of probability p costs -log₂ p bits.

    file     "-" is standard input
    output   file to write, "-" for standard output; FILE.limpid when left out
    weights  format in which matrices are read; recorded in the file
    force    replace a file that exists
    Raises   CheckpointError when there is no such model; DataError, ConfigError for files that cannot be used
    """
    name = str(file)
    target = _target(output, None if name == "-" else Path(name + ENDING), force, user_path(name))
    _require_no_part(target, what)
    reporter.progress("loading the model", 0)
    with _opened(name) as source:
        model = open_model(what)
        expected = None if name == "-" else os.fstat(source.fileno()).st_size
        with _written(target) as stream:
            result = compress_stream(
                model.transformer, model.tokenizer, model.start, source, stream,
                name=model.name, weights=weights, reporter=reporter, expected=expected,
            )  # fmt: skip
    reporter.close()
    return replace(result, file=target)


@checked
def decompress(
    file: str | Path,
    output: str | Path | None = None,
    *,
    model: str | Path | Run | tuple[Transformer, Tokenizer] | None = None,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> Decompressed:
    """Give back the file that was compressed, bit for bit.

    output  file to write, "-" for standard output; FILE without .limpid when left out
    model   the model that it was compressed with; the one that the file names when left out
    Raises  DataError for a file that is damaged or was not made by limpid; CheckpointError for another model
    """
    name = str(file)
    source_name = "standard input" if name == "-" else name
    stripped = Path(name[: -len(ENDING)]) if name.endswith(ENDING) else None
    if name != "-" and stripped is None and output is None:
        require(user_path(name).exists(), f"{name} does not exist: give a file that limpid compress made")
        raise ConfigError(f"{name} does not end in {ENDING}, so its original has no name: give one with --output")
    target = _target(output, stripped, force, user_path(name))
    if model is not None:
        _require_no_part(target, model)
    reporter.progress("loading the model", 0)
    with _opened(name) as source:
        header = read_header(source, source_name)
        opened = _named_model(header, source_name) if model is None else open_model(model)
        with _written(target) as out:
            total = decompress_stream(
                opened.transformer, opened.tokenizer, opened.start, source, out,
                where=source_name, header=header, reporter=reporter,
            )  # fmt: skip
    reporter.close()
    return Decompressed(opened.name, total, target)


def _named_model(header: Header, where: str) -> LoadedModel:
    """The model that a file names.

    Raises  CheckpointError when it is not here
    """
    try:
        return open_model(header.name)
    except LimpidError as error:
        raise CheckpointError(
            f"{where} was compressed with {header.name}, {header.model.hex()[:12]}, which is not here: "
            "give the model with --model"
        ) from error


def _target(output: str | Path | None, default: Path | None, force: bool, source: Path) -> Path | None:
    """Where to write; None is standard output.

    Raises  ConfigError rather than overwrite a file, or the one that is read
    """
    if str(output) == "-" or (output is None and default is None):
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


def _require_no_part(target: Path | None, what: str | Path | Run | Opened) -> None:
    """Raise ConfigError rather than overwrite a file of the model, which --force does not mean."""
    if isinstance(what, tuple):
        return
    model = find_model(what)
    folders = [model.path, model.base.path] if isinstance(model, Adapted) else [model.path]
    folders = [one.parent.parent if isinstance(model, Checkpoint) else one for one in folders]
    for folder in folders:
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
