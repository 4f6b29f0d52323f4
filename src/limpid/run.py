"""The run folder: where everything lies, and what it says of itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.config import TrainConfig
from limpid.config.files import read_config, read_options, require_as_written, write_config
from limpid.config.options import from_dict
from limpid.errors import CheckpointError, ConfigError
from limpid.files import MALFORMED, explained, is_number
from limpid.html import table, titled
from limpid.manifest import MANIFEST, damage, damage_within
from limpid.metrics import Metrics, Sample
from limpid.notebook import mimebundle
from limpid.terminal import command

RUNS = Path("runs")
CHECKPOINT_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Checkpoints of version 1 have no manifest."""
AVERAGE = "ema.safetensors"
"""A checkpoint's moving average of the weights, where the run keeps one."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
"""A run's tokenizer, and how it begins, ends and converses where that is not its own; manifest.json hashes them."""
STARTING = ".limpid-starting"
"""Marks a folder that limpid made for a run whose configuration is not written yet. Without it nothing is removed."""


@dataclass(frozen=True, repr=False)
class Run:
    """One run's folder.

    config.toml  tokenizer.json  manifest.json  metrics.jsonl  micro_batches.jsonl  samples.jsonl  findings.jsonl
    checkpoints/000500/   model.safetensors  optimizer.safetensors  ema.safetensors  state.json  config.toml
                          manifest.json
    model/                the final model as Hugging Face expects it
    steps/000500.safetensors   a recorded step
    variants/             what the page compared of its checkpoints, the last four times
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        """The folder, and how far it came."""
        steps = self.read_metrics().steps
        came = f", {steps[-1]['step']:,} steps, loss {float(steps[-1]['loss']):.4g}" if steps else ""
        return f"Run({str(self.path)!r}{came})"

    def _repr_html_(self) -> str:
        metrics = self.read_metrics()
        rows: list[tuple[str, Any]] = [("folder", self.path)]
        if metrics.steps:
            rows.append(("steps", f"{metrics.steps[-1]['step']:,}"))
        for title, name in (("loss, nats per token", "loss"), ("validation loss, nats per token", "eval_loss")):
            if name in metrics.names:
                rows.append((title, f"{metrics.column(name)[1][-1]:.4f}"))
        rows.append(("checkpoints after steps", ", ".join(map(str, self.checkpoint_steps()))))
        return titled(f"run {self.path.name}", table(rows), metrics.loss_curve())

    _repr_mimebundle_ = mimebundle

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def micro_batches_file(self) -> Path:
        """A line per micro-batch; older runs call it ledger.jsonl."""
        old = self.path / "ledger.jsonl"
        return old if old.is_file() else self.path / "micro_batches.jsonl"

    @property
    def samples_file(self) -> Path:
        """A line per sample."""
        return self.path / "samples.jsonl"

    @property
    def model_folder(self) -> Path:
        return self.path / "model"

    @property
    def adapter_folder(self) -> Path:
        """Low-rank factors that were trained, as peft keeps them."""
        return self.path / "adapter"

    def checkpoint(self, step: int) -> Path:
        """Folder of the state after `step` updates."""
        return self.path / "checkpoints" / f"{step:06d}"

    def recorded_step(self, step: int) -> Path:
        """File of recorded step `step` (1 is the first update)."""
        return self.path / "steps" / f"{step:06d}.safetensors"

    def checkpoint_steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending. A folder gets its number only once it is whole."""
        folder = self.path / "checkpoints"
        if not folder.is_dir():
            return []
        steps = (int(entry.name) for entry in folder.iterdir() if is_number(entry.name))
        return sorted(step for step in steps if self.checkpoint(step).is_dir())

    def recorded_steps(self) -> list[int]:
        """Steps that are recorded, ascending; any other one is when it is opened."""
        return sorted(int(file.stem) for file in (self.path / "steps").glob("*.safetensors") if is_number(file.stem))

    def latest_checkpoint(self) -> int:
        """Step of the newest complete checkpoint."""
        steps = self.checkpoint_steps()
        if not steps:
            raise CheckpointError(f"{self.path} holds no complete checkpoint yet: let it train past its first one")
        return steps[-1]

    def best_checkpoint(self) -> int:
        """Step of the checkpoint whose evaluation had the lowest loss on the validation split.

        Raises  CheckpointError when no step was both saved and evaluated
        """
        losses = {line["step"]: float(line["eval_loss"]) for line in self.read_metrics().evaluations}
        judged = [step for step in self.checkpoint_steps() if not math.isnan(losses.get(step, math.nan))]
        if not judged:
            raise CheckpointError(
                f"{self.path} has no checkpoint that was evaluated: train with equal --eval-steps and --save-steps"
            )
        return min(judged, key=lambda step: losses[step])

    def read_state(self, step: int) -> dict[str, Any]:
        """state.json of a checkpoint: where it stands, and what it was trained on.

        Raises  CheckpointError: what is wrong with it, and the newest checkpoint that is whole
        """
        try:
            return self._state(step)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {self._instead_of(step)}") from error

    def fingerprint(self) -> str:
        """What the run trains on: equal for equal text, split and tokenizer. Every checkpoint says it."""
        for step in reversed(self.checkpoint_steps()):
            with contextlib.suppress(CheckpointError):
                return str(self._state(step)["data"])
        return str(self.read_state(self.latest_checkpoint())["data"])  # which says what is wrong with it

    def verify(self, step: int, *files: str) -> None:
        """Check files of a checkpoint against its manifest.

        Raises  CheckpointError: what is wrong with one, and the newest checkpoint that is whole
        """
        for name in files:
            with explained(f"cannot read {self.checkpoint(step) / name}"):
                wrong = damage(self.checkpoint(step) / name)
            if wrong is not None:
                raise CheckpointError(f"{wrong}; {self._instead_of(step)}")

    def _state(self, step: int) -> dict[str, Any]:
        folder = self.checkpoint(step)
        file = folder / "state.json"
        with explained(f"cannot read {file}"):
            wrong = damage(file)
        if wrong is not None:
            raise CheckpointError(wrong)
        try:
            state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            version, updates = state["version"], state["updates"]
            kinds = (updates, int), (state["data"], str), (state["scaler"], dict)
            right = all(isinstance(value, kind) for value, kind in kinds)
            right = right and state["step"] == step and 0 <= updates <= step
        except (OSError, *MALFORMED):
            version, right = CHECKPOINT_VERSION, False
        if version not in READABLE_VERSIONS:
            readable = " and ".join(map(str, READABLE_VERSIONS))
            raise CheckpointError(f"{folder} has format version {version!r}; this limpid reads {readable}")
        if not right:
            raise CheckpointError(f"{file} is cut short or no record of step {step}")
        if version > 1 and not (folder / MANIFEST).is_file():
            raise CheckpointError(f"{folder / MANIFEST} is missing")
        return state

    def _instead_of(self, step: int) -> str:
        """What to use in place of a checkpoint that cannot be used."""
        earlier = self.whole_before(step)
        if earlier is not None:
            return f"use the newest one that is whole: {self.path}@{earlier}"
        later = next((other for other in self.checkpoint_steps() if other > step and self._is_whole(other)), None)
        if later is not None:
            return f"use the first one after it that is whole: {self.path}@{later}"
        return (
            f"{self.path} holds no other checkpoint that is whole: delete it (limpid runs --delete), and train it again"
        )

    def whole_before(self, step: int) -> int | None:
        """The newest checkpoint before that of `step` that can be used."""
        earlier = (other for other in reversed(self.checkpoint_steps()) if other < step)
        return next((other for other in earlier if self._is_whole(other)), None)

    def _is_whole(self, step: int) -> bool:
        folder = self.checkpoint(step)
        try:
            self._state(step)
            return (folder / "model.safetensors").is_file() and damage_within(folder) is None
        except (CheckpointError, OSError):
            return False

    def read_config(self) -> TrainConfig:
        """The configuration that the run trains with, all choices resolved.

        Raises  CheckpointError when it leaves open what a run has decided: it was emptied, or is no run's
        """
        with self._naming_a_copy():
            require_as_written(self.config_file)
            config = read_config(self.config_file)
            if not config.model.vocab_size or config.run.precision == "auto":
                raise CheckpointError(
                    f"{self.config_file} does not say the run's vocab_size and precision: it was cut short or "
                    "replaced; bring the run's own back"
                )
            return config

    def read_asked(self) -> TrainConfig:
        """The configuration that was asked for, with what was left open still open."""
        with self._naming_a_copy():
            require_as_written(self.config_file)
            return from_dict(TrainConfig, read_options(self.config_file))

    def copy_config(self, folder: Path) -> None:
        """Put a copy of the configuration into a checkpoint's folder, where the run has one."""
        if self.config_file.is_file():
            shutil.copyfile(self.config_file, folder / self.config_file.name)

    @contextlib.contextmanager
    def _naming_a_copy(self) -> Iterator[None]:
        """Let an error of the configuration name the command that brings back the newest copy that is whole."""
        try:
            yield
        except (ConfigError, CheckpointError) as error:
            copies = (self.checkpoint(step) / self.config_file.name for step in reversed(self.checkpoint_steps()))
            copy = next(filter(_is_whole_config, copies), None)
            if copy is None:
                raise
            raise type(error)(f"{error}; `{command('cp', copy, self.config_file)}` brings back a copy") from error

    def last_written(self) -> float:
        """When it was last written to, in seconds since 1970: every step adds to its metrics."""
        files = [file for file in (self.config_file, self.metrics_file) if file.is_file()]
        return max(file.stat().st_mtime for file in files)

    def read_samples(self) -> tuple[Sample, ...]:
        """What the model made of the sample prompts, with the steps after which it did."""
        return Sample.read(self.samples_file)

    def read_metrics(self) -> Metrics:
        """What it measured at every step and evaluation, as arrays."""
        return Metrics.read(self.metrics_file)

    def logged(self, first: int, last: int) -> dict[int, dict[str, Any]]:
        """What metrics.jsonl says of steps `first` … `last`."""
        return {line["step"]: line for line in self.read_metrics().steps if first <= line["step"] <= last}

    def require_there(self) -> None:
        """Raises  CheckpointError when the folder was moved or deleted while it is written."""
        if not self.config_file.is_file():
            raise CheckpointError(
                f"{self.path} is gone: it was moved or deleted while it trained, and nothing can be saved there; "
                "resume it where it lies now, or start again"
            )

    def set_aside_after(self, step: int) -> Path | None:
        """Move what came after `step` out of the way of steps that are taken again; returns where it lies, a run too.

        Raises  CheckpointError when it cannot be moved; what was not is still in place
        """
        later = [self.checkpoint(other) for other in reversed(self.checkpoint_steps()) if other > step]
        later += self._numbered("steps", step)
        if not later:
            return None
        later += self._numbered("batches", step)
        later += [folder for folder in (self.model_folder, self.adapter_folder) if folder.exists()]
        first = f"after-{step:06d}"
        names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
        aside = next(place for name in names if not (place := self.path / name).exists())
        with explained(f"cannot move what came after step {step} to {aside}"):
            aside.mkdir()
            for file in (
                self.metrics_file,
                self.micro_batches_file,
                self.samples_file,
                self.config_file,
                self.tokenizer_file,
            ):
                if file.is_file():
                    shutil.copy2(file, aside / file.name)
            for entry in later:  # the newest first: what is left at any moment is a run
                place = aside / entry.relative_to(self.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                entry.rename(place)
        return aside

    def remove_batches_after(self, step: int) -> None:
        """Remove the stored batches of steps that will be taken in another way than they were drawn for."""
        for file in self._numbered("batches", step):
            file.unlink(missing_ok=True)

    def _numbered(self, folder: str, after: int) -> list[Path]:
        """Files that are called after a later step than this one."""
        numbered = [(file, file.name.split(".")[0]) for file in (self.path / folder).glob("*")]
        return [file for file, number in numbered if is_number(number) and int(number) > after]

    def write_config(self, config: TrainConfig, asked: TrainConfig | None = None) -> None:
        """Keep what the run trains with beside what was asked for, which stays as it is unless it is given.

        The folder is a run from here on.
        """
        write_config(self.config_file, asked or self.read_asked(), config)
        (self.path / STARTING).unlink(missing_ok=True)


def _is_whole_config(copy: Path) -> bool:
    """Whether a checkpoint's copy of the configuration is there, as it was written, of a run's own that was."""
    try:
        require_as_written(copy)
        read_config(copy)
    except ConfigError:
        return False
    return damage(copy) is None
