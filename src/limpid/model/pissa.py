"""Factors that begin at the largest singular values of their weights, which keep the rest.

Source: Meng et al. 2024 (PiSSA), section 3, arXiv:2404.02948.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from limpid.config import ModelConfig
from limpid.config.model import divisor


def principal(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with factors of each adapted map, s B A its largest singular values, and W - s B A in the place of W.

    Of W = U Σ Vᵀ, A = √(Σ / s) Vᵀ and B = U √(Σ / s), as far as the rank goes; in float64, each in W's format.
    """
    found = dict(weights)
    for at in adapted(config, weights):
        weight = weights[f"{at}.weight"]
        left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
        rank = config.lora_rank
        root = torch.zeros(rank, dtype=torch.float64, device=weight.device)
        root[: len(values)] = (values[:rank] / config.lora_scale).sqrt()
        down, up = weight.new_zeros(rank, weight.shape[1]), weight.new_zeros(weight.shape[0], rank)
        kept = min(rank, len(values))
        down[:kept] = (root[:kept, None] * right[:kept]).to(weight.dtype)
        up[:, :kept] = (left[:, :kept] * root[:kept]).to(weight.dtype)
        found |= {f"{at}.lora_a.weight": down, f"{at}.lora_b.weight": up}
        found[f"{at}.weight"] = (weight.double() - config.lora_scale * up.double() @ down.double()).to(weight.dtype)
    return found


def beside_the_original(
    config: ModelConfig, weights: Mapping[str, Tensor], begun: Mapping[str, Tensor]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The same model as factors of twice the rank beside the weights that it began with: s (B A - B₀ A₀).

    begun  the weights before the first step
    """
    found = dict(weights)
    for at in adapted(config, weights):
        down, up, weight = (f"{at}.{part}" for part in ("lora_a.weight", "lora_b.weight", "weight"))
        found[down] = torch.cat([weights[down], begun[down].to(weights[down])])
        found[up] = torch.cat([weights[up], -begun[up].to(weights[up])], dim=1)
        original = begun[weight].double() + config.lora_scale * begun[up].double() @ begun[down].double()
        found[weight] = original.to(weights[weight])
    rank = 2 * config.lora_rank
    alpha = config.lora_scale * divisor(config.lora_scaling, rank)
    return dataclasses.replace(config, lora_rank=rank, lora_alpha=alpha, init_lora_weights="zero"), found


def adapted(config: ModelConfig, weights: Mapping[str, Tensor]) -> list[str]:
    """The linear maps that have factors: blocks.3.mlp.up."""
    maps = (name.removesuffix(".weight") for name in weights if name.startswith("blocks.") and name.endswith(".weight"))
    return [at for at in maps if at.split(".", 2)[-1] in config.linear_maps and config.adapted(at.split(".", 2)[-1])]
