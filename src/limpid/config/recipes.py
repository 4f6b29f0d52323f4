"""Named sets of options that go well together; a configuration file and flags win over them."""

from __future__ import annotations

from typing import Any

from limpid.config.files import merged
from limpid.config.model import ModelConfig
from limpid.config.tuning import HEADS
from limpid.errors import ConfigError

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "fast": {
        "model": {"qk_norm": True, "tied": False},
        "update": {
            "optimizer": "muon",
            "learning_rate": 5e-3,
            "weight_decay": 0.0,
            "max_grad_norm": "none",
            "schedule": "linear",
            "warmup_steps": 10,
            "min_learning_rate_ratio": 0.0,
        },
    },
}
"""fast: the least time to a given loss at small scale. Muon, Jordan et al. 2024; normed queries and keys,
Henry et al. 2020, arXiv:2010.04245; linear decay to zero, Bergsma et al. 2025, arXiv:2502.15938.
benchmarks/shakespeare.py measures it."""

TIMED: dict[str, dict[str, Any]] = {"update": {"schedule": "warmup_stable_decay", "decay_fraction": 0.5}}
"""What a run that ends at a given time needs besides: a schedule that waits until its steps are counted."""


def recipe(name: str) -> dict[str, dict[str, Any]]:
    """The options of a recipe, section by section.

    Raises  ConfigError for a name that is not on the list
    """
    if name not in RECIPES:
        raise ConfigError(f"recipe is {name!r}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


RATE = 2e-4
"""Learning rate of full fine-tuning at width `WIDTH`: a tenth of what training from the beginning takes there."""
WIDTH = 192
LONGEST = 1024
"""Context of a run that tunes a model, tokens, unless more is asked for; TRL's, too."""
FACTORS = {"lora_rank": 16, "lora_alpha": 32.0}
"""What --lora asks for, on every linear map; with another rank the same alpha, so that the best rate stays."""
LORA_FACTOR = 10.0
"""How much larger the best rate is with low-rank factors. Source: Schulman et al. 2025, LoRA Without Regret."""
RELATIVE_RATES = {"sft": 1.0, "reward": 1.0, "distill": 0.5}
USUAL_RELATIVE_RATE = 0.05
"""Rates of the objectives against that of sft, and of all others: TRL has 2e-5 for sft, 1e-6 for dpo and grpo."""


def tuning(objective: str, model: str, sizes: ModelConfig, typed: dict[str, Any], lora: bool = False) -> dict[str, Any]:
    """The options of a run that tunes a model of these sizes: what suits its width and the objective, unless typed.

    Adam's best rate falls with the width. Source: Yang et al. 2022, table 3, arXiv:2203.03466
    """
    rank = typed.get("model", {}).get("lora_rank")
    if lora and rank == 0:
        raise ConfigError("lora_rank is 0, which is without low-rank factors: leave it or --lora out")
    low_rank = lora or bool(rank)
    rate = (
        RATE
        * WIDTH
        / sizes.d_model
        * RELATIVE_RATES.get(objective, USUAL_RELATIVE_RATE)
        * (LORA_FACTOR if low_rank else 1)
    )
    steps = {"max_steps", "epochs"} & {*typed.get("run", {}), *typed.get("tune", {})}
    if {"max_steps", "epochs"} <= steps:
        raise ConfigError("max_steps and epochs both say how long to tune: leave one of them out")
    suited: dict[str, Any] = {
        "model": {
            "context_length": min(sizes.context_length, LONGEST),
            **({"head": HEADS[objective]} if objective in HEADS else {}),
            **(FACTORS if low_rank else {}),
        },
        "update": {"learning_rate": float(f"{rate:.2g}"), "weight_decay": 0.0, "schedule": "linear"},
        "run": {"init_from": model},
        "tune": {"objective": objective, **({} if steps else {"epochs": 1.0})},
    }
    return merged(suited, typed)
