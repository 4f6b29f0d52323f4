"""Accelerators: what their data sheets promise, and the peak that a plan counts with."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from limpid.errors import ConfigError
from limpid.planning.figure import Figure, given


@dataclass(frozen=True)
class Device:
    """One accelerator: dense rates of matrix products, and memory. Vendors' GB are 10^9 bytes here."""

    name: str
    flops_per_second: float
    """In bf16 (fp16 where there is no bf16), without sparsity."""
    memory_bytes: float
    bytes_per_second: float
    """That its memory is read with."""
    source: str
    fp32_flops_per_second: float = 0.0
    """Of fp32 products as PyTorch runs them by default."""
    fp8_flops_per_second: float = 0.0
    link_bytes_per_second: float = 0.0
    """That it sends to others of its node with, each way; 0 where it has no link of its own but the bus."""

    def rate(self, precision: str) -> float:
        """FLOP/s of matrix products in a precision."""
        if precision in ("fp32", "fp64") and self.fp32_flops_per_second:
            return self.fp32_flops_per_second / (1 if precision == "fp32" else 2)
        if precision == "fp8" and self.fp8_flops_per_second:
            return self.fp8_flops_per_second
        return self.flops_per_second


LINK = 32.0
"""GB/s that a device sends to others of its node, each way, where nothing says so: PCIe 4.0 × 16."""
NETWORK = 50.0
"""GB/s that a device sends to other nodes, each way, unless it is said: 400 Gb/s, one adapter a device."""


def _device(
    name: str, tflops: float, gigabytes: float, per_second: float, source: str, fp32: float = 0, fp8: float = 0,
    link: float = LINK,
) -> Device:  # fmt: skip
    """From TFLOP/s, GB, and GB/s; the link is PCIe 4.0 × 16 unless it has one of its own."""
    rates = tflops * 1e12, gigabytes * 1e9, per_second * 1e9
    return Device(name, *rates, source, fp32 * 1e12, fp8 * 1e12, link * 1e9)


NVIDIA = "NVIDIA {} data sheet, dense rates"
DEVICES = {
    device.name: device
    for device in (
        _device("v100", 125, 32, 900, NVIDIA.format("V100 SXM2 32 GB"), 15.7, link=150),
        _device("t4", 65, 16, 300, NVIDIA.format("T4"), 8.1),
        _device("a10", 125, 24, 600, NVIDIA.format("A10"), 31.2),
        _device("a100", 312, 80, 2039, NVIDIA.format("A100 80 GB SXM"), 19.5, link=300),
        _device("a100-40gb", 312, 40, 1555, NVIDIA.format("A100 40 GB SXM"), 19.5, link=300),
        _device("l4", 121, 24, 300, NVIDIA.format("L4"), 30.3, 242),
        _device("l40s", 362, 48, 864, NVIDIA.format("L40S"), 91.6, 733),
        _device("h100", 989.4, 80, 3350, NVIDIA.format("H100 SXM"), 67, 1979, link=450),
        _device("h100-pcie", 756, 80, 2000, NVIDIA.format("H100 PCIe"), 51, 1513, link=64),
        _device("h800", 989.4, 80, 3350, NVIDIA.format("H800 SXM"), 67, 1979, link=200),
        _device("h200", 989.4, 141, 4800, NVIDIA.format("H200 SXM"), 67, 1979, link=450),
        _device("b200", 2250, 180, 8000, NVIDIA.format("B200 (HGX)"), 75, 4500, link=900),
        _device("rtx-3090", 71, 24, 936, NVIDIA.format("GA102 architecture"), 35.6),
        _device("rtx-4090", 165.2, 24, 1008, NVIDIA.format("Ada architecture (fp32 accumulation)"), 82.6, 330.3),
        _device("rtx-5090", 209.5, 32, 1792, NVIDIA.format("Blackwell RTX (fp32 accumulation)"), 104.8, 419, link=64),
        _device("mi250x", 383, 128, 3277, "AMD MI250X data sheet", 47.9, link=250),
        _device("mi300x", 1307.4, 192, 5300, "AMD MI300X data sheet, dense rates", 163.4, 2614.9, link=448),
        _device("tpu-v3", 123, 32, 900, "Google Cloud TPU documentation"),
        _device("tpu-v4", 275, 32, 1228, "Jouppi et al. 2023, table 4, arXiv:2304.01433"),
        _device("tpu-v5e", 197, 16, 819, "Google Cloud TPU documentation"),
        _device("tpu-v5p", 459, 95, 2765, "Google Cloud TPU documentation"),
    )
}


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


def peak_of(device: Device, precision: str) -> Figure:
    """The peak of one device."""
    return given("time.peak", device.rate(precision), "FLOP/s", device.source, f"one {device.name}, {precision}")
