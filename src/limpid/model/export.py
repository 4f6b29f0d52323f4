"""Models into Hugging Face folders, with equal logits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from limpid.config import ModelConfig
from limpid.files import folder_written_atomically
from limpid.model.convert import STEP, Tensors
from limpid.model.families import family_of
from limpid.model.linear import merge

FILES = (
    "config.json", "generation_config.json", "model.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
"""What `save_folder` writes; all else in a folder is somebody else's, and stays."""


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
