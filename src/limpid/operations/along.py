"""A forward pass in the formats that are asked for, and what each part changes in it, up to where others read it.

Beside every part the same part runs in its own format, from the same inputs: what the two are apart by is what this
part rounds off in this very pass, so that of several parts each has the draw that it has with all others changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from limpid.adjoints.aten import short_name
from limpid.operations.formats import Wishes
from limpid.operations.forward import buffers_kept, read
from limpid.operations.shadows import Differences, Part, Shadowed, Told, Value
from limpid.operations.tried import done_in, with_values
from limpid.operations.widened import as_drawn


@dataclass(frozen=True)
class Along:
    """What came of a pass in other formats."""

    loss: float
    differences: Differences
    seen: tuple[tuple[str, str], ...]  # module and operation of each call that computes


def tried_along(model: nn.Module, function: Callable[[], Tensor], state: Tensor, wishes: Wishes) -> Along:
    """Take the forward pass, random masks as they were."""
    mode = _Changed(model, wishes)
    with as_drawn(state), buffers_kept(model), mode.watching():
        loss = function().detach()
    found = mode.off(loss)
    mode.differences.of_loss = {part: Value(-off, visit) for part, (off, visit) in found.items()}
    mode.differences.told = mode.told
    return Along(float(loss), mode.differences, tuple(mode.seen))


class _Changed(Shadowed):
    """Calls that are asked for compute in their format; beside them, as they would have."""

    def __init__(self, model: nn.Module, wishes: Wishes) -> None:
        super().__init__(model)
        self.wishes = wishes
        self.differences = Differences()
        self.seen: dict[tuple[str, str], None] = {}

    def computed(self, func: Any, args: Any, kwargs: Any, node: int) -> Any:
        call = (self.module, short_name(func))
        self.seen[call] = None
        asked = self.wishes.part_of(*call)
        part = None if asked is None else Part(*asked, is_asked=True)
        if left := self.changed(args, kwargs) - {part}:
            off = [self.off(one) for one in read(func, args, kwargs)]
            self.differences.of_calls[self.count] = [
                {by: Value(-value, visit) for by, (value, visit) in one.items() if by in left} for one in off
            ]
        made_of, visits = dict[Part, Any](), dict[Part, int]()
        if part is not None:
            visits[part] = self.told.setdefault(part, Told()).called(self.count)
            made_of[part] = with_values(func, args, kwargs, self.value_of(part))
        self.count += 1
        made = func(*args, **kwargs) if part is None else done_in(func, args, kwargs, part.form)
        self.keep(func, args, made, made_of, visits)
        return made
