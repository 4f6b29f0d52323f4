"""Passes in evaluation mode with rows in another order, in other company, or changed at one position.

A row's output may depend on that row alone: not on its number, not on the others, and on each of its positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limpid.doctor.calls import Call, find_rows, is_ids
from limpid.doctor.finding import Skipped
from limpid.doctor.undisturbed import seeded, undisturbed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

ROWS, POSITIONS = 6, 24
"""At most, of the first micro-batch."""
SHORT = 32
"""Positions of each row that are enough where every position has an output: what mixes rows does so at any."""
ALIKE = 1e-4
"""Share of the largest output up to which outputs of two passes are the same."""
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)


class Dropouts(TorchFunctionMode):
    """The probabilities of dropout that is on."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip(("input", "p", "training"), args, strict=False)) | (kwargs or {})
        if func in DROPOUTS and given.get("training", True) and given.get("p", given.get("train", 0.5)):
            self.rates.append(float(given.get("p", 0.5)))
        return func(*args, **(kwargs or {}))


class RowProbe:
    """The usual call on its first rows, made again otherwise; None wherever it cannot be."""

    def __init__(self, exam: Exam) -> None:
        self.exam = exam
        self.skipped = Skipped()

    @cached_property
    def _whole(self) -> tuple[Call, int] | None:
        """The call, and how many rows it has: those of all its tensors, of which none has them twice."""
        call = self.exam.usual_call
        if call is None or not self.exam.may_call or self.exam.info.translates:
            return None
        call = call.without_loss()
        given = [value for value in call.given if value.ndim]
        count = len(given[0]) if given and not given[0].is_sparse else 0
        square = any(list(value.shape).count(count) > 1 for value in given if value.is_floating_point())  # of a graph
        return None if count < 3 or square or not all(len(v) == count for v in given) else (call, count)

    @property
    def of_single_values(self) -> bool:
        """Whether each row is one number or id: what may be the places of one sequence."""
        call = None if self._whole is None else self._whole[0]
        given = [] if call is None else [v for v in [*call.args, *call.kwargs.values()] if isinstance(v, Tensor)]
        return all(value.ndim <= 1 for value in given)

    @cached_property
    def count(self) -> int:
        """Rows of the probe; 0 where there is none."""
        return 0 if self._whole is None else min(ROWS, self._whole[1])

    @cached_property
    def _begun(self) -> tuple[Call, Tensor] | None:
        """The call that all others are changed from, and its outputs: of few positions where these tell rows apart."""
        if self._whole is None:
            return None
        for call in (self._short(), self._whole[0]):  # some models take rows of one length alone
            found = None if call is None else self._outputs(call, torch.clone)
            if call is not None and found is not None and len(found) == self.count:
                return call, found
        return None

    def _short(self) -> Call | None:
        call, plain = self.exam.usual_call, self.exam.plain
        if call is None or call.ids is None or plain is None or plain.ndim < 3 or call.ids.shape[1] <= SHORT:
            return None
        short = call.without_loss().rows(slice(None), SHORT)
        ids, mask = short.ids, short.mask
        if ids is None or (mask is not None and not bool(mask[: self.count].all())):
            return None
        apart = (ids[1 : self.count] != ids[: self.count - 1]).float().mean()  # rows may begin alike, as by a prompt
        return short if float(apart) > 0.5 else None

    def _made(self, change: Callable[[Tensor], Tensor], seed: int = 0, passes: int = 1) -> Tensor | None:
        """The outputs of the call with its tensors changed, (row, number); those of the last of so many passes."""
        return None if self._begun is None else self._outputs(self._begun[0], change, seed, passes)

    def _outputs(self, call: Call, change: Callable[[Tensor], Tensor], seed: int = 0, passes: int = 1) -> Tensor | None:
        count = 0 if self._whole is None else self._whole[1]

        def other(value: Any) -> Any:
            rows = isinstance(value, Tensor) and value.ndim and len(value) == count
            return change(value[: self.count]) if rows else value

        made = call.mapped(other)
        with self.skipped.noting("a pass"), undisturbed(self.exam.shield):
            self.exam.model.eval()
            for _ in range(passes):
                seeded(seed)
                found = find_rows(made.make(self.exam.model))
            return None if found is None else found.detach().float().flatten(1) if found.ndim > 1 else found[:, None]
        return None

    def rows(self, chosen: list[int], seed: int = 0) -> Tensor | None:
        """The outputs of these rows in this order, as one batch, (row, number)."""
        made = self._made(lambda value: value[chosen], seed)
        return None if made is None or len(made) != len(chosen) else made

    @cached_property
    def plain(self) -> Tensor | None:
        """The outputs as they are; None where a second pass differs, by state or noise of its own, or not finite."""
        first = None if self._begun is None else self._begun[1]
        again = None if first is None else self._made(torch.clone, passes=2)  # and one before it
        if first is None or again is None or not torch.equal(first, again) or not bool(torch.isfinite(first).all()):
            return None
        return None if first.shape[1] in (self.count, self._whole[1] if self._whole else 0) else first

    @property
    def size(self) -> float:
        """Of the largest output."""
        return 0.0 if self.plain is None else float(self.plain.abs().max())

    def apart(self, made: Tensor | None, rows: list[int]) -> float:
        """How far outputs lie from those of these rows, as a share of the largest; 0 where there are none."""
        if made is None or self.plain is None or made.shape[1] != self.plain.shape[1]:
            return 0.0
        return float((made - self.plain[rows]).abs().max()) / max(self.size, 1e-12)

    @cached_property
    def among_copies(self) -> float:
        """How far a row's output lies from its own when all other rows are copies of it."""
        ends = (0, self.count - 1)
        made = [self.rows([row] * self.count) for row in ends]
        return max(
            self.apart(None if m is None else m[row : row + 1], [row]) for m, row in zip(made, ends, strict=True)
        )

    @cached_property
    def alone(self) -> float:
        """The same when it is a batch of its own."""
        return max(self.apart(self.rows([row]), [row]) for row in (0, self.count - 1))

    @cached_property
    def elsewhere(self) -> float:
        """The same when all rows have moved on by one place."""
        order = [*range(1, self.count), 0]
        return self.apart(self.rows(order), order)

    @cached_property
    def along_time(self) -> bool:
        """Whether the first axis may be time, as `torch.nn.RNN` has it, and the second that of the batch.

        Then what stands at an index of the second is kept apart from the others, and a step changes none before it.
        """
        given = [] if self._begun is None else [value for value in self._begun[0].given if value.ndim]
        width = given[0].shape[1] if given and given[0].ndim > 1 else 0
        if self.plain is None or width < 2 or any(value.ndim < 2 or value.shape[1] != width for value in given):
            return False
        half = self.count // 2
        moved = self._made(lambda value: value.roll(1, 1))
        later = self._made(lambda value: torch.cat([value[:half], value[half:].roll(1, 1)]))
        if self.plain.shape[1] % width or moved is None or later is None or moved.shape != self.plain.shape:
            return False
        expected = self.plain.unflatten(1, (width, -1)).roll(1, 1).flatten(1)
        apart = max(float((moved - expected).abs().max()), float((later - self.plain)[:half].abs().max()))
        return apart <= ALIKE * self.size

    @cached_property
    def bend(self) -> float | None:
        """How far f(x + y - z) lies from f(x) + f(y) - f(z), as a share of the outputs' spread over rows."""
        if self.plain is None or self.count < 4:
            return None
        spread = float(self.plain.std(0).max())
        made = self._made(
            lambda value: value[:-2] + value[1:-1] - value[2:] if value.is_floating_point() else value[:-2]
        )
        if made is None or len(made) != self.count - 2 or not spread > 0:
            return None
        return float((made - (self.plain[:-2] + self.plain[1:-1] - self.plain[2:])).abs().max()) / spread

    @cached_property
    def dropped(self) -> tuple[float, list[float]]:
        """How far outputs lie apart with other random numbers, and the probabilities of the dropout that is on."""
        with Dropouts() as seen:
            made = self.rows(list(range(self.count)), seed=1) if self.plain is not None else None
        return self.apart(made, list(range(self.count))), seen.rates

    @cached_property
    def read(self) -> Tensor | None:
        """Which positions of each row its output depends on, (row, position): those where another row's value moves it.

        Asked of sequences (row, position[, feature]) with fewer outputs than a number for each position.
        """
        if self._begun is None or self.plain is None:
            return None
        value = self._begun[0].ids
        floats = [v for v in self._begun[0].args if isinstance(v, Tensor) and v.is_floating_point() and v.ndim == 3]
        value = value if value is not None else floats[0] if floats else None
        if value is None or not 4 <= value.shape[1] <= 512 or self.plain.shape[1] >= value.shape[1]:
            return None
        length = value.shape[1]
        found = torch.ones(self.count, length, dtype=torch.bool)
        for position in range(0, length, -(-length // POSITIONS)):
            changed = self._made(functools.partial(_swapped, position=position, length=length))
            if changed is None or changed.shape != self.plain.shape:
                return None
            part = value[: self.count, position]
            same = (part == part.roll(1, 0)).reshape(self.count, -1).all(1).cpu()
            found[:, position] = (changed != self.plain).any(1).cpu() | same
        return found


def _swapped(value: Tensor, position: int, length: int) -> Tensor:
    """A sequence whose rows have another row's value at one position; anything else as it is."""
    sequence = is_ids(value) or (value.is_floating_point() and value.ndim == 3)
    if not sequence or value.shape[1] != length:
        return value
    changed = value.clone()
    changed[:, position] = value[:, position].roll(1, 0)
    return changed
