"""Which way of computing a run takes on this machine, and why: the fastest that is right, settled before step 1."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from limpid.config import Switch, TrainConfig
from limpid.errors import ConfigError
from limpid.model.kernels.attention import SHORT
from limpid.plan import engine_memory, flops_per_token
from limpid.training.precision import FORMATS, measured_peak, resolve

UTILISATION = 0.3
"""Share of the peak that a step is taken to reach, where only an estimate of its length is needed."""
MEMORY_SHARE = 0.8
"""Of the memory that is free, what tensors may fill."""
COMPILE_SECONDS, COMPILED_SHARE = 25.0, 0.2
"""What compiling a block takes the first time on a machine, and the share of a step that it saves: both measured."""


@dataclass(frozen=True)
class Choice:
    """One decision: what it is about, what was chosen, and the number that decided."""

    part: str
    chosen: str
    why: str


def resolve_auto(config: TrainConfig, device: torch.device) -> TrainConfig:
    """The configuration with every `auto` decided for this device; a run records it, and keeps to it when resumed.

    Raises  ConfigError when something was asked for that this machine or model cannot do
    """
    config = _with(config, precision=resolve(config.run.precision, device))
    chosen, why = compiled(config, device)
    if config.run.compile == "on" and not chosen:
        raise ConfigError(f"compile is on, but {why}; leave it out, or say off")
    again, _ = recomputed(config, device)
    return _with(config, compile=_switch(chosen), gradient_checkpointing=_switch(again))


def explain(config: TrainConfig, device: torch.device) -> list[Choice]:
    """Every decision about how this configuration would be computed here, with its reason."""
    return list(_explained(config, device))


def _explained(asked: TrainConfig, device: torch.device) -> Iterator[Choice]:
    config = _with(asked, precision=resolve(asked.run.precision, device))
    yield _precision(asked, config, device)
    yield _attention(config, device)
    chosen, why = compiled(config, device)
    yield Choice("blocks", "compiled, one compilation for all" if chosen else "PyTorch's kernels one by one", why)
    again, why = recomputed(config, device)
    yield Choice("activations", "computed again in the backward pass" if again else "kept", why)
    yield Choice("loss", "from the stream, a few rows of logits at a time", "the logits are never stored whole")
    yield Choice("update", "fused: one pass over all parameters", "PyTorch's own, several times the speed of a loop")


def compiled(config: TrainConfig, device: torch.device) -> tuple[bool, str]:
    """Whether blocks are compiled, and why."""
    if config.run.compile == "off":
        return False, "compile is off"
    if config.model.dropout:
        return False, "dropout's masks are drawn in PyTorch's order, so that a step can be redone"
    if not _compiler(device):
        return False, f"torch.compile finds no {'Triton' if device.type == 'cuda' else 'C++ compiler (g++)'} here"
    if config.run.compile == "on":
        return True, "compile is on"
    seconds = config.run.max_steps * estimated_step_seconds(config, device)
    saved = COMPILED_SHARE * seconds
    once = f"compiling, {COMPILE_SECONDS:.0f} s once, would save about {_span(saved)}"
    return saved > 2 * COMPILE_SECONDS, f"the run takes about {_span(seconds)}: {once}"


def recomputed(config: TrainConfig, device: torch.device) -> tuple[bool, str]:
    """Whether blocks compute their activations again in the backward pass, and why."""
    if config.run.gradient_checkpointing != "auto":
        return (
            config.run.gradient_checkpointing == "on",
            f"gradient_checkpointing is {config.run.gradient_checkpointing}",
        )
    figures = {one.name: one.value for one in engine_memory.figures(config, device.type == "cpu")}
    needed, there = figures["memory.total"], MEMORY_SHARE * available_bytes(device)
    said = f"training holds {needed / 1e9:.2f} GB at its worst moment; {there / 1e9:.1f} GB may be used"
    return needed > there, said


def available_bytes(device: torch.device) -> int:
    """Memory that a run could take now: the device's, or the machine's without what other programs hold."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not Linux: all there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def estimated_step_seconds(config: TrainConfig, device: torch.device) -> float:
    """About how long a step takes, uncompiled: its matrix products at `UTILISATION` of this device's peak."""
    tokens = config.run.batch_size * config.run.gradient_accumulation_steps * config.model.context_length
    flops = 3 * tokens * flops_per_token(config.model, config.model.context_length)
    return flops / (UTILISATION * measured_peak(FORMATS[config.run.precision], device))


def _precision(asked: TrainConfig, config: TrainConfig, device: torch.device) -> Choice:
    rates = {name: measured_peak(FORMATS[name], device) / 1e9 for name in dict.fromkeys(("fp32", config.run.precision))}
    measured = ", ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in rates.items())
    because = "as asked; " if asked.run.precision != "auto" else ""
    return Choice("precision", config.run.precision, f"{because}matrix products measured here: {measured}")


def _attention(config: TrainConfig, device: torch.device) -> Choice:
    positions = config.model.context_length
    if device.type == "cpu" and positions <= SHORT:
        return Choice("attention", "two batched products", f"quicker than the fused kernel up to {SHORT} positions")
    return Choice(
        "attention", "PyTorch's fused kernel", f"{positions:,} positions: its memory grows with them, not squared"
    )


def _compiler(device: torch.device) -> bool:
    """Whether torch.compile can make code for this machine's device."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return has_triton()
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _switch(chosen: bool) -> Switch:
    return "on" if chosen else "off"


def _span(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _with(config: TrainConfig, **options: object) -> TrainConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **options))  # type: ignore[arg-type]
