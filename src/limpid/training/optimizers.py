"""PyTorch's optimizers without what only a compiler needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from limpid.training import native_adamw

PYTORCH_ADAMW_STEP = inspect.unwrap(torch.optim.AdamW.step)


class Plain(Optimizer):
    """PyTorch decorates these to keep its compiler out, and imports it for that: a second of every start."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class AdamW(Plain, torch.optim.AdamW):
    """PyTorch's fused one, to the same bits in limpid's own kernel where that is there: one call for all parameters."""

    factor = 1.0
    """What the next update multiplies all gradients by, in the pass that it makes over them anyway."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        if getattr(self, "found_inf", None) is None and native_adamw.serves(self.param_groups):
            for group in self.param_groups:
                native_adamw.update(group, self.state, self.factor)
        else:
            self.scale_gradients()
            PYTORCH_ADAMW_STEP(self)
        self.factor = 1.0
        return loss

    def scale_gradients(self) -> None:
        """Multiply gradients by the factor now: for who looks at them before the update."""
        if self.factor != 1:
            torch._foreach_mul_(self.gradients(), self.factor)
            self.factor = 1.0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.factor = 1.0
        super().zero_grad(set_to_none)

    def gradients(self) -> list[Tensor]:
        """Those that there are."""
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]

    def norm(self) -> float | None:
        """The norm of all gradients, where the kernel forms it."""
        return native_adamw.norm(self.gradients()) if native_adamw.serves(self.param_groups) else None


class Adam(Plain, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class SGD(Plain, torch.optim.SGD):
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
