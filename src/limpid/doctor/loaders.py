"""Loaders of torch's that live in this process, and how many rows their data has."""

from __future__ import annotations

import contextlib
from collections.abc import Sized

from torch.utils.data import DataLoader

from limpid.doctor.alive import alive


def rows_of_loaders() -> set[int]:
    """The length of every data set that a loader has and that knows it; one walk over what the garbage collector knows.

    A subclass, as accelerate's, is a loader, too.
    """
    found: set[int] = set()
    for one in alive(DataLoader):
        data = getattr(one, "dataset", None)
        with contextlib.suppress(Exception):  # a length is the user's own code
            found |= {len(data)} if isinstance(data, Sized) else set()
    return found
