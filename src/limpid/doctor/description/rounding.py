"""What rounding does to outputs: a pass held against the same pass in float64, and where the difference arises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limpid.adjoints.widened import Alike, Widened
from limpid.doctor.calls import find_rows
from limpid.doctor.description.others import outputs

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

TOLD = 1e-4
"""Share of how outputs differ between rows: float32 leaves a hundredth of it or less."""
ARISES, GROWS = 0.3, 30.0
"""Share of the outputs' error that a module's must have, and over that of what it is given, to be where it arises."""
ROWS, POSITIONS = 2, 64
"""Of a batch of tokens: enough to tell rows apart, where float64 takes twice as long."""
ROW = 0
"""The axis of rows."""


@dataclass(frozen=True)
class Rounding:
    """Root mean squares of errors over those of how outputs differ between rows, before the first update."""

    outputs: float
    where: str = ""  # the first module to be called that adds most of it, where there is such
    given: float = 0.0  # the error of what that module is given
    returned: float = 0.0  # and of what it returns

    def told(self) -> Iterator[str]:
        """In a sentence, where it is more than float32 leaves."""
        if self.outputs > TOLD:
            arises = f"; most arises in {self.where}: {self.given:.2g} of what it is given, {self.returned:.2g} of "
            yield (
                f"outputs lie {self.outputs:.2g} of how they differ between rows (rms) from those that the "
                f"same pass has in float64{f'{arises}what it returns' if self.where else ''}"
            )


def rounding(exam: Exam) -> Rounding | None:
    """Measured on a few rows in evaluation mode; None where no pass can be made, or rows have one output."""
    call = exam.few_rows
    if call is None or exam.info.translates:
        return None
    if call.ids is not None:
        call = call.rows(slice(0, ROWS), POSITIONS)
    call, names = call.without_loss(), {module: name for name, module in exam.info.model.named_modules() if name}
    with _seen(names) as own:
        made = outputs(exam, call, find_rows)
    if made is None:
        return None
    with _seen(names) as exact, Alike(), Widened():
        wide = outputs(exam, call, find_rows)
    error = None if wide is None else _error(made, wide)
    if error is None:
        return None
    for name, (given, returned) in own.items() if error > TOLD else ():
        before, after = (_error(*pair) for pair in zip((given, returned), exact.get(name, (None, None)), strict=True))
        if before is not None and after is not None and after > max(ARISES * error, GROWS * before):
            return Rounding(error, name, before, after)
    return Rounding(error)


@contextlib.contextmanager
def _seen(names: dict[nn.Module, str]) -> Iterator[dict[str, tuple[Tensor | None, Tensor | None]]]:
    """By module, in the order in which they return, what its first call was given and returned."""
    seen: dict[str, tuple[Tensor | None, Tensor | None]] = {}

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        given = (one for one in [*args, *kwargs.values()] if isinstance(one, Tensor) and one.is_floating_point())
        seen.setdefault(names[module], (next(given, None), find_rows(made)))

    handles = [module.register_forward_hook(look, with_kwargs=True) for module in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _error(made: Tensor | None, exact: Tensor | None) -> float | None:
    """How far one lies from the other over how the other's rows differ (rms); None where that is nothing."""
    if made is None or exact is None or made.shape != exact.shape or made.ndim < 1 or not exact.is_floating_point():
        return None
    x, y = made.detach().double(), exact.detach().double()
    apart, off = (y - y.mean(ROW)).square().mean().sqrt(), (x - y).square().mean().sqrt()
    return float(off / apart) if bool(apart > 0) and bool(torch.isfinite(off / apart)) else None
