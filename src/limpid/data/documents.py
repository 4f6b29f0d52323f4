"""Where the text comes from: files, folders, globs, standard input, hub datasets; found first, read when needed."""

from __future__ import annotations

import contextlib
import copy
import difflib
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from limpid.config import DataConfig
from limpid.data.columns import HUB
from limpid.data.decoding import NoText, NotText
from limpid.data.formats import (
    Chunk,
    Record,
    chunks_of,
    chunks_of_hub,
    chunks_of_stream,
    records_of,
    records_of_hub,
    records_of_stream,
)
from limpid.data.left_out import read_list
from limpid.data.records import document_name
from limpid.data.spool import Spool
from limpid.errors import DataError
from limpid.files import open_to_read, standard_input, user_path

Found = TypeVar("Found", Chunk, Record)
STANDARD_LIBRARY = Path(os.__file__).parent
NOT_PROSE = {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "encodings",
             "site-packages", "dist-packages", "__pycache__"}  # fmt: skip
"""Folders of the standard library that repeat themselves, or are not part of it."""
HELD = 1 << 22
"""Characters of a file that is being judged that are kept, so that a short one is read once."""
RECORD_HELD = 1 << 12
"""Characters that a record is taken to have: its size is not known before it is text."""
TOKENIZED = "tokens.json"
"""File that makes a folder one of tokens."""
STANDARD_INPUT = "standard input"
STANDARD_TEXT = "Python's standard library"
WAY_OUT = "give files, folders, globs, - for standard input, or hf:NAME:CONFIG:SPLIT"


@dataclass(frozen=True)
class Source:
    """A file, a stream or a hub dataset."""

    name: str
    path: Path | None = None  # of a file
    spool: Spool | None = None  # of a stream
    given: int = 0  # which of the given paths it is of
    searched: bool = False  # found by a folder or glob: passed over when it cannot be read

    @property
    def place(self) -> Path | str:
        """What two names of one source have in common."""
        return self.path.resolve() if self.path else self.name


class Corpus:
    """All documents of a configuration, always in the same order; only their places are held in memory."""

    def __init__(self, data: DataConfig) -> None:
        self.text_field = data.text_field
        self.list = None if data.leave_out is None else user_path(data.leave_out)
        self.leave_out = frozenset() if self.list is None else read_list(self.list)
        self.found_left_out: set[str] = set()
        """Those of `leave_out` that were come across."""
        self.hidden = self.runs = self.tokenized = 0
        self.judged: dict[str, DataError | None] = {}
        """Files that were searched for: what is wrong with each of them."""
        self.default = not data.paths
        self.given = [*(data.paths or [STANDARD_TEXT]), *data.validation_paths]
        """The paths as they were given, those to validate on last."""
        self.validation = frozenset(range(len(self.given) - len(data.validation), len(self.given)))
        found = [replace(source, given=given) for given in range(len(self.given)) for source in self._of(given)]
        apart = {source.place for source in found if source.given in self.validation}
        wanted = [source for source in found if source.given in self.validation or source.place not in apart]
        self.kept_apart = len(found) - len(wanted)
        places = {source.place: source for source in reversed(wanted)}
        self.sources = list(reversed(places.values()))
        if data.weights or data.validation:
            self.sources.sort(key=lambda source: source.given)  # what a path brings lies together
        self.repeated = len(wanted) - len(self.sources)
        present = {source.given in self.validation for source in self.sources}
        if False not in present:
            besides = " besides what is to be validated on" if self.kept_apart else ""
            raise DataError(f"no text in {', '.join(data.paths)}{besides}: {WAY_OUT}")
        if data.validation and True not in present:
            raise DataError(f"no text to validate on in {', '.join(data.validation_paths)}: {WAY_OUT}")

    @property
    def path_of(self) -> dict[str, int]:
        """Which of the given paths each source is of."""
        return {source.name: source.given for source in self.sources}

    def _of(self, given: int) -> list[Source]:
        return self._standard_library() if self.default and given == 0 else self._find(self.given[given])

    def chunks(self) -> Iterator[Chunk]:
        """Every document that is not empty, read anew each time."""
        field = self.text_field
        return self._read(
            lambda path, name: chunks_of(path, name, field),
            lambda blocks, name: chunks_of_stream(blocks, name, field),
            lambda name: chunks_of_hub(name, field),
            lambda chunk: len(chunk.text),
        )

    def records(self) -> Iterator[Record]:
        """Every record with all of its fields, read anew each time."""
        return self._read(records_of, records_of_stream, records_of_hub, lambda _: RECORD_HELD)

    def _read(
        self,
        of_file: Callable[[Path, str], Iterator[Found]],
        of_stream: Callable[[Iterator[bytes], str], Iterator[Found]],
        of_hub: Callable[[str], Iterator[Found]],
        size: Callable[[Found], int],
    ) -> Iterator[Found]:
        for source in self.sources:
            if source.spool is not None:
                found = of_stream(source.spool.blocks(), source.name)
            elif source.path is None:
                found = of_hub(source.name)
            elif source.searched:
                found = self._searched(source.name, source.path, of_file, size)
            else:
                found = of_file(source.path, source.name)
            yield from self._kept(source, found) if self.leave_out else found

    def _kept(self, source: Source, all_found: Iterator[Found]) -> Iterator[Found]:
        """The same without what is to be left out."""
        place = str(source.place)
        for found in all_found:
            name = document_name(place, found.line)
            if name in self.leave_out:
                self.found_left_out.add(name)
            else:
                yield found

    def part(self, sources: Sequence[Source]) -> Corpus:
        """The same corpus of these sources alone."""
        part = copy.copy(self)
        part.sources, part.judged, part.found_left_out = list(sources), {}, set()
        return part

    def _searched(
        self,
        name: str,
        path: Path,
        of_file: Callable[[Path, str], Iterator[Found]],
        size: Callable[[Found], int],
    ) -> Iterator[Found]:
        """What is in a file that nobody named; nothing when any of it cannot be read, as the first reading finds."""
        held: list[Found] | None = []
        if name not in self.judged:
            characters = 0
            try:
                for found in of_file(path, name):
                    characters += size(found)
                    if held is not None and characters <= HELD:
                        held.append(found)
                    else:
                        held = None
            except DataError as error:
                self.judged[name] = error
            else:
                self.judged[name] = None
                if held is not None:  # short: not read twice
                    yield from held
                    return
        if self.judged[name] is None:
            yield from of_file(path, name)

    def require_text(self, documents_of: Mapping[int, int], each: bool) -> None:
        """Raise DataError when a reading found no document (of each path, or at all), with the reason if there is one.

        Paths to validate on must hold some too
        """
        training = range(len(self.given) - len(self.validation))
        groups = [[path] for path in training] if each else [[*training]]
        for group in [*groups, [*self.validation]]:
            if group and not any(documents_of.get(path) for path in group):
                sources = [source.name for source in self.sources if source.given in group]
                errors = (self.judged.get(name) for name in sources)
                why = next((str(error) for error in errors if error is not None), WAY_OUT)
                raise DataError(f"no text in {', '.join(sources[:3] or [self.given[path] for path in group])}: {why}")

    def manifest(self) -> list[tuple[str, int, int, int, int]] | None:
        """Path, inode, size and times of change (ns) of every file; None when something else is read too.

        The time that the system keeps itself (ctime) tells of a change that put the other one back, as `cp -p` does.
        """
        if any(source.path is None for source in self.sources):
            return None
        states = []
        lists = [] if self.list is None else [self.list]  # of what is left out
        for path in [*(source.path for source in self.sources if source.path is not None), *lists]:
            try:
                state = path.stat()
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}; leave it out") from error
            times = state.st_mtime_ns, state.st_ctime_ns
            states.append((str(path.absolute()), state.st_ino, state.st_size, *times))
        return states

    def notes(self) -> list[str]:
        """What a user should know about the choice of documents, once they were read."""
        remarks = []
        if self.default:
            remarks.append(
                f"no paths given: the text is the Python standard library's own source, {len(self.sources)} files"
            )
        kinds = ((NotText, "they are not UTF-8 text"), (NoText, "they are empty"), (DataError, "they cannot be read"))
        wrong = {name: error for name, error in sorted(self.judged.items()) if error is not None}
        for kind, why in kinds:
            names = [name for name, error in wrong.items() if type(error) is kind]
            if names and not self.default:
                example = wrong[names[0]] if kind is DataError else names[0]
                remarks.append(f"files passed over because {why}: {len(names)}, for example {example}")
        if self.runs:
            remarks.append(f"runs of limpid's own passed over: {self.runs}")
        if self.hidden:
            remarks.append(f"hidden files and folders passed over: {self.hidden}")
        if self.tokenized:
            remarks.append(f"folders of tokens passed over: {self.tokenized}")
        if self.leave_out:
            found = f"{len(self.found_left_out):,} of {len(self.leave_out):,}"
            remarks.append(f"documents left out because --leave-out lists them: {found} listed")
        if self.kept_apart:
            remarks.append(f"files not trained on because they are to be validated on: {self.kept_apart}")
        if self.repeated:
            remarks.append(f"files named more than once are read once: {self.repeated} repeated")
        return remarks

    def _find(self, path: str) -> list[Source]:
        """The sources that one argument stands for, in order."""
        if not path:
            raise DataError(f"a path is empty: {WAY_OUT}")
        if path == "-":
            return [Source(STANDARD_INPUT, spool=Spool(standard_input().buffer, STANDARD_INPUT))]
        if path.startswith(HUB):
            return [Source(path)]
        place = user_path(path)
        if place.is_dir():
            return self._walk(place)
        if place.is_file():
            return [Source(path, place)]
        if place.exists():  # a pipe, such as the shell's <(…)
            return [Source(path, spool=Spool(open_to_read(place, path), path))]
        if glob.has_magic(path):
            matches = sorted(glob.glob(str(place), recursive=True))
            if not matches:
                raise DataError(f"no file matches {path}: {WAY_OUT}")
            return [Source(match, Path(match), searched=True) for match in matches if Path(match).is_file()]
        raise _missing(path, place)

    def _walk(self, folder: Path) -> list[Source]:
        """The files of a folder and all folders in it, sorted, without hidden ones."""

        def refuse(error: OSError) -> None:
            raise DataError(f"cannot read folder {error.filename}: {error.strerror}; leave it out") from error

        sources = []
        for place, folders, files in os.walk(folder, onerror=refuse):
            if Path(place) != folder and "config.toml" in files and "checkpoints" in folders:
                self.runs += 1
                folders.clear()
                continue
            if Path(place) != folder and is_tokenized(Path(place)):
                self.tokenized += 1
                folders.clear()
                continue
            self.hidden += sum(name.startswith(".") for name in folders + files)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = [Path(place, name) for name in sorted(files) if not name.startswith(".")]
            sources += [Source(str(path), path, searched=True) for path in paths if path.is_file()]
        return sources

    def _standard_library(self) -> list[Source]:
        sources = []
        for place, folders, files in os.walk(STANDARD_LIBRARY):
            folders[:] = sorted(name for name in folders if name not in NOT_PROSE)
            paths = [Path(place, name) for name in sorted(files) if name.endswith(".py")]
            sources += [Source(str(path.relative_to(STANDARD_LIBRARY.parent)), path, searched=True) for path in paths]
        if not sources:
            raise DataError(f"no paths given, and Python's own sources are not in {STANDARD_LIBRARY}: {WAY_OUT}")
        return sources


def is_tokenized(folder: Path) -> bool:
    """Whether `limpid data tokenize` made this folder, or is making it."""
    return (folder / TOKENIZED).is_file()


def require_there(paths: Sequence[str]) -> None:
    """Raise DataError for the first path that stands for nothing, before anything is read."""
    for path in paths:
        place = user_path(path)
        if path and path != "-" and not path.startswith(HUB) and not glob.has_magic(path) and not place.exists():
            raise _missing(path, place)


def _missing(path: str, place: Path) -> DataError:
    """The error for a path that does not exist, naming what lies beside it under nearly this name."""
    if place.is_symlink():
        return DataError(f"{path} is a link to {os.readlink(place)}, which does not exist: {WAY_OUT}")
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [entry.name for entry in place.parent.iterdir()]
    close = difflib.get_close_matches(place.name, names, 1)
    return DataError(f"{path} does not exist: {f'did you mean {place.parent / close[0]}?' if close else WAY_OUT}")
