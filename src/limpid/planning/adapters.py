"""What adapters of a frozen model learn: counts, from the matrices of its architecture."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.config.options import require
from limpid.planning.architecture import Architecture
from limpid.planning.figure import evaluate
from limpid.planning.parameters import Piece, pieces

LORA = "Hu et al. 2021, section 4.1, arXiv:2106.09685"
IA3 = "Liu et al. 2022, section 3.3, arXiv:2205.05638"
PREFIX = "Li & Liang 2021, section 4, arXiv:2101.00190"
PROMPT = "Lester et al. 2021, section 2, arXiv:2104.08691"
P_TUNING = "Liu et al. 2021, section 3.2, arXiv:2103.10385"
SIDES = {
    "query": ("d_model", "num_heads * d_head"), "key": ("d_model", "num_kv_heads * d_head"),
    "value": ("d_model", "num_kv_heads * d_head"), "output": ("num_heads * d_head", "d_model"),
    "gate": ("d_model", "d_ff"), "up": ("d_model", "d_ff"), "down": ("d_ff", "d_model"),
}  # fmt: skip
"""Inputs and outputs of the matrices of a block, by the names that adapters are asked for."""


def lora(model: Architecture, rank: int, targets: Sequence[str] = ("query", "value")) -> int:
    """Parameters of W + B A beside the targets in every block: rank times inputs and outputs of each. Source: LORA."""
    return sum(count * low_rank(inputs, outputs, rank) for inputs, outputs, count in _targets(model, targets))


def low_rank(inputs: int, outputs: int, rank: int) -> int:
    """Parameters of B A beside one matrix. Source: LORA."""
    require(rank >= 1, f"rank is {rank}: it must be at least 1")
    return rank * (inputs + outputs)


def adalora(model: Architecture, rank: int, targets: Sequence[str] = ("query", "value")) -> int:
    """The same with a singular value per rank between both factors. Source: Zhang et al. 2023, arXiv:2303.10512."""
    return lora(model, rank, targets) + sum(rank * count for _, _, count in _targets(model, targets))


def ia3(model: Architecture) -> int:
    """Parameters of one factor per key, per value and per hidden feature of the MLP, in every block. Source: IA3."""
    attention = sum(outputs * count for _, outputs, count in _targets(model, ("key", "value")))
    return attention + sum(inputs * count for inputs, _, count in _targets(model, ("down",)))


def prefix(model: Architecture, tokens: int) -> int:
    """Parameters of learned keys and values ahead of every block's own, after training. Source: PREFIX."""
    require(tokens >= 1, f"tokens is {tokens}: it must be at least 1")
    return tokens * model.num_layers * 2 * model.num_kv_heads * model.d_head


def prompt(model: Architecture, tokens: int) -> int:
    """Parameters of learned vectors ahead of the text. Source: PROMPT."""
    require(tokens >= 1, f"tokens is {tokens}: it must be at least 1")
    return tokens * model.d_model


def p_tuning(model: Architecture, tokens: int, hidden: int) -> int:
    """The same, made by a network of three layers with biases, `hidden` wide. Source: P_TUNING, as peft has it."""
    d = model.d_model
    return prompt(model, tokens) + (d * hidden + hidden) + (hidden * hidden + hidden) + (hidden * d + d)


def _targets(model: Architecture, names: Sequence[str]) -> list[tuple[int, int, int]]:
    """Inputs, outputs and number of every matrix that is meant."""
    found = []
    for name in names:
        require(name in SIDES, f"target is {name!r}: choose among {', '.join(SIDES)}")
        inputs, outputs = (int(evaluate(side, model.sizes)) for side in SIDES[name])
        count = sum(int(evaluate(piece.multiply, model.sizes)) for piece in pieces(model) if _is(piece, name))
        require(count > 0, f"{model.name} has no {name} in its blocks")
        found.append((inputs, outputs, count))
    return found


def _is(piece: Piece, name: str) -> bool:
    station = "mlp" if name in ("gate", "up", "down") else "attention"
    own = {"down": "output"}.get(name, name)
    at = ("mlp",) if station == "mlp" else ("attention", "attention.encoder", "attention.cross")
    return piece.name in [f"{place}.{own}" for place in at]
