"""What an optimizer held before the first update that was seen: nothing, or what it was loaded with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from limpid.doctor.description.words import counted, number
from limpid.doctor.weights import root_mean_square

if TYPE_CHECKING:
    from limpid.doctor.watched import Watched


def state_before(watched: Watched) -> tuple[str, ...]:
    """In a sentence for each optimizer that holds something of its parameters."""
    said = ((type(one).__name__, _of(getattr(one, "state", None) or {})) for one in watched.optimizers)
    return tuple(f"before the first update {name} held {what}" for name, what in said if what)


def _of(state: dict[Any, Any]) -> str:
    held = [one for one in state.values() if isinstance(one, dict) and one]
    if not held:
        return ""
    names = dict.fromkeys(name for one in held for name in one)
    entries = [told for name in names if (told := _entry(name, [one[name] for one in held if name in one]))]
    return f"{', '.join(entries)}, of {counted(len(held), 'tensor')}" if entries else ""


def _entry(name: str, values: Sequence[Any]) -> str:
    """A count, or the median size of what has as many entries as its parameter."""
    single = [float(v) for v in values if isinstance(v, int | float) or (isinstance(v, Tensor) and v.numel() == 1)]
    if len(single) == len(values):
        low, high = min(single), max(single)
        whole = all(value.is_integer() for value in single)
        shown = [number(int(one)) if whole else f"{one:.3g}" for one in (low, high)]
        return f"{name} {shown[0] if low == high else ' to '.join(shown)}"
    sizes = sorted(root_mean_square(v) for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.numel())
    return f"{name} (rms {sizes[len(sizes) // 2]:.2g})" if sizes else ""
