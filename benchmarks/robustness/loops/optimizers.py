"""Update rules as people keep them in a file of their own."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                average = state.setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((average * first + p.grad * (1 - first)).sign(), alpha=-group["lr"])
                average.mul_(second).add_(p.grad, alpha=1 - second)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by five Newton-Schulz steps."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                x = p.grad + group["momentum"] * buffer
                x = x / (x.norm() + 1e-7)
                flip = x.shape[0] > x.shape[1]
                x = x.T if flip else x
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
                x = x.T if flip else x
                p.add_(x, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class ScheduleFree(torch.optim.Optimizer):
    """AdamW without momentum's schedule: gradients at y between the fast weights z and their average x."""

    def __init__(self, params: Any, lr: float = 2e-3, beta: float = 0.9, beta2: float = 0.99, warmup: int = 10):
        super().__init__(params, {"lr": lr, "beta": beta, "beta2": beta2, "warmup": warmup, "k": 0, "total": 0.0})

    @torch.no_grad()
    def move(self, to_average: bool) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if "z" in self.state[p]:
                    beta = group["beta"]
                    p.lerp_(self.state[p]["z"], 1 - 1 / beta if to_average else 1 - beta)

    def eval(self) -> None:
        self.move(True)

    def train(self) -> None:
        self.move(False)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            k = group["k"]
            rate = group["lr"] * min(1.0, k / group["warmup"])
            group["total"] += rate**2
            share = rate**2 / group["total"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["z"], state["square"] = p.clone(), torch.zeros_like(p)
                state["square"].mul_(group["beta2"]).addcmul_(p.grad, p.grad, value=1 - group["beta2"])
                scaled = p.grad / ((state["square"] / (1 - group["beta2"] ** k)).sqrt() + 1e-8)
                p.lerp_(state["z"], share)
                p.add_(scaled, alpha=rate * (group["beta"] * (1 - share) - 1))
                state["z"].sub_(scaled, alpha=rate)


def round_randomly(value: Tensor) -> Tensor:
    """float32 to bfloat16, up or down with the probability that makes the mean right."""
    bits = value.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
    return ((bits + noise) & -65536).view(torch.float32).bfloat16()


class HalfAdamW(torch.optim.Optimizer):
    """AdamW on bfloat16 weights; what rounding lost is kept (Kahan), or rounding is random."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, kahan: bool = True):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8, "kahan": kahan})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, gradient = self.state[p], p.grad.float()
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
                    state["lost"] = torch.zeros_like(p)
                state["step"] += 1
                state["exp_avg"].lerp_(gradient, 1 - first)
                state["exp_avg_sq"].lerp_(gradient * gradient, 1 - second)
                mean = state["exp_avg"] / (1 - first ** state["step"])
                square = state["exp_avg_sq"] / (1 - second ** state["step"])
                change = -group["lr"] * mean / (square.sqrt() + group["eps"])
                if group["kahan"]:
                    state["lost"].add_(change.bfloat16())
                    before = p.clone()
                    p.add_(state["lost"])
                    state["lost"].add_(before - p)
                else:
                    p.copy_(round_randomly(p.float() + change))


def groups(model: torch.nn.Module, decay: float = 0.1) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for gains, biases and embeddings."""
    own = dict(model.named_parameters())
    plain = [p for n, p in own.items() if p.requires_grad and (p.dim() < 2 or "embedding" in n or "positions" in n)]
    ids = {id(p) for p in plain}
    matrices = [p for p in own.values() if p.requires_grad and id(p) not in ids]
    return [{"params": matrices, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
