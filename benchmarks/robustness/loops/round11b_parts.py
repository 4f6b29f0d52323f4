"""What the loops of round 11b share. A fault's category and the patterns of a right diagnosis stand in
round11b_keys.json, what each loop is meant to do in round11b_intents.json; categories are those of round8b_parts.

round11b_proofs.json repeats by `python -m benchmarks.robustness.prove round11b`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Language, apart, tiny_gpt2
from torch import Tensor, nn

KEYS = json.loads((Path(__file__).parent / "round11b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


class Signs(torch.optim.Optimizer):
    """Every weight moves by the rate, in the direction of the sign of an average of gradients."""

    def __init__(self, parameters: Any, lr: float, decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 0.1)
                p.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * average.sign())


class Cell(nn.Module):
    """A recurrent language model that goes word by word; its state comes from and goes to whoever calls."""

    def __init__(self, words: int, every_word_alone: bool = False, width: int = 16, hidden: int = 48) -> None:
        super().__init__()
        self.every_word_alone, self.hidden = every_word_alone, hidden
        self.tokens, self.cell = nn.Embedding(words, width), nn.GRUCell(width, hidden)
        self.head = nn.Linear(hidden, words)

    def forward(self, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x, states = self.tokens(ids), []
        for t in range(ids.shape[1]):
            state = self.cell(x[:, t], state.detach() if self.every_word_alone else state)
            states.append(state)
        return self.head(torch.stack(states, 1)), state


def echoes(seed: int, count: int, length: int, own: torch.Generator | None = None, lag: int = 3) -> Tensor:
    """(count, length) of six words; nine in ten are by a table that of the word `lag` places earlier."""
    table = torch.randperm(6, generator=apart(seed))
    rows = torch.randint(0, 6, (count, length), generator=own)
    echo = torch.rand(count, length, generator=own) < 0.9
    for t in range(lag, length):
        rows[:, t] = torch.where(echo[:, t], table[rows[:, t - lag]], rows[:, t])
    return rows


class FromNought(nn.Module):
    """RMSNorm by Gemma: one plus the weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def answers(
    language: Language, count: int, own: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two answers to each prompt of four words, of 3 to 12 words each, the liked one first: ids and masks, (count,
    16)."""
    prompts = language.rows(count, 4, own)
    both = []
    for _ in range(2):
        rows = torch.cat([prompts, language.rows(count, 12, own)], 1)
        mask = torch.arange(16) < 4 + torch.randint(3, 13, (count, 1), generator=own)
        mask[:, :4] = False
        size = mask.sum(1)
        share = ((rows >= language.words // 2) & mask).sum(1) / size - size / 24
        both.append((rows * (mask | (torch.arange(16) < 4)), mask, share))
    (a, in_a, share_a), (b, in_b, share_b) = both
    first = (share_a >= share_b)[:, None]
    pairs = ((a, b), (in_a, in_b), (b, a), (in_b, in_a))
    good, in_good, bad, in_bad = (torch.where(first, x, y) for x, y in pairs)
    return good, in_good, bad, in_bad


def answer_log(model: Any, rows: Tensor, mask: Tensor, mean: bool = False) -> Tensor:
    """Log probability of each row's masked words by a model of transformers, summed or their mean: (rows,)."""
    found = model(input_ids=rows[:, :-1]).logits.log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
    total = (found * mask[:, 1:]).sum(1)
    return total / mask.sum(1) if mean else total


def gpt2() -> Any:
    """A GPT-2 of twelve words and two layers, without tokens of any special meaning."""
    return tiny_gpt2(12, n_layer=2, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def falling(steps: int) -> Callable[[int], float]:
    """From one in a line to a tenth."""
    return lambda step: 1 - 0.9 * min(1.0, step / steps)


def within(x: Tensor, bound: float) -> Tensor:
    """Each row of the disturbance held to a length."""
    return x * (bound / x.flatten(1).norm(dim=1).clamp_min(1e-12)).clamp(max=1)[:, None, None]
