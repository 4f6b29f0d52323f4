"""Addresses of the page: what stands behind # in it, in the page, the terminal and a notebook alike.

web/src/address.ts reads them, and writes the same.
"""

from __future__ import annotations

import re
from urllib.parse import quote

PLAIN = "-_.!~*'()[],@:"
"""Marks that stay as they are, beside letters and digits: entries can be read."""
HOME = "#/"


def of_run(*names: str) -> str:
    """The curves of a run, or of several over each other."""
    return _joined(",".join(names))


def of_step(run: str, step: int, entry: str | None = None) -> str:
    """A step of a run, or one entry of it: NAME[i, j, …]."""
    return _joined(run, str(step), *([] if entry is None else [re.sub(r",\s+", ",", entry)]))


def of_pair(a: str, b: str) -> str:
    """Two steps, RUN/STEP, checkpoints, RUN@STEP, or runs beside each other."""
    return _joined("compare", a, b)


def _joined(*parts: str) -> str:
    return HOME + "/".join(quote(part, safe=PLAIN) for part in parts)
