"""Which arithmetic a run uses, and how fast this machine is at it."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from limpid.config import Precision

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
NAMES = {dtype: name for name, dtype in FORMATS.items()}


@dataclass(frozen=True)
class Arithmetic:
    """Master parameters and residual stream in one format, matrix products in another."""

    parameters: torch.dtype
    compute: torch.dtype

    @property
    def scales_loss(self) -> bool:
        """float16 reaches down to 6e-8 only, so gradients are carried multiplied by a large factor."""
        return self.compute == torch.float16


def arithmetic(precision: Precision) -> Arithmetic:
    """The formats of a resolved precision: half precisions keep float32 masters."""
    compute = FORMATS[precision]
    return Arithmetic(torch.promote_types(compute, torch.float32), compute)


def resolve(precision: Precision, device: torch.device) -> Precision:
    """What `auto` means on this device: bf16 where it multiplies matrices at least 1.5 times as fast as fp32, measured.

    A graphics processor without bf16 gets fp16, with loss scaling.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if _gain_of_bf16(device) > BF16_GAIN else "fp32"


BF16_GAIN = 1.5
"""How many times as fast bf16 has to be, for what rounding to it costs."""
TRIALS = 3


def _gain_of_bf16(device: torch.device) -> float:
    """How many times as fast bf16 multiplies; what another program may have slowed is tried again."""
    gain = measured_peak(torch.bfloat16, device) / measured_peak(torch.float32, device)
    for _ in range(TRIALS - 1):
        if not 1 / BF16_GAIN < gain <= BF16_GAIN:
            break
        gain = _peak(torch.bfloat16, device) / _peak(torch.float32, device)
    return gain


@cache
def measured_peak(dtype: torch.dtype, device: torch.device) -> float:
    """`_peak`, measured once."""
    return _peak(dtype, device)


def _peak(dtype: torch.dtype, device: torch.device) -> float:
    """Best rate of a large matrix product in this format on this device, FLOP/s; takes about 0.1 s."""
    size = 4096 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, deadline = float("inf"), time.perf_counter() + 0.1
    while time.perf_counter() < deadline or best == float("inf"):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def engine(device: torch.device) -> dict[str, str]:
    """What decides the last bit of a sum beside threads and processes: PyTorch, the processor, and how much of float32
    matrix products take (TF32)."""
    return {**_machine(device), "fp32_products": fp32_products(device)}


def fp32_products(device: torch.device) -> str:
    """How much of float32 matrix products take: ieee (all of it), tf32 or bf16, as PyTorch was told."""
    own = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    said = (own.matmul.fp32_precision, torch.backends.fp32_precision)  # type: ignore[attr-defined]
    return next((word for word in said if word != "none"), "ieee")


@cache  # what it was at the start: a machine that runs out of files or memory may refuse to say it again
def _machine(device: torch.device) -> dict[str, str]:
    if device.type == "cuda":
        return {"torch": torch.__version__, "processor": torch.cuda.get_device_name(device)}
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return {"torch": torch.__version__, "processor": f"{name}, {torch.backends.cpu.get_cpu_capability()}"}
