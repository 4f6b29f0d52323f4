"""GGUF files, as llama.cpp and what is built on it load models.

Source: github.com/ggml-org/ggml, docs/gguf.md; names of keys and tensors from the gguf package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limpid.config import ModelConfig
from limpid.config.sampling import StoredAs
from limpid.errors import ConfigError
from limpid.files import file_written_atomically
from limpid.model.embedding import frequencies
from limpid.model.export import hugging_face_weights
from limpid.model.families import family_of
from limpid.model.linear import merge

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2"}
"""llama.cpp's name for each family."""
ACTIVATION = {"llama": "silu", "qwen2": "silu", "qwen3": "silu", "gpt2": "gelu_tanh"}
"""The one activation that llama.cpp computes for an architecture."""
TURNED = (".attn.c_attn.weight", ".c_proj.weight", ".c_fc.weight")
"""GPT-2's matrices, which Hugging Face keeps transposed and llama.cpp does not."""
UNUSED_MERGE = f"{chr(0xFE)} {chr(0xFF)}"
"""A merge of two bytes that no text in UTF-8 has: llama.cpp reads no file without merges."""
Q8_BLOCK = 32
"""Numbers that share a scale in q8_0: a row must hold a whole number of blocks."""


def save_gguf(
    file: Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    name: str,
    tokenizer_json: str,
    end_of_text: int | None,
    stored_as: StoredAs = "fp32",
) -> None:
    """Write a model as one GGUF file, low-rank factors added in; gains and biases stay in float32.

    Raises  ConfigError naming what llama.cpp has no word for, or that the gguf package is missing
    """
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("GGUF files need the gguf package: pip install 'limpid[gguf]'") from error
    config, weights = merge(config, weights)
    architecture = ARCHITECTURES[family_of(config).name]
    if misfit := next(_misfits(config, architecture), None):
        raise ConfigError(f"llama.cpp has no word for {misfit}: export a Hugging Face folder instead")
    tokens = _tokenizer(json.loads(tokenizer_json), config.vocab_size, end_of_text)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), config.num_layers)
    theirs = {
        str(names.get_name(their_name, try_suffixes=(".weight", ".bias"))): _as_llama_cpp(
            their_name, tensor, architecture, config.sizes.d_head
        )
        for their_name, tensor in hugging_face_weights(config, weights).items()
    }
    if config.rotary_scaling == "llama3":
        theirs["rope_freqs.weight"] = _frequency_factors(config)
    with file_written_atomically(file) as temporary:
        writer = gguf.GGUFWriter(str(temporary), architecture)
        _describe(writer, config, architecture, name)
        for key, value in tokens.items():
            getattr(writer, key)(value)
        for their_name, tensor in theirs.items():
            form = stored_as if tensor.ndim > 1 and _fits(tensor, stored_as) else "fp32"
            quantized, kind = _stored(tensor, form)
            writer.add_tensor(their_name, quantized, raw_dtype=kind)
        for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            write()
        writer.close()


def _misfits(config: ModelConfig, architecture: str) -> Iterator[str]:
    """What of a configuration llama.cpp would compute otherwise."""
    if config.head == "score":
        yield "head score, a reward model's"
    if config.activation != ACTIVATION[architecture]:
        yield f"activation {config.activation} in {architecture}, where it computes {ACTIVATION[architecture]}"
    if any(config.window(block) for block in range(config.num_layers)):
        yield f"attention_window {config.attention_window} in {architecture}"


def _as_llama_cpp(their_name: str, tensor: Tensor, architecture: str, d_head: int) -> Tensor:
    """A tensor of Hugging Face's as llama.cpp keeps it.

    GPT-2's matrices the way round that linear maps have them. In llama, rows of queries and keys in the order in which
    they are rotated: pairs are (2i, 2i + 1), not (i, i + d_head/2).
    """
    if architecture == "gpt2" and their_name.endswith(TURNED):
        return tensor.t()
    if architecture == "llama" and their_name.rsplit(".", 1)[0].endswith((".q_proj", ".k_proj")):
        return tensor.unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2)
    return tensor


def _describe(writer: Any, config: ModelConfig, architecture: str, name: str) -> None:
    """Sizes and constants of the model."""
    sizes = config.sizes
    writer.add_name(name)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(sizes.d_ff)
    writer.add_head_count(config.num_heads)
    writer.add_vocab_size(config.vocab_size)
    if architecture == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
        return
    writer.add_head_count_kv(sizes.num_kv_heads)
    writer.add_key_length(sizes.d_head)
    writer.add_value_length(sizes.d_head)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(sizes.d_head)
    writer.add_rope_freq_base(config.rotary_base)
    if config.rotary_scaling in ("linear", "yarn"):
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rotary_scaling))
        writer.add_rope_scaling_factor(config.rotary_factor)
    if config.rotary_scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(sizes.rotary_original_context)


def _frequency_factors(config: ModelConfig) -> Tensor:
    """By what each rotary frequency of llama3 is divided."""
    plain = replace(config, rotary_scaling="none", rotary_factor=1.0, rotary_original_context=None)
    return (frequencies(plain) / frequencies(config)).float()


def _tokenizer(their: dict[str, Any], vocab_size: int, end_of_text: int | None) -> dict[str, Any]:
    """A byte-level BPE as llama.cpp's `gpt2` tokenizer: what each method of the writer is given.

    Raises  ConfigError for another kind of tokenizer
    """
    import gguf

    splits = their.get("pre_tokenizer") or {}
    model = their["model"]
    same_words = splits.get("use_regex", True) or not model.get("merges")
    byte_level = model.get("type") == "BPE" and splits.get("type") == "ByteLevel" and not splits.get("add_prefix_space")
    if not byte_level or not same_words:
        raise ConfigError(
            "llama.cpp is given byte-level BPE tokenizers that split as GPT-2's does: for others export a Hugging Face "
            "folder, and convert that with llama.cpp's convert_hf_to_gguf.py"
        )
    words = {place: word for word, place in model["vocab"].items()}
    special = {token["id"]: token["content"] for token in their.get("added_tokens", [])}
    kinds = gguf.TokenType
    tokens, types = [], []
    for place in range(vocab_size):
        tokens.append(special.get(place) or words.get(place) or f"[unused {place}]")
        types.append(kinds.CONTROL if place in special else kinds.NORMAL if place in words else kinds.UNUSED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    ends = {} if end_of_text is None else {"add_bos_token_id": end_of_text, "add_eos_token_id": end_of_text}
    return {
        "add_tokenizer_model": "gpt2",
        "add_tokenizer_pre": "gpt-2",
        "add_token_list": tokens,
        "add_token_types": types,
        "add_token_merges": merges or [UNUSED_MERGE],
        **ends,
        "add_add_bos_token": False,
        "add_add_space_prefix": False,
    }


def _fits(tensor: Tensor, stored_as: StoredAs) -> bool:
    return stored_as != "q8_0" or tensor.shape[-1] % Q8_BLOCK == 0


def _stored(tensor: Tensor, form: StoredAs) -> tuple[Any, Any]:
    """A tensor's numbers as they are written, and the format's number."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    kind = {"fp32": kinds.F32, "fp16": kinds.F16, "bf16": kinds.BF16, "q8_0": kinds.Q8_0}[form]
    return gguf.quants.quantize(tensor.to(torch.float32).contiguous().numpy(), kind), kind
