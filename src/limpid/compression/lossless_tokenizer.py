"""Any bytes as tokens and back: what a tokenizer cannot restore exactly is kept as plain bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from limpid.data.tokenizer import Tokenizer
from limpid.errors import DataError

LONE = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]+")
"""Runs of bytes that form no character, as Python's surrogateescape spells them, and of text."""

Segment: TypeAlias = list[int] | bytes
"""Tokens, or bytes as they are."""


@dataclass
class LosslessTokenizer:
    """A tokenizer that restores every byte. Segments, each turned back by `bytes_of`, join to what was given."""

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self._bytes: dict[int, bytes] = {}
        self._singles: dict[int, int] = {}  # byte to the token that is this byte alone
        if self.tokenizer.byte_level:
            for id in range(self.tokenizer.vocab_size):
                spelled = self.tokenizer.bytes_of(id)
                if spelled is not None:
                    self._bytes[id] = spelled
                    if len(spelled) == 1:
                        self._singles.setdefault(spelled[0], id)

    def segments(self, content: bytes) -> list[Segment]:
        """Tokens wherever they spell `content` exactly, bytes elsewhere."""
        joined: list[Segment] = []
        for segment in self._split(content.decode(errors="surrogateescape")):
            last = joined[-1] if joined else None
            if isinstance(segment, bytes) and isinstance(last, bytes):
                joined[-1] = last + segment
            elif isinstance(segment, list) and isinstance(last, list) and self.tokenizer.byte_level:
                last += segment
            else:  # tokens of other vocabularies may spell something else when they follow others
                joined.append(segment)
        return joined

    def bytes_of(self, tokens: list[int]) -> bytes:
        """What one segment of tokens spells.

        Raises  KeyError or UnicodeEncodeError for tokens that spell nothing
        """
        if self.tokenizer.byte_level:
            return b"".join(self._bytes[token] for token in tokens)
        return self.tokenizer.decode(tokens).encode()

    def _split(self, text: str) -> Iterator[Segment]:
        for run in LONE.findall(text):
            if "\udc80" <= run[0] <= "\udcff":
                yield self._plain(run.encode(errors="surrogateescape"))
            else:
                yield from self._exactly(run)

    def _exactly(self, text: str) -> Iterator[Segment]:
        """Halves of halves, until each is spelled exactly or a single character."""
        content = text.encode()
        try:
            tokens = self.tokenizer.encode(text)
            exact = self.bytes_of(tokens) == content
        except (DataError, KeyError, UnicodeEncodeError):
            exact = False
        if exact:
            yield tokens
        elif len(text) == 1:
            yield self._plain(content)
        else:
            yield from self._exactly(text[: len(text) // 2])
            yield from self._exactly(text[len(text) // 2 :])

    def _plain(self, content: bytes) -> Segment:
        """Bytes one by one: as tokens where there is one for each."""
        if all(byte in self._singles for byte in content):
            return [self._singles[byte] for byte in content]
        return content
