"""Options as plain values and back: what a file or a command line says, checked against a dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from limpid.errors import ConfigError

T = TypeVar("T")

ELSEWHERE = {
    "learning_rate": ("lr", "max_lr", "peak_lr"),
    "schedule": ("lr_scheduler_type", "lr_scheduler", "lr_decay"),
    "max_steps": ("steps", "max_iters", "num_iterations", "train_steps", "iterations"),
    "batch_size": ("per_device_train_batch_size", "device_batch_size", "micro_batch_size"),
    "gradient_accumulation_steps": ("grad_accum", "accumulation", "gradient_accumulation"),
    "max_grad_norm": ("grad_clip", "clip_grad", "clip_grad_norm", "gradient_clip_val"),
    "context_length": ("block_size", "seq_len", "sequence_len", "max_seq_len", "n_ctx", "max_position_embeddings"),
    "d_model": ("n_embd", "hidden_size", "dim", "model_dim", "embed_dim"),
    "num_layers": ("n_layer", "n_layers", "depth", "num_hidden_layers", "layers"),
    "num_heads": ("n_head", "n_heads", "num_attention_heads", "heads"),
    "num_kv_heads": ("n_kv_head", "n_kv_heads", "num_key_value_heads", "kv_heads"),
    "d_ff": ("intermediate_size", "hidden_dim", "ffn_dim", "n_inner"),
    "precision": ("dtype", "bf16", "fp16", "mixed_precision"),
    "tied": ("tie_word_embeddings", "tie_weights"),
    "rotary_base": ("rope_theta", "rope_base", "theta"),
    "attention_window": ("sliding_window", "window"),
    "weight_decay": ("wd",),
    "eval_steps": ("eval_every", "eval_interval"),
    "save_steps": ("save_every", "save_interval", "checkpoint_every"),
    "logging_steps": ("log_every", "log_interval"),
    "resume": ("resume_from_checkpoint", "resume_from_step"),
    "max_new_tokens": ("max_tokens", "num_tokens", "max_length", "length", "tokens"),
    "top_p": ("nucleus",),
    "prompt": ("text",),
}
"""What our options are called in other tools, so that an error can answer with our name."""


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `holds`."""
    if not holds:
        raise ConfigError(message)


def check_words(config: Any) -> None:
    """Refuse a word that is not on its option's list, and print the list."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            words = ", ".join(str(word) for word in get_args(kind))
            close = difflib.get_close_matches(str(value), [str(word) for word in get_args(kind)], 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{name} is {value!r}: choose one of {words}{hint}")


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested plain values. TOML has no null: None is left out, or `none` where it is no default."""
    plain: dict[str, Any] = {}
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            plain[entry.name] = to_dict(value)
        elif value is not None:
            plain[entry.name] = list(value) if isinstance(value, tuple) else value
        elif entry.default is not None:
            plain[entry.name] = "none"
    return plain


def from_dict(kind: type[T], plain: dict[str, Any], where: str = "") -> T:
    """Build a configuration from nested plain values.

    Raises  ConfigError for an unknown key (with the nearest known one) or a value of the wrong type
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in plain.items():
        if key not in hints:
            raise unknown_key(where + key, hints)
        values[key] = _convert(hints[key], value, where + key)
    return kind(**values)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for an option that does not exist, naming the one that was probably meant."""
    close = probably_meant(key.rpartition(".")[2], known)
    hint = f"did you mean {close}?" if close else "known are " + ", ".join(sorted(known))
    return ConfigError(f"unknown option {key}: {hint}")


def probably_meant(name: str, known: Iterable[str]) -> str | None:
    """The known option that other tools call `name`, or else the one that is spelled most like it."""
    options = list(known)
    same = [ours for ours, elsewhere in ELSEWHERE.items() if name in elsewhere and ours in options]
    return next(iter(same or difflib.get_close_matches(name, options, 1)), None)


def _convert(kind: Any, value: Any, where: str) -> Any:
    """`value` as an option of type `kind`, or a ConfigError that names both."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} is {value!r}: expected a table of options")
        return from_dict(kind, value, where + ".")  # type: ignore[arg-type]
    if get_origin(kind) is types.UnionType:
        if value is None or value == "none":
            return None
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    if get_origin(kind) is Literal:
        return value  # the configuration checks its own words
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if isinstance(value, (list, tuple)):
            return tuple(_convert(element, item, where) for item in value)
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where} is {value!r}: expected {getattr(kind, '__name__', kind)}")
