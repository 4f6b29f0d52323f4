"""Named sets of options that go well together; a configuration file and flags win over them."""

from __future__ import annotations

from typing import Any

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
