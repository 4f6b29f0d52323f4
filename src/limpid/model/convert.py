"""Hugging Face folders in and out, with equal logits. Only safetensors and JSON are read, never a pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from limpid.config import ModelConfig
from limpid.config.options import from_dict
from limpid.errors import CheckpointError, ConfigError
from limpid.files import MALFORMED, folder_written_atomically, parse_json
from limpid.model.families import FAMILIES, Family, family_of
from limpid.model.family_configs import checked, head_of
from limpid.model.header import header, require_layers, require_numbers
from limpid.model.linear import merge
from limpid.model.transformer import Transformer
from limpid.published_names import HEADS
from limpid.quantities import parameters

Tensors = dict[str, Tensor]
FILES = (
    "config.json", "generation_config.json", "model.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
"""What `save_folder` writes; all else in a folder is somebody else's, and stays."""
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


@dataclass(frozen=True)
class Conversation:
    """How a tokenizer begins, ends and converses, beside what its own file says."""

    start: int | None
    """The token before a text's first."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    words: Mapping[str, str]
    """bos_token, eos_token, …"""
    template: str | None
    """Jinja's."""


def save_folder(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    tokenizer_json: str | None,
    end_of_text: int | None,
    step: int | None = None,
    conversation: Conversation | None = None,
) -> None:
    """Write a model as Hugging Face expects it, low-rank factors added in; config.json says after which step it is.

    conversation  how its tokenizer begins, ends and converses, where that was said beside tokenizer.json
    Raises  ConfigError naming the options that no family can express
    """
    config, weights = merge(config, weights)
    family = family_of(config)
    rates = config.head == "score"
    special: dict[str, Any] = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    if conversation is not None:
        special |= {"bos_token_id": conversation.start, "eos_token_id": _one_or_more(conversation.ends)}
    # transformers looks for the last token that is no padding
    rating = {"id2label": {"0": "score"}, "label2id": {"score": 0}, "pad_token_id": end_of_text} if rates else {}
    with folder_written_atomically(path, FILES) as folder:
        their_config = {
            "architectures": [family.scoring if rates else family.architecture],
            "model_type": family.name,
            **family.write(config),
            **special,
            **rating,
            "dtype": str(next(iter(weights.values())).dtype).removeprefix("torch."),
            **({} if step is None else {STEP: step}),
        }
        _write_json(folder / "config.json", their_config)
        _write_json(folder / "generation_config.json", {**special, "_from_model_config": True})
        save_file(hugging_face_weights(config, weights), folder / "model.safetensors", metadata={"format": "pt"})
        if tokenizer_json is not None:
            _write_tokenizer(folder, config, tokenizer_json, end_of_text, conversation)


def _one_or_more(ids: Sequence[int]) -> int | list[int] | None:
    return ids[0] if len(ids) == 1 else list(ids) or None


def _write_tokenizer(
    folder: Path,
    config: ModelConfig,
    tokenizer_json: str,
    end_of_text: int | None,
    conversation: Conversation | None = None,
) -> None:
    """tokenizer.json and what AutoTokenizer wants beside it to give the same ids."""
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    added = {token["id"]: token["content"] for token in json.loads(tokenizer_json).get("added_tokens", [])}
    end = added.get(end_of_text)
    ends = {} if end is None else {"bos_token": end, "eos_token": end, "unk_token": end}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # a text that spells a special token is still text
        **ends,
    }
    if conversation is not None:
        ends |= conversation.words
        settings |= conversation.words
        if conversation.template is not None:
            (folder / "chat_template.jinja").write_text(conversation.template, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "special_tokens_map.json", ends)


def hugging_face_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Tensors:
    """A model's parameters under Hugging Face's names, in its order of rows and columns."""
    family, weights = family_of(config), halved(weights, config)
    if not family.fused:
        return {family.their_name(name): tensor.contiguous() for name, tensor in weights.items()}
    for block in range(config.num_layers):
        for kind in ("weight", "bias"):
            at = f"blocks.{block}.attention"
            parts = [weights.pop(f"{at}.{which}.{kind}") for which in ("query", "key", "value")]
            weights[f"transformer.h.{block}.attn.c_attn.{kind}"] = torch.cat(parts)
    named = {name if "c_attn" in name else family.their_name(name): tensor for name, tensor in weights.items()}
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: (t.t() if name.endswith(turned) else t).contiguous() for name, t in named.items()}


def halved(weights: Mapping[str, Tensor], config: ModelConfig) -> Tensors:
    """Rows of query and key in Hugging Face's order: pairs (2i, 2i + 1) become (i, i + d_head/2), and products do not
    see it."""
    if config.positions != "rotary" or config.rotary_layout != "interleaved":
        return dict(weights)
    return {name: _halved(name, tensor, config) for name, tensor in weights.items()}


def _halved(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    station = name.rsplit(".", 1)[0]
    if station.endswith((".query", ".key", ".query_norm", ".key_norm")):
        heads = tensor.unflatten(0, (-1, config.sizes.d_head // 2, 2))
        return heads.transpose(1, 2).flatten(0, 2)
    return tensor


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
