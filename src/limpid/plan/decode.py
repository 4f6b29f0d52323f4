"""How fast a model can decode: what memory and arithmetic allow at least."""

from __future__ import annotations


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
