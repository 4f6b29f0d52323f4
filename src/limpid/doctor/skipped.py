"""What could not be done, and why: the one place where an error inside the doctor ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

MANY = 100
"""Errors after which the doctor stops listening: what fails at every step would only cost time."""


class Skipped(dict[str, str]):
    """By what was tried, the first error that ended it."""

    errors = 0

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Run the block; an error in it ends the block, is noted, and never reaches the training."""
        try:
            yield
        except Exception as error:
            self.setdefault(what, f"{type(error).__name__}: {error}".split("\n")[0][:200])
            self.errors += 1

    @property
    def too_many(self) -> bool:
        return self.errors > MANY
