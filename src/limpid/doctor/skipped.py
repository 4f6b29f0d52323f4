"""What could not be done, and why: the one place where an error inside the doctor ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

MANY = 100
"""Errors after which the doctor stops listening: what fails at every step would only cost time."""


class Skipped(dict[str, str]):
    """By what was tried, why it was not done; each is told once."""

    def __init__(self, tell: Callable[[str, str], None] = lambda what, why: None) -> None:
        super().__init__()
        self.tell = tell
        self.errors = 0

    def note(self, what: str, why: str) -> None:
        if what not in self:
            self[what] = why
            self.tell(what, why)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Run the block; an error in it ends the block, is noted, and never reaches the training."""
        try:
            yield
        except Exception as error:
            self.errors += 1
            self.note(what, f"{type(error).__name__}: {error}".split("\n")[0][:200])

    @property
    def too_many(self) -> bool:
        return self.errors > MANY
