"""Tokens to text while they come, without half characters and without any part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"
"""What a decoder writes for bytes that are not yet a character."""


class Detokenizer:
    """One continuation as it grows. What was returned is never taken back."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.tokens: list[int] = []
        self.end: int | None = None  # the token that ended it
        self.text = ""  # whole characters so far
        self.emitted = 0  # characters returned
        self.stopped = False
        self._settled = 0  # tokens whose text is final
        self._context = 0  # tokens before those, which a decoder may need to see

    def add(self, token: int) -> str:
        """Take one more token; returns the text that is now certain."""
        self.tokens.append(token)
        before = self.tokenizer.decode(self.tokens[self._context : self._settled])
        with_new = self.tokenizer.decode(self.tokens[self._context :])
        if with_new.endswith(INCOMPLETE) or len(with_new) <= len(before):
            return ""
        self.text += with_new[len(before) :]
        self._context, self._settled = self._settled, len(self.tokens)
        return self._emit(self._certain())

    def finish(self) -> str:
        """The rest, when nothing more comes: incomplete characters included."""
        if self.stopped:
            return ""
        before = self.tokenizer.decode(self.tokens[self._context : self._settled])
        self.text += self.tokenizer.decode(self.tokens[self._context :])[len(before) :]
        self._cut()
        return self._emit(len(self.text))

    def _certain(self) -> int:
        """How many characters cannot be part of a stop string."""
        if self._cut():
            return len(self.text)
        held = 0
        for stop in self.stop:
            for length in range(min(len(stop) - 1, len(self.text)), 0, -1):
                if self.text.endswith(stop[:length]):
                    held = max(held, length)
                    break
        return len(self.text) - held

    def _cut(self) -> bool:
        """End the text before the first stop string in it."""
        places = [
            place
            for place in (self.text.find(stop, max(0, self.emitted - len(stop))) for stop in self.stop)
            if place >= 0
        ]
        if places:
            self.text, self.stopped = self.text[: max(min(places), self.emitted)], True
        return self.stopped

    def _emit(self, end: int) -> str:
        new, self.emitted = self.text[self.emitted : end], max(self.emitted, end)
        return new
