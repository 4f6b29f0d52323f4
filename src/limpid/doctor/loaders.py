"""Loaders of torch's that live in this process, and how many rows their data has."""

from __future__ import annotations

import gc
from collections.abc import Sized

from torch.utils.data import DataLoader


def rows_of_loaders() -> set[int]:
    """The length of every data set that a loader has and that knows it; one walk over what the garbage collector knows.

    A subclass, as accelerate's, is a loader, too.
    """
    loaders = [one for one in gc.get_objects() if issubclass(type(one), DataLoader)]
    return {len(one.dataset) for one in loaders if isinstance(one.dataset, Sized)}
