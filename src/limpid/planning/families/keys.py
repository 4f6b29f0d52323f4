"""Keys of a config.json that every family has, however it spells them."""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]
"""Of a config.json by its own keys, or of an architecture by size."""

SPELLINGS = {
    "vocab_size": ("vocab_size",),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "d_ff": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", "d_ff"),
    "context_length": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
}
"""How families spell the sizes that every one of them has."""


def size_of(config: Fields, size: str, otherwise: int | None = None) -> Any:
    """One size under whichever name it goes."""
    for key in SPELLINGS[size]:
        if key in config:
            return config[key]
    if otherwise is None:
        raise KeyError(" or ".join(SPELLINGS[size]))
    return otherwise
