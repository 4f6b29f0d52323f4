"""Time and money: what devices can do, which share of it training gets, and how long that takes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.plan.figure import Figure, figure, given

PALM = "Chowdhery et al. 2022, appendix B, arXiv:2204.02311"
NARAYANAN = "Narayanan et al. 2021, {}, arXiv:2104.04473"
DAY = 86400.0


@dataclass(frozen=True)
class Device:
    """One accelerator: dense rates of matrix products, memory, bandwidth. Vendors' GB are 10^9 bytes here."""

    name: str
    flops: float
    """FLOP/s in bf16 (fp16 where there is no bf16), without sparsity."""
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes per second."""
    source: str
    fp32: float = 0.0
    """FLOP/s of fp32 products as PyTorch runs them by default."""
    fp8: float = 0.0

    def rate(self, precision: str) -> float:
        """FLOP/s of matrix products in a precision."""
        if precision in ("fp32", "fp64") and self.fp32:
            return self.fp32 if precision == "fp32" else self.fp32 / 2
        return self.fp8 or self.flops if precision == "fp8" else self.flops


def _device(
    name: str, tera: float, gigabytes: float, per_second: float, source: str, fp32: float = 0, fp8: float = 0
) -> Device:
    return Device(name, tera * 1e12, gigabytes * 1e9, per_second * 1e9, source, fp32 * 1e12, fp8 * 1e12)


NVIDIA = "NVIDIA {} data sheet, dense rates"
DEVICES = {
    device.name: device
    for device in (
        _device("v100", 125, 32, 900, NVIDIA.format("V100 SXM2 32 GB"), 15.7),
        _device("t4", 65, 16, 320, NVIDIA.format("T4"), 8.1),
        _device("a10", 125, 24, 600, NVIDIA.format("A10"), 31.2),
        _device("a100", 312, 80, 2039, NVIDIA.format("A100 80 GB SXM"), 19.5),
        _device("a100-40gb", 312, 40, 1555, NVIDIA.format("A100 40 GB SXM"), 19.5),
        _device("l4", 121, 24, 300, NVIDIA.format("L4"), 30.3, 242),
        _device("l40s", 362, 48, 864, NVIDIA.format("L40S"), 91.6, 733),
        _device("h100", 989.4, 80, 3350, NVIDIA.format("H100 SXM"), 67, 1979),
        _device("h100-pcie", 756, 80, 2000, NVIDIA.format("H100 PCIe"), 51, 1513),
        _device("h800", 989.4, 80, 3350, NVIDIA.format("H800 SXM"), 67, 1979),
        _device("h200", 989.4, 141, 4800, NVIDIA.format("H200 SXM"), 67, 1979),
        _device("b200", 2250, 180, 7700, NVIDIA.format("B200 (HGX)"), 75, 4500),
        _device("rtx-3090", 71, 24, 936, NVIDIA.format("GA102 architecture"), 35.6),
        _device("rtx-4090", 165.2, 24, 1008, NVIDIA.format("Ada architecture (fp32 accumulation)"), 82.6, 330.3),
        _device("rtx-5090", 209.5, 32, 1792, NVIDIA.format("Blackwell RTX (fp32 accumulation)"), 104.8, 419),
        _device("mi250x", 383, 128, 3277, "AMD MI250X data sheet", 47.9),
        _device("mi300x", 1307.4, 192, 5300, "AMD MI300X data sheet, dense rates", 163.4, 2614.9),
        _device("tpu-v3", 123, 32, 900, "Google Cloud TPU documentation"),
        _device("tpu-v4", 275, 32, 1228, "Jouppi et al. 2023, table 4, arXiv:2304.01433"),
        _device("tpu-v5e", 197, 16, 819, "Google Cloud TPU documentation"),
        _device("tpu-v5p", 459, 95, 2765, "Google Cloud TPU documentation"),
    )
}
UTILISATION = 0.4
"""Share of the peak that large runs report: Llama 3 405B 0.38 to 0.43. Source: Grattafiori et al. 2024, table 4."""


def device_named(name: str) -> Device:
    """A device by its name.

    Raises  ConfigError naming the closest ones
    """
    plain = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("amd-")
    plain = plain.removeprefix("geforce-").removesuffix("-sxm").removesuffix("-80gb")
    for known in (plain, plain.replace("rtx", "rtx-"), f"rtx-{plain}", f"tpu-{plain}"):
        if known in DEVICES:
            return DEVICES[known]
    close = difflib.get_close_matches(plain, DEVICES, 2, 0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"device {name!r} is not known: {hint}known are {', '.join(DEVICES)}, and `here`; "
        "of another one, give --memory (GB) and --flops (FLOP/s)"
    )


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
    found = [compute, rate, seconds, speed, hours]
    if price is not None:
        require(price >= 0, f"price is {price}: dollars per device and hour, not negative")
        found.append(figure("money.total", "$", "device_hours * price", {"device_hours": hours, "price": price}))
    return found


def utilisation_of(flops_per_token: float, tokens_per_second: float, devices: int, rate: float) -> Figure:
    """MFU: the model's own FLOPs per second over the peak of all devices."""
    numbers = {"per_token": flops_per_token, "speed": tokens_per_second, "devices": devices, "rate": rate}
    return figure("time.mfu", "share", "per_token * speed / (devices * rate)", numbers, PALM)


def rate_of(device: Device, precision: str) -> Figure:
    """The peak of one device."""
    return given("time.peak", device.rate(precision), "FLOP/s", device.source, f"one {device.name}, {precision}")


def training_seconds(flops: float, devices: int, rate: float, utilisation: float = 1.0) -> float:
    """Seconds for so many FLOPs."""
    return flops / (devices * rate * utilisation)


def pipeline_bubble(stages: int, micro_batches: int, interleave: int = 1) -> float:
    """Idle time over working time of a pipeline: (p - 1) / m, divided by the chunks per device when interleaved.

    Source: Narayanan et al. 2021, section 2.2, arXiv:2104.04473.
    """
    return (stages - 1) / (micro_batches * interleave)


def megatron_flops(batch: int, seq: int, layers: int, hidden: int, vocab: int, recompute: bool | str = False) -> float:
    """FLOPs of one step of a GPT with 4h hidden features: 72 b s l h² (1 + s/6h + V/12hl).

    recompute   False: the model's own; True: every block runs forward once more, 4/3 of the blocks;
                "selective": as the hardware's share is published, s/3h instead of s/6h. (Scores and mixing once more
                would be s/4.5h; the paper counts all of attention's squares twice.)
    Source: Korthikanti et al. 2022, appendix A, arXiv:2205.05198; Narayanan et al. 2021, eq. 3, arXiv:2104.04473.
    """
    blocks = 72 * batch * seq * layers * hidden**2
    squares = 12 * batch * seq**2 * layers * hidden * (2 if recompute == "selective" else 1)
    logits = 6 * batch * seq * hidden * vocab
    return (4 / 3 if recompute is True else 1) * (blocks + squares) + logits
