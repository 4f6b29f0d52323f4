"""What the metadata of a recorded step say, and must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from limpid.config.domain import Count, NotNegative, Whole
from limpid.config.options import Checked, hints
from limpid.errors import CheckpointError, ConfigError
from limpid.files import one_line, parse_json

Format = Literal["fp64", "fp32", "fp16", "bf16"]
VERSION = 1


@dataclass(frozen=True)
class MicroBatchDescribed(Checked):
    """What the metadata say of a micro-batch."""

    rows: tuple[Whole, ...]
    tokens: Whole
    labels: Whole
    loss: str


@dataclass(frozen=True)
class StepDescribed(Checked):
    """What the metadata say of a step that was taken again to come to the recorded one."""

    step: Count
    loss: str
    grad_norm: str
    loss_scale: float
    updated: bool


@dataclass(frozen=True)
class PrecisionDescribed(Checked):
    """Formats of numbers."""

    parameters: Format
    compute: Format


@dataclass(frozen=True, kw_only=True)
class Described(Checked):
    """What the metadata of every record say; docs/record.md says what it is."""

    run: str
    step: Count
    update_number: Count
    updated: bool
    config: Mapping[str, Any]
    objective: Mapping[str, Any] | None = None
    precision: PrecisionDescribed
    learning_rate: NotNegative
    loss_scale: float  # any at all: one that is not finite is the step's fault, and the trace names it
    labels: Whole
    micro_batches: tuple[MicroBatchDescribed, ...]
    token_texts: Mapping[str, str]
    kernels: Mapping[str, Any] | None = None
    replayed: tuple[StepDescribed, ...] = ()


def described(path: Path, text: str | None) -> dict[str, Any]:
    """The metadata of a recorded step at `path`; raises CheckpointError where they are none of this version."""
    if text is None:
        raise CheckpointError(f"{path} is a safetensors file, but not a recorded step: it has no limpid metadata")
    try:
        meta = parse_json(text)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: its limpid metadata is not JSON ({error}): delete it and open the step again"
        ) from error
    if not isinstance(meta, dict):
        raise CheckpointError(
            f"{path}: its limpid metadata is {type(meta).__name__}, expected an object: open the step again"
        )
    if meta.get("version") != VERSION:
        raise CheckpointError(f"{path} has format version {meta.get('version')}; this limpid reads {VERSION}")
    _require_described(path, meta)
    return meta


def _require_described(path: Path, meta: dict[str, Any]) -> None:
    """Raise CheckpointError unless the metadata say of a step what is asked of them."""
    known = hints(Described)
    try:
        Described(**{key: value for key, value in meta.items() if key in known})
    except (ConfigError, TypeError) as error:  # of the wrong type, or missing
        raise CheckpointError(
            f"{path}: its limpid metadata are no description of a step ({one_line(error)}); delete it, and "
            "`limpid trace RUN --step N` records the step again"
        ) from error
