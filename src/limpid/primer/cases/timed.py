"""Times of norms as `python -m benchmarks.norms --keep` measured them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

PARTS = {"forward": "forward", "both": "both passes"}


class Timed(NamedTuple):
    """Milliseconds of both norms on the same vectors."""

    written: str
    """By whom, or how."""
    part: str
    layer: float
    rms: float
    ratio: float
    """Of the second to the first, the median of many rounds."""


class Times(NamedTuple):
    """What was measured, and on what."""

    vectors: int
    width: int
    processor: str
    torch: str
    rows: tuple[Timed, ...]


@cache
def norms() -> Times:
    """Layer norm beside RMS norm."""
    read = json.loads(Path(__file__).with_name("norm_times.json").read_text(encoding="utf-8"))
    rows = tuple(Timed(**row | {"part": PARTS[row["part"]]}) for row in read["rows"])
    return Times(read["vectors"], read["width"], read["processor"].partition(",")[0], read["torch"].partition("+")[0],
                 rows)  # fmt: skip
