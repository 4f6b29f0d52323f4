"""A record that nothing can be learned from: why, in a few words to count by and in a line to read."""

from __future__ import annotations

from limpid.errors import DataError


class BadRow(DataError):
    """One record of many, which may be passed over where that is asked for."""

    def __init__(self, reason: str, line: str) -> None:
        super().__init__(line)
        self.reason = reason
