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
SLOWEST = "Cramér 1946, Mathematical Methods of Statistics, section 28.6: the largest of n normal numbers"
NARAYANAN = "Narayanan et al. 2021, {}, arXiv:2104.04473"
UTILISATION = 0.4
"""Share of the peak that is assumed while devices work: Llama 3 405B reports 0.38 to 0.43, pipeline and all.
Source: Grattafiori et al. 2024, table 4.
"""


@dataclass(frozen=True)
class Work:
    """What a training run has its devices do."""

    own: Figure
    """FLOPs per token that the model itself takes."""
    recomputed: Figure | None
    """FLOPs per token that its backward pass repeats."""
    layout: Layout
    tokens: float | None = None
    step_spread: float = 0.0
    """Standard deviation of one device's step time over its mean."""

    @property
    def done(self) -> tuple[str, dict[str, Number | Figure]]:
        """FLOPs per token that are computed, as an equation."""
        if self.recomputed is None:
            return "step", {"step": self.own}
        return "(step + recomputed)", {"step": self.own, "recomputed": self.recomputed}


def working(work: Work, rate: Figure, utilisation: float) -> Figure:
    """Seconds that the arithmetic of one step takes."""
    require(0 < utilisation <= 1, f"utilisation is {utilisation}: it is a share of the peak, above 0 and at most 1")
    layout, (done, numbers) = work.layout, work.done
    sizes = {"b": layout.batch, "m": layout.micro_batches, "s": layout.context, "t": layout.tensor,
             "p": layout.pipeline, "cp": layout.context_parallel}  # fmt: skip
    return figure("time.working", "s", f"m * b * s * {done} / (t * p * cp * rate * utilisation)",
                  {**numbers, **sizes, "rate": rate, "utilisation": utilisation}, PALM,
                  "the arithmetic of one step; utilisation: of the peak, while devices work")  # fmt: skip


def step(work: Work, busy: Figure, waited: Figure | None) -> list[Figure]:
    """How long one step takes: its arithmetic, idle stages, the slowest device, waiting for what others send."""
    layout, factors = work.layout, ["working"]
    numbers: dict[str, Number | Figure] = {"working": busy}
    figures = [busy]
    if layout.pipeline > 1:
        figures.append(figure("time.pipeline_bubble", "share", "(p - 1) / m" if layout.interleave == 1 else
                              "(p - 1) / (m * v)",
                              {"p": layout.pipeline, "m": layout.micro_batches, "v": layout.interleave},
                              NARAYANAN.format("section 2.2"),
                              "idle over working time, m micro-batches per step"))  # fmt: skip
        numbers["bubble"] = figures[-1]
        factors.append("(1 + bubble)")
    if work.step_spread:
        figures.append(figure("time.slowest", "", "1 + spread * sqrt(2 * ln(devices))",
                              {"spread": work.step_spread, "devices": layout.devices}, SLOWEST,
                              "the slowest of so many devices over their mean, at each step another one"))  # fmt: skip
        numbers["slowest"] = figures[-1]
        factors.append("slowest")
    equation = " * ".join(factors)
    if waited is not None:
        equation, numbers["waited"] = f"{equation} + waited", waited
    figures.append(figure("time.step", "s", equation, numbers))
    tokens: dict[str, Number | Figure] = {"copies": layout.replicas / layout.context_parallel, "b": layout.batch,
                                          "m": layout.micro_batches, "s": layout.context,
                                          "step": figures[-1]}  # fmt: skip
    figures.append(figure("time.tokens_per_second", "tokens/s", "copies * b * m * s / step", tokens))
    per_device: dict[str, Number | Figure] = {"speed": figures[-1], "devices": layout.devices}
    return [*figures, figure("time.tokens_per_second_and_device", "tokens/s", "speed / devices", per_device)]


def time_and_money(
    work: Work, rate: Figure, utilisation: float, price: float | None, steps: list[Figure]
) -> list[Figure]:
    """How long it takes to train on so many tokens, in device hours, and what they cost.

    utilisation   share of the peak while devices work, on whatever they compute; repeated work, idle stages of a
    pipeline and waiting come on top
    steps         what `step` says of several devices
    """
    require(0 < utilisation <= 1, f"utilisation is {utilisation}: it is a share of the peak, above 0 and at most 1")
    assert work.tokens is not None
    done, numbers = work.done
    devices = work.layout.devices
    compute = figure("time.compute", "FLOP", f"tokens * {done}", {"tokens": work.tokens, **numbers})
    if steps:
        found = {one.name: one for one in steps}
        speed = found["time.tokens_per_second"]
        seconds = figure("time.total", "s", "tokens / speed", {"tokens": work.tokens, "speed": speed})
        figures = [compute, seconds]
    else:
        seconds = figure("time.total", "s", "compute / (devices * rate * utilisation)",
                         {"compute": compute, "devices": devices, "rate": rate, "utilisation": utilisation}, PALM,
                         "utilisation: of the peak, while devices work")  # fmt: skip
        speed = figure("time.tokens_per_second", "tokens/s", "tokens / seconds",
                       {"tokens": work.tokens, "seconds": seconds})  # fmt: skip
        figures = [compute, seconds, speed]
    hours = figure("time.device_hours", "device hours", "devices * seconds / 3600",
                   {"devices": devices, "seconds": seconds})  # fmt: skip
    figures.append(hours)
    if work.recomputed is not None or steps:
        figures.append(utilisation_of(float(work.own.value), float(speed.value), devices, float(rate.value)))
        figures.append(figure("time.hfu", "share", "compute / (devices * rate * seconds)",
                              {"compute": compute, "devices": devices, "rate": rate, "seconds": seconds}, HFU,
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
