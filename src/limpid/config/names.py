"""What options are called, here and in other tools: an unknown name is answered with the one that was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from limpid.errors import ConfigError

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
    "precision": ("dtype", "mixed_precision"),
    "tied": ("tie_word_embeddings", "tie_weights"),
    "rotary_base": ("rope_theta", "rope_base", "theta"),
    "attention_window": ("sliding_window", "window"),
    "weight_decay": ("wd",),
    "ema_decay": ("ema", "model_ema_decay"),
    "eval_steps": ("eval_every", "eval_interval"),
    "save_steps": ("save_every", "save_interval", "checkpoint_every"),
    "logging_steps": ("log_every", "log_interval"),
    "resume": ("resume_from_checkpoint", "resume_from_step"),
    "max_new_tokens": ("num_tokens", "n_predict"),
    "top_p": ("nucleus",),
    "num_beams": ("beams", "beam_size"),
    "output": ("out", "output_dir", "out_dir"),
}
"""What our options are called in other tools, where it means the same: these names are understood."""
NEARLY = {
    "gradient_checkpointing": ("recompute", "activation_checkpointing", "checkpoint_activations"),
    "parallel": ("tensor_parallel_size", "tp", "tensor_parallel", "pipeline_parallel", "pp", "fsdp", "data_parallel"),
    "precision": ("bf16", "fp16", "amp"),
    "max_new_tokens": ("max_tokens", "max_length", "length", "tokens"),
    "context_length": ("context",),
    "prompt": ("text",),
}
"""Names elsewhere of something that is a little different: an error answers with ours."""


def aliases(known: Iterable[str]) -> dict[str, str]:
    """Flags of other tools, and ours that each stands for, of the options that there are."""
    options = set(known)
    return {
        f"--{name.replace('_', '-')}": f"--{ours.replace('_', '-')}"
        for ours, elsewhere in ELSEWHERE.items()
        if ours in options
        for name in elsewhere
        if name not in options
    }


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for an option that does not exist, naming the one that was probably meant."""
    close = probably_meant(key.rpartition(".")[2], known)
    hint = f"did you mean {close}?" if close else "known are " + ", ".join(sorted(known))
    return ConfigError(f"unknown option {key}: {hint}")


def probably_meant(name: str, known: Iterable[str]) -> str | None:
    """The known option that other tools call `name`, or one that says more or less of the same words, or a slip away.

    One that merely shares letters, as --threads does with --head, is none.
    """
    options = list(known)
    tables = (*ELSEWHERE.items(), *NEARLY.items())
    same = [ours for ours, elsewhere in tables if name in elsewhere and ours in options]
    words = _words(name)
    like = [one for one in options if words and (words <= _words(one) or words >= _words(one))]
    slips = difflib.get_close_matches(name, options, len(options) or 1, ONE_LETTER)
    near = [one for one in slips if abs(len(one) - len(name)) <= 1 or _likeness(name, one) >= SEVERAL_LETTERS]
    return next(iter(same or difflib.get_close_matches(name, like, 1, 0.0) or near), None)


ONE_LETTER, SEVERAL_LETTERS = 0.75, 0.8
"""Least likeness of a slip of the hand, 2 · letters in common / letters of both: stpe and step, learnig_rate."""


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()


def _words(name: str) -> frozenset[str]:
    """The words of a name, in the singular."""
    return frozenset(word.removesuffix("s") for word in re.split(r"[_\W]+", name) if len(word) > 1)
