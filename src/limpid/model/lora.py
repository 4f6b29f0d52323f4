"""Low-rank adapters: a matrix of small rank beside each adapted weight, or added into it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from limpid.config import ModelConfig
from limpid.errors import CheckpointError, ConfigError
from limpid.files import parse_json
from limpid.model.convert import hugging_face_names

PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """ΔW = s B A for each adapted weight, by our names. Source: Hu et al. 2021, eq. 3, arXiv:2106.09685."""

    down: dict[str, Tensor]  # A, (rank, d_in)
    up: dict[str, Tensor]  # B, (d_out, rank)
    scale: float  # α / rank, or α / √rank (Kalajdzievski 2023, arXiv:2312.03732)

    def change(self, name: str) -> Tensor:
        """ΔW in float64."""
        return self.scale * self.up[name].double() @ self.down[name].double()

    def merged(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights with the adapter added in, each in the format it had."""
        return {
            name: (weight.double() + self.change(name)).to(weight.dtype) if name in self.down else weight
            for name, weight in weights.items()
        }

    def attach(self, model: nn.Module) -> None:
        """Beside the weights instead: every adapted map gives W x + s B (A x)."""
        for name in self.down:
            module = model.get_submodule(name.removesuffix(".weight"))
            module.register_forward_hook(self._beside(name))

    def _beside(self, name: str):  # type: ignore[no-untyped-def]
        def hook(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
            down, up = (part[name].to(out.dtype) for part in (self.down, self.up))
            return out + self.scale * (given[0].to(out.dtype) @ down.T @ up.T)

        return hook


def load_adapter(path: Path, config: ModelConfig) -> Adapter:
    """A folder as peft writes it.

    Raises  CheckpointError for what is missing or does not belong to the model, ConfigError for a kind of adapter that
            is more than ΔW = s B A
    """
    their, tensors = _read(path)
    for key in ("use_dora", "lora_bias", "alora_invocation_tokens"):
        if their.get(key):
            raise ConfigError(f"{path} has {key}: limpid reads plain LoRA adapters only")
    if their.get("rank_pattern") or their.get("alpha_pattern"):
        raise ConfigError(f"{path} gives modules ranks of their own: limpid reads adapters of one rank")
    if more := [name for name in tensors if ".lora_A." not in name and ".lora_B." not in name]:
        raise ConfigError(
            f"{path} holds {min(more)}, more than low-rank factors: merge it with peft (merge_and_unload)"
        )
    rank = int(their["r"])
    scale = their["lora_alpha"] / (math.sqrt(rank) if their.get("use_rslora") else rank)
    down: dict[str, Tensor] = {}
    up: dict[str, Tensor] = {}
    for module in sorted({name.rsplit(".lora_", 1)[0] for name in tensors if ".lora_" in name}):
        a, b = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
        theirs = f"{module.removeprefix(PREFIX)}.weight"
        ours = [name for name, spelled in hugging_face_names(config).items() if spelled == theirs]
        if not ours:
            raise CheckpointError(f"{path} adapts {theirs}, which this model does not have")
        for name, rows in zip(ours, b.chunk(len(ours)), strict=True):  # GPT-2 keeps three maps in one
            down[name], up[name] = a, rows
    return Adapter(down, up, scale)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        their = parse_json((path / "adapter_config.json").read_text(encoding="utf-8"))
        return their, load_file(path / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is no adapter that limpid can read: adapter_config.json and adapter_model.safetensors, as peft "
            "saves them"
        ) from error
