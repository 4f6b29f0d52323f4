"""What a configuration costs, from the vocabulary alone. A multiply-add counts as two FLOPs."""

from __future__ import annotations

from limpid.config import ModelConfig
from limpid.quantities import parameters


def parameter_count(config: ModelConfig) -> int:
    """Learned numbers; a tied output matrix counts once."""
    return sum(parameter.size for parameter in parameters(config))


def flops_per_token(config: ModelConfig, context: int) -> int:
    """Forward FLOPs of the matrix products per token, `context` positions attending to each other.

    2 per weight of every matrix that multiplies the stream (a lookup multiplies nothing, the output matrix does,
    tied or not), and 2 · 2 · context · d_head per head for scores and mixing. The masked half counts too, as it does
    in published utilisation figures. Source: Chowdhery et al. 2022, appendix B, arXiv:2204.02311.
    """
    matrices = sum(
        parameter.size
        for parameter in parameters(config)
        if len(parameter.shape) == 2 and not parameter.name.startswith("embed.")
    )
    if config.tied:
        matrices += config.vocab_size * config.d_model
    attention = 4 * context * config.num_heads * config.d_head * config.num_layers
    return 2 * matrices + attention


def decode_step_seconds(weight_bytes: float, cache_bytes: float, bytes_per_second: float) -> float:
    """Least time of one decoding step: every weight and every cached key and value is read once.

    Source: Pope et al. 2022, section 2.1, arXiv:2211.05102.
    """
    return (weight_bytes + cache_bytes) / bytes_per_second


def critical_batch(flops_per_second: float, bytes_per_second: float, bytes_per_weight: float) -> float:
    """Sequences decoded at once from which arithmetic takes as long as reading the weights: 2 FLOPs per weight each.

    Source: Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785 (the roofline's ridge).
    """
    return flops_per_second * bytes_per_weight / (2 * bytes_per_second)
