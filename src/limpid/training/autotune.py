"""How a run is computed on this machine, and why: every `auto` of a configuration, decided before step 1."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from limpid.config import Switch, TrainConfig
from limpid.errors import ConfigError
from limpid.kernel_limits import materialised_positions
from limpid.machine import available_memory
from limpid.model.kernels.native_attention import serves
from limpid.model.kernels.native_call import has_kernels, is_here
from limpid.planning import engine_memory, flops_per_token
from limpid.training.precision import FORMATS, measured_peak, resolve

ASSUMED_UTILISATION = 0.3
"""Share of the peak that a step is assumed to reach, where an estimate of its duration is enough."""
MEMORY_SHARE = 0.8
"""Of the free memory, what tensors may fill."""
COMPILE_SECONDS, COMPILED_SHARE, COMPILED_SHARE_BESIDE_KERNELS = 25.0, 0.2, 0.01
"""Time to compile a block the first time on a machine; the share of a step that it saves, and what is left of that
where limpid's own kernels fuse the same passes; all measured."""


@dataclass(frozen=True)
class Decision:
    """One decision: what it is about, what was chosen, and the number that decided."""

    part: str
    chosen: str
    why: str


def resolve_auto(config: TrainConfig, device: torch.device) -> TrainConfig:
    """The configuration with every `auto` decided for this device; a run records it, and keeps to it when resumed.

    Raises  ConfigError when something was asked for that this machine or model cannot do
    """
    config = _with(config, precision=resolve(config.run.precision, device))
    chosen, why = decide_compile(config, device)
    if config.run.compile == "on" and not chosen:
        raise ConfigError(f"compile is on, but {why}; leave it out, or say off")
    recompute, _ = decide_recompute(config, device)
    return _with(config, compile=_switch(chosen), gradient_checkpointing=_switch(recompute))


def decisions(config: TrainConfig, device: torch.device) -> list[Decision]:
    """Every decision about how this configuration would be computed here, with its reason."""
    return list(_decisions(config, device))


def _decisions(asked: TrainConfig, device: torch.device) -> Iterator[Decision]:
    config = _with(asked, precision=resolve(asked.run.precision, device))
    yield _precision(asked, config, device)
    yield _attention(config, device)
    chosen, why = decide_compile(config, device)
    whose = "limpid's and PyTorch's" if has_kernels(device.type, FORMATS[config.run.precision]) else "PyTorch's"
    yield Decision("blocks", "compiled, one compilation for all" if chosen else f"{whose} kernels one by one", why)
    recompute, why = decide_recompute(config, device)
    config = _with(config, gradient_checkpointing=_switch(recompute))
    if device.type == "cuda":
        at_once, reason = decide_launches(config, device)
        yield Decision("launches", "a micro-batch as one CUDA graph" if at_once else "kernel by kernel", reason)
    yield Decision("activations", "recomputed in the backward pass" if recompute else "saved", why)
    yield Decision("loss", "from the stream, a few rows of logits at a time", "the logits are never stored whole")
    own = config.update.optimizer == "adamw" and device.type == "cpu" and is_here()
    whose = "limpid's own kernel" if own else "PyTorch's own"
    yield Decision("update", "fused: one pass over all parameters", f"{whose}, several times the speed of a loop")


def decide_compile(config: TrainConfig, device: torch.device) -> tuple[bool, str]:
    """Whether blocks are compiled, and why."""
    if config.run.compile == "off":
        return False, "compile is off"
    if config.model.drops:
        return False, "dropout's masks are drawn in PyTorch's order, so that a step can be redone"
    if config.model.base_precision != "fp32":
        return False, f"matrices held in {config.model.base_precision} are widened one by one, outside of fused passes"
    if not _compiler(device):
        return False, f"torch.compile finds no {'Triton' if device.type == 'cuda' else 'C++ compiler (g++)'} here"
    if config.run.compile == "on":
        return True, "compile is on"
    seconds = config.run.max_steps * estimated_step_seconds(config, device)
    fused = has_kernels(device.type, FORMATS[config.run.precision])
    saved = (COMPILED_SHARE_BESIDE_KERNELS if fused else COMPILED_SHARE) * seconds
    once = f"compiling, {COMPILE_SECONDS:.0f} s once, would save about {_duration(saved)}"
    return saved > 2 * COMPILE_SECONDS, f"the run takes about {_duration(seconds)}: {once}"


def decide_recompute(config: TrainConfig, device: torch.device) -> tuple[bool, str]:
    """Whether blocks recompute their activations in the backward pass, and why."""
    if config.run.gradient_checkpointing != "auto":
        return (
            config.run.gradient_checkpointing == "on",
            f"gradient_checkpointing is {config.run.gradient_checkpointing}",
        )
    needed, usable = engine_memory.total_bytes(config, device.type == "cpu"), MEMORY_SHARE * available_bytes(device)
    said = f"training holds {needed / 1e9:.2f} GB at its worst moment; {usable / 1e9:.1f} GB may be used"
    return needed > usable, said


def decide_launches(config: TrainConfig, device: torch.device, processes: int = 1) -> tuple[bool, str]:
    """Whether the passes of a micro-batch are recorded and launched as a whole, and why."""
    if device.type != "cuda":
        return False, "a processor runs what it calls"
    if processes > 1:
        return False, f"{processes} processes exchange parts and gradients while they are made"
    if config.tune is not None:
        return False, "answers differ in length, and a graph has fixed shapes"
    if config.model.drops:
        return False, "dropout's masks are drawn from a seed of each micro-batch, and a graph has fixed numbers"
    twice, usable = 2 * engine_memory.total_bytes(config, on_processor=False), MEMORY_SHARE * available_bytes(device)
    if twice > usable:
        return (
            False,
            f"steps that are looked into would need {twice / 1e9:.2f} GB beside it; {usable / 1e9:.1f} GB may be used",
        )
    return True, "rows of one length: small kernels take less time than to launch them one by one"


def available_bytes(device: torch.device) -> int:
    """Memory that a run could take now: the device's, or the machine's without what other programs hold."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()


def estimated_step_seconds(config: TrainConfig, device: torch.device) -> float:
    """Estimate of an uncompiled step: its matrix products at `ASSUMED_UTILISATION` of this device's peak."""
    tokens = config.run.batch_size * config.run.gradient_accumulation_steps * config.model.context_length
    flops = 3 * tokens * flops_per_token(config.model, config.model.context_length)
    return flops / (ASSUMED_UTILISATION * measured_peak(FORMATS[config.run.precision], device))


def peak_here(precision: str | None, config: TrainConfig | None, device: torch.device) -> float:
    """FLOP/s of matrix products on this machine, measured, in the precision asked for or the configuration's."""
    name = precision or ("fp32" if config is None else config.run.precision)
    return measured_peak(FORMATS["bf16" if name == "bf16_pure" else name], device)


def _precision(asked: TrainConfig, config: TrainConfig, device: torch.device) -> Decision:
    rates = {name: measured_peak(FORMATS[name], device) / 1e9 for name in dict.fromkeys(("fp32", config.run.precision))}
    measured = ", ".join(f"{name} {rate:,.0f} GFLOP/s" for name, rate in rates.items())
    because = "as asked; " if asked.run.precision != "auto" else ""
    return Decision("precision", config.run.precision, f"{because}matrix products measured here: {measured}")


def _attention(config: TrainConfig, device: torch.device) -> Decision:
    positions = config.model.context_length
    if serves(device.type, FORMATS[config.run.precision], config.model.sizes.d_head):
        return Decision("attention", "limpid's own kernel", "in tiles of the lower triangle; keeps no weights")
    quicker = materialised_positions(FORMATS[config.run.precision].itemsize) if device.type == "cpu" else 0
    if positions <= quicker:
        return Decision("attention", "two batched products", f"quicker than the fused kernel up to {quicker} positions")
    by_size = f"{positions:,} positions: its memory grows with them, not squared"
    why = by_size if quicker or device.type != "cpu" else "quicker than two batched products here, and keeps no weights"
    return Decision("attention", "PyTorch's fused kernel", why)


def _compiler(device: torch.device) -> bool:
    """Whether torch.compile can make code for this machine's device."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return has_triton()
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _switch(chosen: bool) -> Switch:
    return "on" if chosen else "off"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _with(config: TrainConfig, **options: object) -> TrainConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **options))  # type: ignore[arg-type]
