"""A model that predicts tokens becomes one that rates answers: a score in the place of the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from limpid.config import ModelConfig
from limpid.quantities import SCORE, parameters


def with_score_head(
    config: ModelConfig, weights: Mapping[str, Tensor], seed: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The same model with a head that is drawn anew, a function of the seed; one that has such a head keeps it."""
    if config.head == "score":
        return config, dict(weights)
    config = replace(config, head="score")
    head = next(parameter for parameter in parameters(config) if parameter.name == SCORE)
    drawn = torch.randn(head.shape, generator=torch.Generator().manual_seed(seed)) * head.std
    kept = {name: weight for name, weight in weights.items() if name != "logits.weight"}
    return config, {**kept, SCORE: drawn.to(next(iter(kept.values())).dtype)}
