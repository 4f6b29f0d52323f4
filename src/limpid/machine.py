"""The machine that limpid runs on: how many processors and how much memory this process may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much a container may take."""


def processors() -> int:
    """Processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux binds processes
        return os.cpu_count() or 1


def total_memory() -> int:
    """Bytes of the machine's memory, or of what a container may take of it."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(GROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return physical


def available_memory() -> int:
    """Bytes that a process could take now: the machine's memory without what other programs hold."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return min(1024 * int(lines["MemAvailable"].split()[0]), total_memory())
    except (OSError, KeyError, ValueError):  # not Linux
        return total_memory()


def process_peak() -> int | None:
    """Bytes of memory that this process has held at most; None where the system does not say."""
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
