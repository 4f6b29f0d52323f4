"""What the loops of round 10b share. A fault's category and the patterns of a right diagnosis stand in
round10b_keys.json, what each loop is meant to do in round10b_intents.json; categories are those of round8b_parts.

round10b_proofs.json repeats by `python -m benchmarks.robustness.prove round10b`.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Decoder
from torch import Tensor, nn

KEYS = json.loads((Path(__file__).parent / "round10b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All tensors behind one another in one row."""
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten_into(vector: Tensor, parameters: Iterable[nn.Parameter]) -> None:
    """Each parameter's gradient is its part of the vector."""
    start = 0
    for p in parameters:
        p.grad = vector[start : start + p.numel()].view_as(p).clone()
        start += p.numel()


def columns(rows: dict[str, Tensor], size: int = 16) -> Any:
    """A shuffled loader over the rows of a dictionary."""
    kept = [dict(zip(rows, parts, strict=True)) for parts in zip(*rows.values(), strict=True)]
    return torch.utils.data.DataLoader(kept, size, shuffle=True)  # type: ignore[arg-type]


class Lamb(torch.optim.Optimizer):
    """You et al. 2020: Adam's direction, scaled tensor by tensor by the norm of the weights over its own."""

    def __init__(self, parameters: Any, lr: float, decay: float = 0.01, upside_down: bool = False) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay, "upside_down": upside_down})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.move(p, group)

    def move(self, p: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
        assert p.grad is not None
        state["t"] += 1
        state["m"].lerp_(p.grad, 0.1)
        state["v"].lerp_(p.grad.square(), 0.001)
        m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
        direction = m / (v.sqrt() + 1e-6) + group["decay"] * p
        weights, length = p.norm(), direction.norm()
        ratio = 1.0
        if weights > 0 and length > 0:
            ratio = float((length / weights if group["upside_down"] else weights / length).clamp(max=10))
        p.add_(direction, alpha=-group["lr"] * ratio)


def bare_gpt2(words: int, **options: Any) -> Any:
    """A GPT-2 of transformers without dropout and without tokens of any special meaning."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": words}
    settings |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    settings |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**(settings | options)))


def quiet() -> None:
    """No bars and no reports of what transformers loads."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


class Actor(nn.Module):
    """Chooses an action at each place of a row; another network of the same form says what reward to expect."""

    def __init__(self, words: int, actions: int) -> None:
        super().__init__()
        self.policy, self.critic = Decoder(words), Decoder(words)
        self.policy.head, self.critic.head = nn.Linear(32, actions), nn.Linear(32, 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(ids).log_softmax(-1), self.critic(ids).squeeze(-1)


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """Székely and Rizzo 2013, of two sets of points."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def walk_values(discount: float = 0.9, size: int = 9) -> Tensor:
    """Exact values of a random walk whose right end pays one: (size,)."""
    step = torch.zeros(size, size)
    for s in range(size):
        for t in (s - 1, s + 1):
            if 0 <= t < size:
                step[s, t] = 0.5
    reward = torch.zeros(size)
    reward[-1] = 0.5
    return torch.linalg.solve(torch.eye(size) - discount * step, reward)


def packed(x: Tensor, block: int = 64) -> Tensor:
    """What eight bits and a scale for each block of numbers leave of them."""
    row = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
    scale = row.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
    out: Tensor = ((row / scale).round() * scale).flatten()[: x.numel()].view_as(x)
    return out
