"""A folder of tokens: its tokenizer, and the shards in the order of their inputs, listed in one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from limpid.data.cache import Cache
from limpid.data.documents import TOKENIZED, is_tokenized
from limpid.data.shards.shard import VERSION, Shard, Sidecar
from limpid.data.shards.write import TOKENIZER
from limpid.data.tokenizer import Tokenizer
from limpid.errors import DataError
from limpid.files import one_line, parse_json, user_path, write_atomically


@dataclass(frozen=True)
class Contents:
    """What a folder's list says."""

    version: int
    complete: bool  # every input has its shard
    asked: str  # how the tokenizer was named when it was made: bpe, bytes, characters, or the path of a file
    tokenizer: str  # SHA-256 of its JSON
    settings: dict[str, Any]  # what documents depend on besides inputs
    shards: dict[str, str]  # SHA-256 of the sidecar by name, in order

    def to_json(self) -> bytes:
        """The content of its file."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True)
class TokensFolder:
    """A folder that `limpid data tokenize` made, or is making."""

    path: Path

    @cached_property
    def contents(self) -> Contents:
        """What its list says; raises DataError where that is damaged."""
        file = self.path / TOKENIZED
        try:
            found = Contents(**parse_json(file.read_bytes()))
            if found.version != VERSION:
                raise ValueError(f"it is of version {found.version}")
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{file} is no list of tokens ({one_line(error):.60}): remove it, and run limpid data tokenize again"
            ) from error
        return found

    def write(self, contents: Contents) -> None:
        """Replace the list."""
        write_atomically(self.path / TOKENIZED, contents.to_json())
        self.__dict__["contents"] = contents

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer; raises DataError when it is another than the one that made the tokens."""
        file = self.path / TOKENIZER
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; bring it back, or tokenize again") from error
        if hashlib.sha256(content).hexdigest() != self.contents.tokenizer:
            raise DataError(
                f"{file} is not the tokenizer that made the tokens beside it: bring that one back, or tokenize into "
                "another folder"
            )
        return Tokenizer.from_json(content.decode(), str(file))

    def whole_shards(self) -> Iterator[tuple[Shard, Sidecar]]:
        """Every shard in order, checked.

        Raises  DataError naming the file that is missing, damaged or of another tokenizer, or a folder half made
        """
        if not self.contents.complete:
            raise DataError(f"{self.path} was not tokenized to its end: run the same limpid data tokenize again")
        cache = Cache()
        for name, sha in self.contents.shards.items():
            shard = Shard(self.path, name)
            sidecar = shard.read()
            if hashlib.sha256(sidecar.to_json()).hexdigest() != sha:
                raise DataError(
                    f"{shard.file('.json')} is not the sidecar that was written: run limpid data tokenize with -o "
                    f"{self.path} again"
                )
            shard.require_whole(sidecar, cache)
            yield shard, sidecar


def folders_of(paths: list[str]) -> list[TokensFolder] | None:
    """The folders of tokens that all of these paths are; None when none of them is one.

    Raises  DataError when some are and some are not
    """
    places = [Path("-") if path == "-" or path.startswith("hf:") else user_path(path) for path in paths]
    tokenized = [is_tokenized(place) for place in places]
    if not any(tokenized):
        return None
    if not all(tokenized):
        other = paths[tokenized.index(False)]
        raise DataError(
            f"{paths[tokenized.index(True)]} holds tokens and {other} holds text: tokenize both (limpid data tokenize "
            f"{other} -o FOLDER --tokenizer {places[tokenized.index(True)] / TOKENIZER}), or give text alone"
        )
    return [TokensFolder(place) for place in places]
