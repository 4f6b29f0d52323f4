"""One shard on disk: token ids, a table of its documents, and the sidecar that says what both are, written last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from limpid.data.cache import Cache, hash_of
from limpid.data.decoding import NoText, NotText
from limpid.errors import DataError
from limpid.files import one_line, write_atomically
from limpid.manifest import sha256

Array = np.ndarray
VERSION = 1
DOCUMENT = np.dtype([("input", "<i4"), ("line", "<i8"), ("tokens", "<i8"), ("bytes", "<i8"), ("text", "<u8")])
"""A document: its input, its line there (0 where the input is one document), its tokens with the mark at the end, the
bytes of its text, and a hash of them."""
TOKENS, DOCUMENTS, SIDECAR = ".tokens", ".documents", ".json"


@dataclass(frozen=True)
class Input:
    """What one file or dataset brought to a shard."""

    name: str  # as it was given
    place: str  # absolute path; of a hub dataset its name
    bytes: int  # of the file, as it lies there; of a hub dataset of its texts
    changed: int  # when the file did last, ns since 1970; 0 of a hub dataset
    sha256: str  # of the file; of a hub dataset of its texts
    documents: int
    tokens: int
    passed_over: tuple[str, str] | None = None  # why nothing of it was read: the class of the error, what it said

    @property
    def refusal(self) -> DataError | None:
        """Why nothing of it was read."""
        kinds = {kind.__name__: kind for kind in (NotText, NoText)}
        return None if self.passed_over is None else kinds.get(self.passed_over[0], DataError)(self.passed_over[1])


@dataclass(frozen=True)
class Sidecar:
    """What a shard holds, and what it was made of."""

    version: int
    tokenizer: str  # SHA-256 of its JSON
    settings: str  # hash of all else that its documents depend on
    dtype: str  # of a token
    documents: int
    tokens: int
    text_bytes: int
    left_out: int  # documents
    inputs: tuple[Input, ...]
    files: dict[str, str]  # SHA-256 by ending

    def to_json(self) -> bytes:
        """The content of its file."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode(errors="surrogatepass")

    @classmethod
    def parse(cls, text: bytes) -> Sidecar:
        """From the content of its file; raises ValueError, KeyError or TypeError where that is none."""
        plain = json.loads(text.decode(errors="surrogatepass"))
        inputs = tuple(Input(**one) for one in plain.pop("inputs"))
        return cls(inputs=inputs, **plain)


@dataclass(frozen=True)
class Shard:
    """Where a shard lies: its files differ by their endings."""

    folder: Path
    name: str

    def file(self, ending: str) -> Path:
        return self.folder / (self.name + ending)

    def read(self) -> Sidecar:
        """What it holds; raises DataError naming the file that is missing or damaged."""
        file = self.file(SIDECAR)
        try:
            found = Sidecar.parse(file.read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"{file} is missing: {_again(self.folder)}") from error
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; see to its rights, or to the disk") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{file} is damaged ({one_line(error):.60}): {_again(self.folder)}") from error
        if found.version != VERSION:
            raise DataError(f"{file} is of version {found.version}, expected {VERSION}: {_again(self.folder)}")
        return found

    def write(self, sidecar: Sidecar) -> None:
        """Make it whole: from here on it is there."""
        write_atomically(self.file(SIDECAR), sidecar.to_json())

    def require_whole(self, sidecar: Sidecar, cache: Cache) -> None:
        """Raise DataError naming the first file that is missing or not as it was written.

        Files are hashed once: after that their size, inode and times of change vouch for them, as the cache remembers.
        """
        sizes = {
            TOKENS: sidecar.tokens * np.dtype(sidecar.dtype).itemsize,
            DOCUMENTS: sidecar.documents * DOCUMENT.itemsize,
        }
        for ending, size in sizes.items():
            file = self.file(ending)
            try:
                state = file.stat()
                if state.st_size != size:
                    raise DataError(
                        f"{file} has {state.st_size:,} bytes, and {size:,} were written: {_again(self.folder)}"
                    )
                known = hash_of(str(file.absolute()), state.st_ino, size, state.st_mtime_ns, state.st_ctime_ns)
                if cache.recall(known) != {"sha256": sidecar.files[ending]}:
                    if sha256(file) != sidecar.files[ending]:
                        raise DataError(f"{file} is damaged: its SHA-256 is another: {_again(self.folder)}")
                    cache.remember(known, {"sha256": sidecar.files[ending]})
            except FileNotFoundError as error:
                raise DataError(f"{file} is missing: {_again(self.folder)}") from error
            except OSError as error:
                raise DataError(f"cannot read {file}: {error.strerror}; see to its rights, or to the disk") from error

    def tokens(self, sidecar: Sidecar) -> Array:
        """Its ids, mapped."""
        return _mapped(self.file(TOKENS), np.dtype(sidecar.dtype))

    def documents(self) -> Array:
        """Its table of documents, mapped."""
        return _mapped(self.file(DOCUMENTS), DOCUMENT)


def _mapped(file: Path, dtype: np.dtype[Any]) -> Array:
    """A whole file; one that is empty cannot be mapped."""
    try:
        return np.memmap(file, dtype, "r") if file.stat().st_size else np.empty(0, dtype)
    except OSError as error:
        raise DataError(
            f"cannot open {file}: {error.strerror}; close other programs, or raise the limit (ulimit -n)"
        ) from error


def _again(folder: Path) -> str:
    return f"run limpid data tokenize with -o {folder} again, which makes what is not whole"
