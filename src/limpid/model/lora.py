"""Low-rank adapters: a matrix of small rank beside each adapted weight, or added into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limpid.config import ModelConfig
from limpid.config.model import LowRankScaling, divisor
from limpid.errors import ConfigError
from limpid.model.linear import row_lengths


@dataclass(frozen=True)
class Factors:
    """ΔW = s B A of one weight, and the lengths of the rows of W + ΔW where these are learned apart.

    Source: Hu et al. 2021, eq. 3, arXiv:2106.09685; Liu et al. 2024, eq. 5, arXiv:2402.09353.
    """

    down: Tensor
    """A, (rank, d_in)."""
    up: Tensor
    """B, (d_out, rank)."""
    scale: float
    """s: α / rank, or α / √rank (Kalajdzievski 2023, arXiv:2312.03732)."""

    magnitude: Tensor | None = None
    """m, (d_out,)."""

    @property
    def rank(self) -> int:
        return len(self.down)

    def merged(self, weight: Tensor) -> Tensor:
        """The changed weight, formed in float64, in the format that the weight had."""
        changed = weight.double() + self.scale * self.up.double() @ self.down.double()
        if self.magnitude is not None:
            changed *= (self.magnitude.double() / row_lengths(changed)).unsqueeze(-1)
        return changed.to(weight.dtype)

    def beside(self, module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """What a linear map gives with the change beside its weight: a hook of its forward pass."""
        down, up = self.down.to(out.dtype), self.up.to(out.dtype)
        change = self.scale * (given[0].to(out.dtype) @ down.T @ up.T)
        if self.magnitude is None:
            return out + change
        assert isinstance(module, nn.Linear)
        lengths = row_lengths(torch.add(module.weight, self.up @ self.down, alpha=self.scale))
        bias = 0.0 if module.bias is None else module.bias.to(out.dtype)
        return (out - bias + change) * (self.magnitude / lengths).to(out.dtype) + bias


@dataclass(frozen=True)
class Adapter:
    """Factors of some weights of a model, by our names."""

    factors: dict[str, Factors]
    scaling: LowRankScaling = "rank"
    """What α was divided by."""
    dropout: float = 0.0
    """Probability that an entry of what the factors read is dropped in training."""

    def merged(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights with the adapter added in, each in the format it had."""
        return weights | {name: one.merged(weights[name]) for name, one in self.factors.items()}

    def attach(self, model: nn.Module) -> None:
        """Beside the weights instead: every adapted map gives W x + s B (A x), at its magnitudes where it has some."""
        for name, one in self.factors.items():
            model.get_submodule(name.removesuffix(".weight")).register_forward_hook(one.beside)

    def trainable(self, config: ModelConfig) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The options of a model that goes on training these factors, and the factors as its parameters.

        Raises  ConfigError where they are not of one rank and scale, or not of the same maps in every block
        """
        maps = {name.removesuffix(".weight").split(".", 2)[-1] for name in self.factors}
        every = {f"blocks.{block}.{one}.weight" for block in range(config.num_layers) for one in maps}
        kinds = {(one.rank, one.scale, one.magnitude is not None) for one in self.factors.values()}
        if len(kinds) != 1 or every != set(self.factors):
            raise ConfigError(
                "its factors are not of one rank and scale for the same maps of every block, which is what a run "
                "trains: give --lora-rank too, and new factors are trained over it added in"
            )
        ((rank, scale, has_magnitude),) = kinds
        options = {
            "lora_rank": rank,
            "lora_alpha": scale * divisor(self.scaling, rank),
            "lora_scaling": self.scaling,
            "use_dora": has_magnitude,
            "lora_dropout": self.dropout,
            "init_lora_weights": "zero",
            "lora_targets": tuple(sorted(maps)),
        }
        tensors: dict[str, Tensor] = {}
        for name, one in self.factors.items():
            at = name.removesuffix(".weight")
            tensors |= {f"{at}.lora_a.weight": one.down, f"{at}.lora_b.weight": one.up}
            tensors |= {} if one.magnitude is None else {f"{at}.lora_magnitude": one.magnitude}
        return options, tensors


def trained_adapter(config: ModelConfig, weights: dict[str, Tensor]) -> Adapter:
    """The factors that a model with such options has among its weights."""
    places = [name.removesuffix(".lora_a.weight") for name in weights if name.endswith(".lora_a.weight")]
    factors = {
        f"{at}.weight": Factors(
            weights[f"{at}.lora_a.weight"],
            weights[f"{at}.lora_b.weight"],
            config.lora_scale,
            weights.get(f"{at}.lora_magnitude"),
        )
        for at in places
    }
    return Adapter(factors, config.lora_scaling, config.lora_dropout)
