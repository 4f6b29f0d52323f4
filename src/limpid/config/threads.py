"""The processor threads of one command."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import import_module

from limpid.config.domain import Whole
from limpid.config.options import require
from limpid.machine import processors


@dataclass(frozen=True)
class Threads:
    """Base of the flags of verbs that compute."""

    threads: Whole = field(default=0, kw_only=True)
    """Processor threads; 0 is as many as OMP_NUM_THREADS says, or all that this process may use."""


def require_threads(count: int) -> None:
    """Raise ConfigError for more threads than there are processors."""
    most = processors()
    require(
        count <= most,
        f"threads is {count}: this process may use {most} processors, and more threads than that wait for each other",
    )


def use_threads(count: int) -> None:
    """Let NumPy and PyTorch compute with so many threads; 0 leaves them their choice.

    Raises  ConfigError for more threads than there are processors
    """
    if not count:
        return
    require_threads(count)
    import_module("numpy")
    from threadpoolctl import threadpool_limits

    threadpool_limits(count)
    torch = sys.modules.get("torch") or import_module("torch")
    torch.set_num_threads(count)
