"""Second and third order of a change of the loss, from forward passes with half of what parts leave behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from limpid.adjoints.aten import mapped
from limpid.operations.forward import Forward, buffers_kept, is_in_place, read, replaced
from limpid.operations.shadows import Differences
from limpid.operations.widened import as_drawn

HALF = 0.5


def higher_orders(
    model: nn.Module, function: Callable[[], Tensor], state: Tensor, differences: Differences, loss: float, first: float
) -> tuple[float, float]:
    """What second and third order add, where all differences are made.

    L(h) - L(0) = h c + h² q + h³ t for a share h of the differences, where c, the first order, is known.

    loss  L(0)
    """
    ahead, back = (_loss_with(model, function, state, differences, share) - loss for share in (HALF, -HALF))
    return (ahead + back) / (2 * HALF**2), (ahead - back - 2 * HALF * first) / (2 * HALF**3)


def _loss_with(
    model: nn.Module, function: Callable[[], Tensor], state: Tensor, differences: Differences, share: float
) -> float:
    mode = _Shifted(model, differences, share)
    with as_drawn(state), buffers_kept(model), mode.watching():
        own = sum(float(off.tensor) for off in differences.of_loss.values())
        return float(function().detach()) + share * own


class _Shifted(Forward):
    """Adds a share of its differences to what each call reads."""

    def __init__(self, model: nn.Module, differences: Differences, share: float) -> None:
        super().__init__(model)
        self.differences, self.share, self.count = differences, share, 0

    def computed(self, func: Any, args: Any, kwargs: Any, node: int) -> Any:
        off = self.differences.of_calls.get(self.count)
        self.count += 1
        if off is None:
            return func(*args, **kwargs)
        sums = (torch.stack([one.tensor for one in parts.values()]).sum(0) if parts else None for parts in off)
        of = {id(one): other for one, other in zip(read(func, args, kwargs), sums, strict=True) if other is not None}
        if is_in_place(func) and id(args[0]) in of:
            args[0].add_(of.pop(id(args[0])), alpha=self.share)

        def shifted(tensor: Tensor) -> Tensor:
            return tensor + self.share * of[id(tensor)] if id(tensor) in of else tensor

        args, kwargs = replaced(func, args, kwargs, lambda _, one: mapped(one, shifted))
        return func(*args, **kwargs)
