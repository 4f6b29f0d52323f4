"""Whether a run can fit this machine at all, asked before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from limpid.config import TrainConfig
from limpid.errors import ConfigError
from limpid.machine import total_memory
from limpid.planning import engine_memory, parameter_count
from limpid.planning.figure import shown
from limpid.quantities import MOMENTS

SMALLEST_VOCABULARY = 257
"""Tokens of the smallest tokenizer: 256 bytes and the end of text."""


def require_fits(config: TrainConfig, device: torch.device) -> None:
    """Raise ConfigError when training takes more memory than the device has, and say which one change would fit.

    What is still open counts as the least that it can become: so nothing is refused that could work.
    """
    least = _least(config)
    limit = _total(device)
    needed = _needed(least, limit, device)
    if needed > limit:
        raise _refused(least, needed, limit, device)


def require_states_fit(config: TrainConfig, device: torch.device) -> None:
    """The same of weights and moments alone, which takes no time to count."""
    least, limit = _least(config), _total(device)
    if _states(least) > limit:
        raise _refused(least, _states(least), limit, device)


def _refused(least: TrainConfig, needed: float, limit: int, device: torch.device) -> ConfigError:
    options = "; ".join(_what_fits(least, limit, device))
    way_out = f"{options} would fit" if options else "no single option is enough, so make several smaller"
    return ConfigError(
        f"training this takes {shown(needed, 'bytes')} of memory at least, and there are {shown(limit, 'bytes')} here: "
        f"{way_out} (`limpid plan` says where it goes)"
    )


def _least(config: TrainConfig) -> TrainConfig:
    """The same with everything that is open at its smallest."""
    precision = "bf16" if config.run.precision == "auto" else config.run.precision
    recomputed = "on" if config.run.gradient_checkpointing == "auto" else config.run.gradient_checkpointing
    vocabulary = config.model.vocab_size or config.data.tokenizer_vocab_size or SMALLEST_VOCABULARY
    return replace(
        config,
        model=replace(config.model, vocab_size=vocabulary),
        run=replace(config.run, precision=precision, gradient_checkpointing=recomputed),
    )


def _states(config: TrainConfig) -> float:
    """Bytes of weights and moments."""
    wide = 8 if config.run.precision == "fp64" else 4
    if config.model.lora_rank:  # moments of factors are few
        return engine_memory.weight_bytes(config)
    moments = len(MOMENTS["adamw" if config.update.optimizer == "muon" else config.update.optimizer])
    averages = int(config.update.ema_decay > 0)
    return float(parameter_count(config.model) * wide * (1 + moments + averages))


def _needed(config: TrainConfig, limit: int, device: torch.device) -> float:
    """Bytes at the peak of a step; where weights and moments alone are more than the limit, these."""
    states = _states(config)
    return states if states > limit else _peak(config, device.type == "cpu")


def _peak(config: TrainConfig, on_processor: bool) -> float:
    """Bytes at the peak of a step, counted for few blocks: each further one adds as much as the last of them."""
    few = 3
    if config.model.num_layers <= few:
        return engine_memory.total_bytes(config, on_processor)
    less, more = (
        engine_memory.total_bytes(
            replace(config, model=replace(config.model, num_layers=layers, windowed_blocks=None)), on_processor
        )
        for layers in (few - 1, few)
    )
    return more + (config.model.num_layers - few) * (more - less)


def _what_fits(config: TrainConfig, limit: int, device: torch.device) -> Iterator[str]:
    """The largest value of each option that would be enough by itself."""
    units = {"context_length": 1, "num_layers": 1, "vocab_size": 1, "d_model": 2 * config.model.num_heads}
    if config.model.d_head is not None:  # pairs of features rotate together
        units |= {"d_model": 2, "d_head": 2}
    if config.model.d_ff is not None:
        units["d_ff"] = 1
    options = ("run", "batch_size", 1), *(("model", name, unit) for name, unit in units.items())
    for section, name, unit in options:
        now = getattr(getattr(config, section), name)

        def fits(units: int, section: str = section, name: str = name, unit: int = unit) -> bool:
            changed: Any = replace(getattr(config, section), **{name: units * unit, **OPEN.get(name, {})})
            return _needed(replace(config, **{section: changed}), limit, device) <= limit

        low, high = 0, now // unit
        while low + 1 < high:  # `low` fits or is nothing, `high` does not
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        if low:
            yield f"--{name.replace('_', '-')} {low * unit}"


OPEN: dict[str, dict[str, Any]] = {"num_layers": {"windowed_blocks": None}}
"""What cannot stay as it is when an option becomes smaller."""


def _total(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return total_memory()
