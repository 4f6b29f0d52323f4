"""Models from Hugging Face folders, with equal logits. Only safetensors and JSON are read, never a pickle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from limpid.config import ModelConfig
from limpid.config.options import from_dict
from limpid.errors import CheckpointError, ConfigError
from limpid.files import MALFORMED, parse_json
from limpid.model.families import FAMILIES, Family, family_of
from limpid.model.family_configs import checked, head_of
from limpid.model.header import header, require_layers, require_numbers
from limpid.model.transformer import Transformer
from limpid.published_names import HEADS
from limpid.quantities import parameters

Tensors = dict[str, Tensor]
STEP = "limpid_step"
"""Key of config.json: the number of steps after which the weights are those of a run."""
IGNORED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Buffers that old versions saved beside the weights."""


def load_model(path: Path) -> Transformer:
    """The model of a Hugging Face folder, ready to run."""
    config, weights = load_folder(path)
    model = Transformer(config)
    model.load_state_dict(weights)
    return model.eval()


def load_folder(path: Path) -> tuple[ModelConfig, Tensors]:
    """Configuration and weights, float32 or wider, under our names.

    Raises  CheckpointError for what is missing, cut short or of another shape; ConfigError for an option or family
            that has no equivalent
    """
    family, config, files = _described(path)
    return config, _ours(family, config, {name: one for file in files for name, one in _tensors(file).items()}, path)


def folder_sizes(path: Path) -> ModelConfig:
    """The configuration alone, under our names; no weights are read but their header."""
    return _described(path)[1]


def _described(path: Path) -> tuple[Family, ModelConfig, list[Path]]:
    """What a folder says that its model is, and the files of its weights."""
    their = _config_json(path)
    kind = their.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(f"{path} holds a model of type {kind!r:.60}: limpid reads {', '.join(FAMILIES)}")
    family, files = FAMILIES[kind], _weight_files(path)
    held = {name: entry for file in files for name, entry in header(file).items()}
    try:
        their = checked(family.defaults | their)
        require_layers(their[family.layers], held, f"{path}: its weights")
        plain = family.read(their) | head_of(their)
        config = from_dict(ModelConfig, {key: value for key, value in plain.items() if value is not None})
    except ConfigError as error:
        raise ConfigError(f"{path / 'config.json'}: {error}") from error
    require_numbers(held, str(path))
    return family, config, files


def step_of(path: Path) -> int | None:
    """After which step of its run the model of a folder is; None where nobody says so."""
    step = said_of(path).get(STEP)
    return step if isinstance(step, int) else None


def dropout_of(path: Path) -> float:
    """The dropout that the model of a folder was trained with, as far as its config.json says; the largest of several.

    It is no part of what is read otherwise: a run that continues a model has its own.
    """
    said = (value for name, value in said_of(path).items() if name.endswith(("pdrop", "dropout")))
    return max((float(value) for value in said if isinstance(value, int | float)), default=0.0)


def said_of(path: Path) -> dict[str, Any]:
    """What a folder's config.json says, nothing where it cannot be read."""
    try:
        said = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def hugging_face_names(config: ModelConfig) -> dict[str, str]:
    """Our parameters' names and Hugging Face's; GPT-2 has one name for query, key and value."""
    family = family_of(config)
    fused = re.compile(r"\.attn\.(query|key|value)\.")
    return {
        parameter.name: fused.sub(".attn.c_attn.", _fused_name(family, parameter.name))
        for parameter in parameters(config)
    }


def unconverted(theirs: Tensors, config: ModelConfig) -> Tensors:
    """Arrays that belong to Hugging Face's parameters, gradients for example, under our names."""
    family = family_of(config)
    named = _unfused(theirs, config) if family.fused else theirs
    their_names = {parameter.name: _fused_name(family, parameter.name) for parameter in parameters(config)}
    return {ours: named[name] for ours, name in their_names.items() if name in named}


def _config_json(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        their = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} is neither a run nor a Hugging Face folder: it has no config.json") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {' '.join(str(error).split())}") from error
    if not isinstance(their, dict):
        raise CheckpointError(f"{file} holds {type(their).__name__}, expected an object of options")
    return their


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder: one, or the shards that its index names."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = parse_json(index.read_bytes())["weight_map"]
            files = sorted({path / Path(file).name for file in named.values()})
        except (OSError, *MALFORMED) as error:
            raise CheckpointError(f"{index} is not an index of shards: download it again") from error
        for file in files:
            if file.is_file() and (more := set(header(file)) - set(named)):
                raise CheckpointError(f"{index} lacks {min(more)}, which {file.name} holds: download both again")
        return files
    refuse_pickles(path)
    return [path / "model.safetensors"]


def refuse_pickles(path: Path) -> None:
    """Raise CheckpointError for a folder whose weights are a pickle, and no safetensors."""
    if any(path.glob("*.safetensors")):
        return
    if pickles := [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")]:
        raise CheckpointError(
            f"{pickles[0]} is a pickle, which can run code; limpid reads safetensors only: save the model again with "
            "save_pretrained in a current transformers"
        )


def _tensors(file: Path) -> Tensors:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        reason = "is missing" if not file.is_file() else f"cannot be read ({' '.join(str(error).split())})"
        raise CheckpointError(f"{file} {reason}: download or save the model again") from error


def _ours(family: Family, config: ModelConfig, theirs: Tensors, path: Path) -> Tensors:
    """Their tensors under our names, every one checked."""
    prefix = "transformer." if family.fused else "model."
    named = {
        name if name.startswith((prefix, *(f"{head}." for head in HEADS.values()))) else prefix + name: tensor
        for name, tensor in theirs.items()
        if not name.endswith(IGNORED)
    }
    if family.fused:
        named = _unfused(named, config)
    if config.tied:
        named.pop("lm_head.weight", None)  # the embedding, once more
    weights = {}
    for parameter in parameters(config):
        their_name = _fused_name(family, parameter.name)
        if their_name not in named:
            raise CheckpointError(f"{path} lacks the weight {their_name}, which its config.json asks for")
        tensor = named.pop(their_name)
        if tuple(tensor.shape) != parameter.shape:
            raise CheckpointError(
                f"{path}: {their_name} has shape {tuple(tensor.shape)}, its config.json asks for {parameter.shape}"
            )
        weights[parameter.name] = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    if named:
        raise CheckpointError(
            f"{path} holds {min(named)}, which a {family.name} model with its config.json has no place for"
        )
    return weights


def _fused_name(family: Family, ours: str) -> str:
    """Their name; of GPT-2's query, key and value the name that `_unfused` gives them."""
    if family.fused and ".attention.output" not in ours and ".attention." in ours:
        _, block, _, which, kind = ours.split(".")
        return f"transformer.h.{block}.attn.{which}.{kind}"
    return family.their_name(ours)


def _unfused(theirs: Tensors, config: ModelConfig) -> Tensors:
    """GPT-2's fused matrix in three, and all its matrices the way round that linear maps have them."""
    named: Tensors = {}
    for name, tensor in theirs.items():
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) and tensor.ndim == 2:
            tensor = tensor.t().contiguous()
        if ".attn.c_attn." in name:
            for which, part in zip(("query", "key", "value"), tensor.split(config.d_model), strict=False):
                named[name.replace("c_attn", which)] = part.contiguous()
        else:
            named[name] = tensor
    return named
