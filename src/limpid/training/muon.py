"""Muon at speed; read it beside maths/muon.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from limpid.training.mesh import spread_like, whole
from limpid.training.optimizers import Plain


class Muon(Plain, torch.optim.Muon):
    """PyTorch's, but with all matrices of one size made orthogonal together: few large products, not many small.

    Where matrices are spread over processes, each process makes whole ones orthogonal, as one process would.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [cast(Tensor, p.grad) for p in parameters]
            momenta = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in parameters]
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
            directions = orthogonal(
                [whole(matrix) for matrix in ahead], group["ns_coefficients"], group["ns_steps"], group["eps"]
            )
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(
                    spread_like(direction, parameter), alpha=-0.2 * group["lr"] * math.sqrt(max(parameter.shape))
                )
        return loss


def orthogonal(
    matrices: Sequence[Tensor], coefficients: tuple[float, float, float], steps: int, eps: float
) -> list[Tensor]:
    """Each matrix with its singular values brought near 1 by Newton–Schulz products, in bf16."""
    a, b, c = coefficients
    wide = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T for matrix in matrices]
    orthogonal: list[Tensor] = [torch.empty(0)] * len(matrices)
    for shape in {tuple(matrix.shape) for matrix in wide}:
        places = [i for i, matrix in enumerate(wide) if tuple(matrix.shape) == shape]
        x = torch.stack([wide[i] for i in places]).bfloat16()
        x /= torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps)
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for i, made in zip(places, x, strict=True):
            orthogonal[i] = made if matrices[i].shape == made.shape else made.T
    return orthogonal
