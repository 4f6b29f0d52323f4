"""The file of a step: the one that was recorded, or recorded now. PyTorch is imported where a step has to be taken."""

from __future__ import annotations

import math
import os
from pathlib import Path
from zlib import crc32

from limpid.config import TrainConfig
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.garbage import unsearched
from limpid.machine import available_memory
from limpid.quantities import quantities
from limpid.reporter import Report
from limpid.run import RUNS, Run
from limpid.source import (
    RECORDING,
    Adapted,
    Checkpoint,
    Model,
    ModelFolder,
    RecordedStep,
    find_model,
    find_step,
    is_recorded_step,
    namesake,
    open_source,
)
from limpid.terminal import command
from limpid.training.allocator import take_beside


def recorded(
    what: str | Path | Run,
    step: int | None = None,
    text: str | None = None,
    output: str | Path | None = None,
    progress: Report | None = None,
) -> tuple[Path, bool]:
    """The file of the step asked for, and whether it was recorded now, because it was not before."""
    source = open_source(what)
    if isinstance(source, RecordedStep):
        given = {"--step": step is not None, "--text": text is not None, "--output": output is not None}
        for option, is_given in given.items():
            if is_given:
                raise ConfigError(f"{what} is one recorded step: leave out {option}")
        return source.path, False
    if text is not None:
        if step is not None:
            raise ConfigError("--text takes a step of its own on that text: leave out --step")
        return _of_text(find_model(what), text, None if output is None else user_path(output)), True
    if isinstance(source, ModelFolder | Adapted):
        way = command("limpid", "trace", what, "--text", "To be or not")
        raise ConfigError(
            f"{what} is a model, which has taken no steps: `{way}` takes one and names its file"
            f"{f'; {there}' if (there := namesake(str(what))) else ''}"
        )
    begun = source.step if isinstance(source, Checkpoint) and step not in (None, source.step) else None
    run, step = find_step(what, step)
    number = run.read_config().run.max_steps if step is None else step
    if step is None:
        steps = run.checkpoint_steps()
        number = min(number, steps[-1]) if steps and steps[-1] else number
    place = run.recorded_step(number) if output is None else user_path(output)
    if output is None and number >= 1 and place.is_file():
        return place, False
    require_new_or_recorded(place)
    if not os.access(run.path, os.W_OK) and output is None:
        way = command("limpid", "trace", what, "--step", number, "--output", "FILE.safetensors")
        raise ConfigError(f"{run.path} cannot be written to, so that its step {number} has no place: `{way}`")
    take_beside(_memory(run.read_config()))
    with unsearched():
        from limpid.training.replay import record_past

    return record_past(run, number, progress, at=begun, file=place), True


def _memory(config: TrainConfig) -> int:
    """Bytes that a step takes while it is recorded and redone: twice its quantities in float64, and at most 1 GB."""
    model, rows = config.model, config.run.batch_size * config.run.gradient_accumulation_steps
    sizes = {
        "batch": rows, "d_model": model.d_model, "head": model.num_heads, "kv_head": model.sizes.num_kv_heads,
        "d_head": model.sizes.d_head, "d_ff": model.sizes.d_ff, "vocab": model.vocab_size,
        **dict.fromkeys(("position", "query", "key"), model.context_length),
    }  # fmt: skip
    entries = sum(math.prod(sizes.get(axis, 1) for axis in one.axes) for one in quantities(model))
    return min(2 * 8 * entries, 1 << 30, available_memory() // 4)


def require_new_or_recorded(file: Path) -> None:
    """Raise ConfigError rather than replace a file that is no recorded step, or write one that no reader takes."""
    if file.suffix != RECORDING:
        raise ConfigError(f"--output {file}: a recorded step ends in {RECORDING}")
    if file.exists() and not is_recorded_step(file):
        raise ConfigError(f"{file} exists and is no recorded step: choose another --output")


def _of_text(source: Model, text: str, file: Path | None) -> Path:
    """The file of a model's first update on one text; models of one name lie in different folders."""
    if file is None:
        folder = crc32(str(Path(str(source)).resolve()).encode())
        file = RUNS / f"{source.name.replace('/', '--')}-{folder:08x}-step.safetensors"
    require_new_or_recorded(file)
    from limpid.training.replay import record_text

    return record_text(source, text, file)
