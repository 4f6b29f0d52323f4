"""How long training takes and what it costs; how fast decoding can be at best."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.config.options import require
from limpid.planning.cluster import Layout
from limpid.planning.figure import Figure, Number, figure

PALM = "Chowdhery et al. 2022, appendix B, arXiv:2204.02311"
ROOFLINE = "Pope et al. 2022, section 2.1, arXiv:2211.05102; Williams et al. 2009, doi:10.1145/1498765.1498785"
DAY = 86400.0
"""Seconds."""
HFU = "Korthikanti et al. 2022, section 6.3, arXiv:2205.05198"
NARAYANAN = "Narayanan et al. 2021, {}, arXiv:2104.04473"
UTILISATION = 0.4
"""Share of the peak that is assumed while devices work: Llama 3 405B reports 0.38 to 0.43, pipeline and all.
Source: Grattafiori et al. 2024, table 4.
"""


@dataclass(frozen=True)
class Work:
    """What a training run has its devices do."""

    tokens: float
    own: Figure
    """FLOPs per token that the model itself takes."""
    recomputed: Figure | None
    """FLOPs per token that its backward pass repeats."""
    devices: int
    pipeline: int = 1
    micro_batches: int = 1


def time_and_money(work: Work, rate: Figure, utilisation: float, price: float | None) -> list[Figure]:
    """How long it takes to train on so many tokens, in device hours, and what they cost.

    utilisation   share of the peak while devices work, on whatever they compute; repeated work and idle stages of a
    pipeline come on top
    """
    require(0 < utilisation <= 1, f"utilisation is {utilisation}: it is a share of the peak, above 0 and at most 1")
    numbers: dict[str, Number | Figure] = {"tokens": work.tokens, "step": work.own}
    done = "step"
    if work.recomputed is not None:
        done, numbers["recomputed"] = "(step + recomputed)", work.recomputed
    compute = figure("time.compute", "FLOP", f"tokens * {done}", numbers)
    figures = [compute, rate]
    numbers = {"compute": compute, "devices": work.devices, "rate": rate, "utilisation": utilisation}
    working, bubble = "compute / (devices * rate * utilisation)", None
    if work.pipeline > 1:
        bubble = figure("time.pipeline_bubble", "share", "(p - 1) / m",
                        {"p": work.pipeline, "m": work.micro_batches}, NARAYANAN.format("section 2.2"),
                        "idle over working time, m micro-batches per step")  # fmt: skip
        figures.append(bubble)
        numbers["bubble"] = bubble
    seconds = figure("time.total", "s", f"{working} * (1 + bubble)" if bubble else working, numbers, PALM,
                     "utilisation: of the peak, while devices work")  # fmt: skip
    speed = figure("time.tokens_per_second", "tokens/s", "tokens / seconds",
                   {"tokens": work.tokens, "seconds": seconds})  # fmt: skip
    hours = figure(
        "time.device_hours", "device hours", "devices * seconds / 3600", {"devices": work.devices, "seconds": seconds}
    )
    figures += [seconds, speed, hours]
    if work.recomputed is not None or bubble is not None:
        figures.append(utilisation_of(float(work.own.value), float(speed.value), work.devices, float(rate.value)))
        figures.append(figure("time.hfu", "share", "compute / (devices * rate * seconds)",
                              {"compute": compute, "devices": work.devices, "rate": rate, "seconds": seconds}, HFU,
                              "of the peak, with what is computed again"))  # fmt: skip
    if price is not None:
        require(price >= 0, f"price is {price}: dollars per device and hour, not negative")
        figures.append(figure("time.cost", "$", "device_hours * price", {"device_hours": hours, "price": price}))
    return figures


def utilisation_of(
    flops_per_token: float, tokens_per_second: float, devices: int, rate: float, name: str = "time.mfu"
) -> Figure:
    """MFU: the model's own FLOPs per second over the peak of all devices, whatever else they computed."""
    numbers = {"per_token": flops_per_token, "speed": tokens_per_second, "devices": devices, "rate": rate}
    return figure(name, "share", "per_token * speed / (devices * rate)", numbers, PALM)


def utilisation_from_hours(flops: float, device_hours: float, rate: float) -> float:
    """MFU that a run's device hours imply: its own FLOPs over what the devices could have done in that time."""
    require(device_hours > 0 and rate > 0, f"device_hours is {device_hours}, rate {rate}: both must be above 0")
    return flops / (device_hours * 3600 * rate)


def decoding_speed(
    read: Figure, weights: Figure, forward: Figure, layout: Layout, rate: Figure, bytes_per_second: float
) -> list[Figure]:
    """How long a prompt and each step of generating take at best, by the roofline: reading or arithmetic, the slower.

    read, weights   bytes on one device that a step reads, and those of them that are weights
    """
    numbers: dict[str, Number | Figure] = {
        "per_second": bytes_per_second, "b": layout.batch, "forward": forward, "rate": rate, "t": layout.tensor,
        "p": layout.pipeline,
    }  # fmt: skip
    prompt = figure("decoding.prefill", "s", "p * max(weights / per_second, b * s * forward / (p * t * rate))",
                    {**numbers, "weights": weights, "s": layout.context}, ROOFLINE,
                    "at best: a prompt that fills the context, read before the first token")  # fmt: skip
    step = figure("decoding.step", "s", "p * max(bytes / per_second, b * forward / (p * t * rate))",
                  {"bytes": read, **numbers}, ROOFLINE,
                  "at best: every byte read once, every product at the peak, nothing sent between devices; stages of a "
                  "pipeline one after another")  # fmt: skip
    speed = figure("decoding.tokens_per_second", "tokens/s", "copies * b / step",
                   {"copies": layout.replicas, "b": layout.batch, "step": step},
                   note="of all sequences on all devices together")  # fmt: skip
    return [prompt, step, speed]


def pf_days(flops: float) -> float:
    """Days of one petaFLOP/s that these FLOPs are. Source: Kaplan et al. 2020, figure 1, arXiv:2001.08361."""
    return flops / (1e15 * DAY)


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
    require(bytes_per_second > 0, f"bytes_per_second is {bytes_per_second}: it must be above 0")
    return (weight_bytes + cache_bytes) / bytes_per_second


def critical_batch(flops_per_second: float, bytes_per_second: float, bytes_per_weight: float) -> float:
    """Sequences decoded at once from which arithmetic takes as long as reading the weights: 2 FLOPs per weight each.

    Source: Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785 (the roofline's ridge).
    """
    require(bytes_per_second > 0, f"bytes_per_second is {bytes_per_second}: it must be above 0")
    return flops_per_second * bytes_per_weight / (2 * bytes_per_second)
