"""What takes long, and what cannot be answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Missing = Literal["record", "document", "exact"]
"""What has to be made first, by a job: the recorded step, its document, or an array redone in float64."""
JobState = Literal["running", "done", "failed"]


@dataclass(frozen=True)
class ErrorDocument:
    """Why there is no answer, in one line."""

    error: str
    missing: Missing | None = None


@dataclass(frozen=True)
class JobDocument:
    """Work that takes long, and how far it is."""

    job: str
    what: str
    state: JobState
    doing: str
    done: int
    total: int | None
    error: str
