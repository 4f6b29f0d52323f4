"""How long training takes and what it costs; how fast decoding can be at best."""

from __future__ import annotations

from limpid.config.options import require
from limpid.plan.figure import Figure, figure

PALM = "Chowdhery et al. 2022, appendix B, arXiv:2204.02311"
DAY = 86400.0
"""Seconds."""
NARAYANAN = "Narayanan et al. 2021, {}, arXiv:2104.04473"
UTILISATION = 0.4
"""Share of the peak that large runs report: Llama 3 405B 0.38 to 0.43. Source: Grattafiori et al. 2024, table 4."""


def time_and_money(
    flops: Figure, tokens: float, devices: int, rate: Figure, utilisation: float, price: float | None
) -> list[Figure]:
    """How long it takes to train on so many tokens, in device hours, and what they cost."""
    require(0 < utilisation <= 1, f"utilisation is {utilisation}: it is a share of the peak, above 0 and at most 1")
    compute = figure("time.compute", "FLOP", "tokens * per_token", {"tokens": tokens, "per_token": flops})
    seconds = figure("time.total", "s", "compute / (devices * rate * utilisation)",
                     {"compute": compute, "devices": devices, "rate": rate, "utilisation": utilisation},
                     PALM, "utilisation: the model's own FLOPs over the peak (MFU)")  # fmt: skip
    speed = figure("time.tokens_per_second", "tokens/s", "tokens / seconds", {"tokens": tokens, "seconds": seconds})
    hours = figure(
        "time.device_hours", "device hours", "devices * seconds / 3600", {"devices": devices, "seconds": seconds}
    )
    figures = [compute, rate, seconds, speed, hours]
    if price is not None:
        require(price >= 0, f"price is {price}: dollars per device and hour, not negative")
        figures.append(figure("money.total", "$", "device_hours * price", {"device_hours": hours, "price": price}))
    return figures


def utilisation_of(flops_per_token: float, tokens_per_second: float, devices: int, rate: float) -> Figure:
    """MFU: the model's own FLOPs per second over the peak of all devices."""
    numbers = {"per_token": flops_per_token, "speed": tokens_per_second, "devices": devices, "rate": rate}
    return figure("time.mfu", "share", "per_token * speed / (devices * rate)", numbers, PALM)


def training_seconds(flops: float, devices: int, rate: float, utilisation: float = 1.0) -> float:
    """Seconds for so many FLOPs."""
    return flops / (devices * rate * utilisation)


def pipeline_bubble(stages: int, micro_batches: int, interleave: int = 1) -> float:
    """Idle time over working time of a pipeline: (p - 1) / m, divided by the chunks per device when interleaved.

    Source: Narayanan et al. 2021, section 2.2, arXiv:2104.04473.
    """
    return (stages - 1) / (micro_batches * interleave)


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
