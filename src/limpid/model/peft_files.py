"""Adapters as peft keeps them, in and out: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from limpid.config import ModelConfig
from limpid.config.model import LowRankScaling, divisor
from limpid.config.options import shown
from limpid.errors import CheckpointError, ConfigError
from limpid.files import folder_written_atomically, parse_json
from limpid.model.convert import hugging_face_names
from limpid.model.export import halved
from limpid.model.families import family_of
from limpid.model.linear import row_lengths
from limpid.model.lora import Adapter, Factors, trained_adapter
from limpid.quantities import parameters

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
MORE = ("lora_bias", "alora_invocation_tokens", "modules_to_save", "trainable_token_indices")
"""Keys of what is more than low-rank factors and magnitudes."""
CHANGE_THE_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")
"""How factors may have begun that are no change of the model as it was; as the words begin."""
MAGNITUDE = ".lora_magnitude_vector"


def load_adapter(path: Path, config: ModelConfig, model: str = "this model") -> Adapter:
    """A folder as peft writes it, for a model of this configuration, and of this name in errors.

    Raises  CheckpointError for what is missing or does not belong to the model, ConfigError for a kind of adapter that
            is more than low-rank factors and magnitudes
    """
    their, tensors = _read(path)
    if str(their.get("init_lora_weights")).startswith(CHANGE_THE_BASE):
        raise ConfigError(
            f"{path} has init_lora_weights {their['init_lora_weights']}: its factors belong to a changed base; save it "
            "with peft's path_initial_model_for_weight_conversion, and they belong to the model itself"
        )
    for key in MORE:
        if their.get(key):
            raise ConfigError(f"{path} has {key}: limpid reads adapters of low-rank factors only")
    if more := [name for name in tensors if not any(kind in name for kind in (".lora_A.", ".lora_B.", MAGNITUDE))]:
        raise ConfigError(
            f"{path} holds {min(more)}, more than low-rank factors: merge it with peft (merge_and_unload)"
        )
    ours: dict[str, list[str]] = defaultdict(list)
    for name, theirs in hugging_face_names(config.without_factors()).items():
        ours[theirs].append(name)
    shapes = {parameter.name: parameter.shape for parameter in parameters(config.without_factors())}
    factors: dict[str, Factors] = {}
    for module in sorted({name.rsplit(".lora_", 1)[0] for name in tensors}):
        at = module.removeprefix(PREFIX)
        if f"{at}.weight" not in ours:
            raise CheckpointError(f"{path} adapts {at}.weight, which {model} does not have{_made_for(their)}")
        try:
            down, up = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
            scale = _scale(their, at, len(down))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {at} lacks a factor, or its lora_alpha: save it again with peft") from error
        names = ours[f"{at}.weight"]
        kept = tensors.get(module + MAGNITUDE)
        expected = (sum(shapes[name][0] for name in names), shapes[names[0]][1])
        found = (len(up), down.shape[1])
        if found != expected:
            raise CheckpointError(
                f"{path} does not belong to {model}: it changes {at}.weight of shape {found}, the model's has "
                f"{expected}{_made_for(their)}"
            )
        if len(down) != up.shape[1] or (kept is not None and kept.shape != (len(up),)):
            raise CheckpointError(f"{path}: the factors of {at} do not fit each other: save it again with peft")
        lengths = [None] * len(names) if kept is None else kept.chunk(len(names))
        for name, (one_down, one_up), magnitude in zip(names, _parts(down, up, len(names)), lengths, strict=True):
            if one_down.any():  # zeros stand for a map without factors beside others that have some
                factors[name] = Factors(one_down, one_up, scale, magnitude)
    return Adapter(factors, _scaling(their), _dropout(path, their))


def save_adapter(path: Path, config: ModelConfig, weights: Mapping[str, Tensor], base: str) -> None:
    """Write the factors of a model as peft reads them, for the model that `base` names.

    Raises  ConfigError naming the options that no family can express, or what is trained beside the factors
    """
    if not factors_alone(config):
        raise ConfigError("beside its factors the model's score is trained, which limpid writes in whole models alone")
    config = config.without_value()
    adapter = trained_adapter(config, dict(weights))
    names: dict[str, list[str]] = defaultdict(list)
    for name, theirs in hugging_face_names(config.without_factors()).items():
        names[theirs.removesuffix(".weight")].append(name)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}  # of modules that hold several of our maps
    for module, ours in names.items():
        found = [adapter.factors.get(name) for name in ours]
        if not any(found):
            continue
        parts = [_written(config, name, one, weights[name]) for name, one in zip(ours, found, strict=True)]
        tensors[f"{PREFIX}{module}.lora_A.weight"] = torch.cat([down for down, _ in parts])
        tensors[f"{PREFIX}{module}.lora_B.weight"] = torch.block_diag(*(up for _, up in parts))
        if config.use_dora:
            lengths = [_lengths(config, name, one, weights[name]) for name, one in zip(ours, found, strict=True)]
            tensors[f"{PREFIX}{module}{MAGNITUDE}"] = torch.cat(lengths)
        ranks |= {_within_block(module): len(ours) * config.lora_rank} if len(ours) > 1 else {}
    modules = {_within_block(name.removeprefix(PREFIX).rsplit(".lora_", 1)[0]) for name in tensors}
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "use_rslora": adapter.scaling == "sqrt_rank",
        "use_dora": config.use_dora,
        "lora_dropout": adapter.dropout,
        "bias": "none",
        "target_modules": sorted(modules),
        "rank_pattern": ranks,
        "alpha_pattern": {name: config.lora_scale * divisor(adapter.scaling, rank) for name, rank in ranks.items()},
        "fan_in_fan_out": family_of(config.without_factors()).fused,
        "inference_mode": True,
    }
    with folder_written_atomically(path, (CONFIG, TENSORS)) as folder:
        (folder / CONFIG).write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, folder / TENSORS, metadata={"format": "pt"})


def factors_alone(config: ModelConfig) -> bool:
    """Whether a model trains low-rank factors, and nothing else that who answers with it would need."""
    trained = [one for one in parameters(config.without_value()) if one.trained]
    return bool(config.lora_rank) and all(one.low_rank for one in trained)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        their = parse_json((path / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(path / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is no adapter that limpid can read: {CONFIG} and {TENSORS}, as peft saves them"
        ) from error
    if not isinstance(their, dict):
        raise CheckpointError(f"{path / CONFIG} holds {type(their).__name__}, expected an object of options")
    return their, tensors


def _made_for(their: dict[str, Any]) -> str:
    """Which model an adapter names as its own."""
    base = their.get("base_model_name_or_path")
    return f"; the adapter was trained for {base}" if base else ""


def _scale(their: dict[str, Any], module: str, rank: int) -> float:
    """s of a module, whose α may be one of its own."""
    own = their.get("alpha_pattern") or {}
    named = next((key for key in own if re.match(rf"(.*\.)?({key})$", module)), None)  # as peft matches them
    alpha = their["lora_alpha"] if named is None else own[named]
    return float(alpha) / divisor(_scaling(their), rank)


def _dropout(path: Path, their: dict[str, Any]) -> float:
    """What was dropped of the factors' input while they were trained; it changes nothing but their training."""
    probability = their.get("lora_dropout", 0.0)
    if not isinstance(probability, int | float) or not 0 <= probability < 1:
        raise CheckpointError(
            f"{path / CONFIG}: lora_dropout is {shown(probability)}, expected a probability below 1: correct it"
        )
    return float(probability)


def _scaling(their: dict[str, Any]) -> LowRankScaling:
    return "sqrt_rank" if their.get("use_rslora") else "rank"


def _parts(down: Tensor, up: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """A and B of each of our maps that one of theirs holds: GPT-2 keeps query, key and value in one.

    Where B is made of blocks along its diagonal, each map has its own part of the rank.
    """
    rows = up.chunk(count)
    width = len(down) // count
    if count == 1 or len(down) % count or not up.any():
        return [(down, one) for one in rows]
    own = [(one[:, at * width : (at + 1) * width], down[at * width : (at + 1) * width]) for at, one in enumerate(rows)]
    if not torch.equal(torch.block_diag(*(up for up, _ in own)), up):
        return [(down, one) for one in rows]
    return [(down, up) for up, down in own]


def _written(config: ModelConfig, name: str, factors: Factors | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A and B of one of our maps as Hugging Face's order of rows has them; zeros where it has none."""
    if factors is None:
        return weight.new_zeros(config.lora_rank, weight.shape[1]), weight.new_zeros(weight.shape[0], config.lora_rank)
    return factors.down, halved({name: factors.up}, config)[name]


def _lengths(config: ModelConfig, name: str, factors: Factors | None, weight: Tensor) -> Tensor:
    """Magnitudes of one of our maps in the same order of rows; the lengths of its own rows where it has none."""
    found = None if factors is None else factors.magnitude
    return halved({name: row_lengths(weight) if found is None else found}, config)[name]


def _within_block(module: str) -> str:
    """A module's name inside its block: self_attn.q_proj, as peft's target_modules have it."""
    return re.sub(r"^.*\.\d+\.", "", module)
