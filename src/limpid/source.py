"""What a user can name: a run, a checkpoint, a model folder or its name on the hub, an adapter, a recorded step.

They are told apart in this file alone.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from limpid import hub
from limpid.config import ModelConfig
from limpid.errors import CheckpointError
from limpid.files import parse_json, user_path
from limpid.run import AVERAGE, RUNS, is_number
from limpid.run import Run as Run

SHOWN = 5
"""Names that an error lists at most."""
MOST_DIGITS = 18
"""Of a step's number, more than any run takes."""
RECORDING = ".safetensors"
"""Ending of a recorded step's file."""
ADAPTER = "adapter_config.json"
"""File that makes a folder an adapter."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step; `averaged` stands for the moving average of its weights."""

    run: Run
    step: int
    averaged: bool = False

    def __str__(self) -> str:
        return f"{self.run.path}@{self.step}{'@ema' if self.averaged else ''}"

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return f"{self.name} after step {self.step:,}{', averaged' if self.averaged else ''}"

    @property
    def path(self) -> Path:
        return self.run.checkpoint(self.step)

    @property
    def tokenizer_file(self) -> Path:
        return self.run.tokenizer_file

    def read_model_config(self) -> ModelConfig:
        """Sizes and mathematics of the model."""
        return self.run.read_config().model


@dataclass(frozen=True)
class ModelFolder:
    """A model as Hugging Face keeps it: config.json, safetensors, tokenizer.json."""

    path: Path
    on_hub: str | None = None
    """The name on the hub, where the folder lies in its cache."""

    def __str__(self) -> str:
        return self.on_hub or str(self.path)

    @property
    def name(self) -> str:
        return self.on_hub or self.path.resolve().name

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return self.name

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"


@dataclass(frozen=True)
class Adapted:
    """A model with an adapter added to its weights, a folder as peft writes it."""

    base: Checkpoint | ModelFolder
    path: Path

    def __str__(self) -> str:
        return f"{self.base}+{self.path}"

    @property
    def name(self) -> str:
        return f"{self.base.name}+{self.path.resolve().name}"

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return f"{self.base.title} with {self.path.resolve().name}"

    @property
    def tokenizer_file(self) -> Path:
        """The adapter's own where it brings one."""
        own = self.path / "tokenizer.json"
        return own if own.is_file() else self.base.tokenizer_file


@dataclass(frozen=True)
class RecordedStep:
    """One step as it was recorded: a file by itself."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def run(self) -> Run | None:
        """The run that took it, where it lies in that run's steps/ under its number."""
        folder = self.path.resolve().parent.parent
        within = is_number(self.path.stem) and self.path.resolve().parent.name == "steps"
        return Run(folder) if within and (folder / "config.toml").is_file() else None


Source = Run | Checkpoint | ModelFolder | Adapted | RecordedStep
Model = Checkpoint | ModelFolder | Adapted
"""What has weights."""
KINDS: dict[type[Source], str] = {
    Run: "a run",
    Checkpoint: "a checkpoint of a run",
    ModelFolder: "a Hugging Face folder",
    Adapted: "an adapted model",
    RecordedStep: "a recorded step",
}


def open_source(what: str | Path | Source) -> Source:
    """What a path or name stands for: `last`, NAME under runs/, NAME@STEP or @best, a folder, a recorded step's file,
    ORG/NAME or ORG/NAME@REVISION on the hub, an adapter's folder, or MODEL+ADAPTER.

    @ema after a run or checkpoint stands for the moving average of its weights.
    Nothing is read but names, and of an adapter its base. A path comes before a name under runs/, a run before a model
    in the same folder, and all of them before the hub, whose cache comes before the network.
    What is one of these already stands for itself.

    Raises  CheckpointError that says what there is instead, when it is none of these
    """
    source = find_source(what)
    if isinstance(source, ModelFolder) and source.on_hub is not None and hub.lacks_weights(source.path):
        source = None
    if source is None and isinstance(what, str) and (name := _name_on_hub(what)) is not None:
        source = _recognised(hub.fetch(name), name)
    if source is None:
        raise _nothing(user_path(str(what)))
    return source


def find_source(what: str | Path | Source) -> Source | None:
    """The same, but None for what is none of these: where other names are possible. Nothing is fetched."""
    if not isinstance(what, str | Path):
        return what
    if str(what) == "last":
        return last_run()
    path = user_path(what)
    for place in (path, RUNS / path):
        source = _recognised(place)
        if source is not None:
            return source
    if path.exists() or isinstance(what, Path):
        return None
    if (folder := hub.cached(what)) is not None:
        return _recognised(folder, what)
    model, plus, adapter = what.rpartition("+")
    if plus and (given := _adapter_folder(adapter)) is not None:
        return _adapted(model, given)
    name, at, step = what.rpartition("@")
    if at and _name_on_hub(what) is None:
        return _average(name) if step == "ema" else _checkpoint(find_run(name), step)
    return None


def find_run(what: str | Path | Source) -> Run:
    """The run that a path or name stands for; `last` is the one that was written to most recently.

    Raises  CheckpointError naming what there is instead
    """
    source = open_source(what)
    if isinstance(source, Checkpoint):
        raise CheckpointError(f"{what} is one checkpoint, expected a whole run: leave out @{source.step}")
    if not isinstance(source, Run):
        raise CheckpointError(f"{what} is {KINDS[type(source)]}, expected a run; {_runs_here()}")
    return source


def find_checkpoint(what: str | Path | Source) -> tuple[Run, int | None]:
    """The run that a path or name stands for, and the step of the checkpoint that it names; None is the newest one.

    Raises  CheckpointError naming what there is instead
    """
    source = open_source(what)
    if not isinstance(source, Checkpoint):
        return find_run(what), None
    _require_stepped(source)
    return source.run, source.step


def find_model(what: str | Path | Source) -> Model:
    """The weights that a path or name stands for; those of a run at its newest checkpoint.

    Raises  CheckpointError naming what there is instead
    """
    source = open_source(what)
    if isinstance(source, Run):
        return Checkpoint(source, source.latest_checkpoint())
    if isinstance(source, RecordedStep):
        raise CheckpointError(f"{what} is a recorded step, expected a run or a Hugging Face folder; {_runs_here()}")
    return source


def find_step(what: str | Path | Source, step: int | None = None) -> tuple[Run, int | None]:
    """The run and step that `what` and `step` name together; no step is the last one, or the checkpoint's.

    Raises  CheckpointError when it is no step of a run, or the step is named twice
    """
    source = open_source(what)
    if isinstance(source, RecordedStep):
        if source.run is None:
            raise CheckpointError(f"{what} lies in no run's steps/, so its text is not known: give the run and --step")
        source = Checkpoint(source.run, int(source.path.stem))
    if isinstance(source, ModelFolder | Adapted):
        raise CheckpointError(f"{what} is {KINDS[type(source)]}, which has taken no steps: give a run; {_runs_here()}")
    if isinstance(source, Run):
        return source, step
    _require_stepped(source)
    if step is not None and step < source.step:
        raise CheckpointError(f"{what} lies after step {step}: name a checkpoint before it, or the run alone")
    return source.run, source.step if step is None else step


def is_recorded_step(file: Path) -> bool:
    """Whether the header of a file says that limpid recorded a step in it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as tensors:
            return "limpid" in (tensors.metadata() or {})
    except (OSError, SafetensorError):
        return False


def last_run() -> Run:
    """The run that was written to most recently."""
    runs = sorted(known_runs(), key=Run.last_written)
    if not runs:
        raise CheckpointError(f"there is no run under {RUNS}/ yet: start one with `limpid train`")
    return runs[-1]


def known_runs(folder: Path = RUNS) -> list[Run]:
    """Every run in a folder, by name."""
    return [Run(file.parent) for file in sorted(folder.glob("*/config.toml"))]


def _recognised(place: Path, on_hub: str | None = None) -> Source | None:
    if place.is_file():
        return RecordedStep(place) if place.suffix == RECORDING else None
    if (place / "config.toml").is_file():
        return Run(place)
    if (place / "config.json").is_file():
        return ModelFolder(place, on_hub)
    if (place / ADAPTER).is_file():
        return _adapted(None, place)
    run = place.parent.parent
    if place.parent.name == "checkpoints" and is_number(place.name) and (run / "config.toml").is_file():
        return _checkpoint(Run(run), place.name)
    return None


def _name_on_hub(what: str) -> str | None:
    """ORG/NAME, where this is no path below a folder that is here."""
    first = what.partition("/")[0]
    known = hub.is_name(what) and not Path(first).exists() and first not in (str(RUNS), ".", "..")
    return what if known and not what.endswith(RECORDING) else None


def _adapter_folder(what: str) -> Path | None:
    """The folder of an adapter, or of its name on the hub."""
    places = [user_path(what), hub.cached(what)] if what else []
    return next((place for place in places if place is not None and (place / ADAPTER).is_file()), None)


def _adapted(model: str | None, folder: Path) -> Adapted:
    """An adapter on a model: the one that is named, else the one that its own configuration names.

    Raises  CheckpointError where there is no such model
    """
    if model is not None:
        base: Source | None = open_source(model)
    else:
        model = _base_of(folder)
        beside = folder / model
        base = find_source(model) or (_recognised(beside) if beside.exists() else None)
        if base is None and _name_on_hub(model) is not None:
            base = open_source(model)
    if isinstance(base, Run):
        base = Checkpoint(base, base.latest_checkpoint())
    if not isinstance(base, Checkpoint | ModelFolder):
        raise CheckpointError(f"{folder} adapts {model}, which is not here: give its model too, as in MODEL+{folder}")
    return Adapted(base, folder)


def _base_of(folder: Path) -> str:
    """The model that an adapter's configuration names."""
    file = folder / ADAPTER
    try:
        base = parse_json(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} names no base model: give it, as in MODEL+{folder}") from error
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{file} names no base model: give it, as in MODEL+{folder}")
    return base


def _checkpoint(run: Run, step: str) -> Checkpoint:
    if step == "best":
        return Checkpoint(run, run.best_checkpoint())
    if not is_number(step) or len(step) > MOST_DIGITS:
        raise CheckpointError(
            f"{run.path}@{step} names no step: expected a number, best or ema after @, as in {run.path}@400"
        )
    steps = run.checkpoint_steps()
    if int(step) not in steps:
        nearest = sorted(sorted(steps, key=lambda there: abs(there - int(step)))[:SHOWN])
        there = f"there are those after {_listed(nearest, len(steps))}" if steps else "it holds none yet"
        raise CheckpointError(f"{run.path} holds no checkpoint after step {step}: {there}")
    return Checkpoint(run, int(step))


def _average(name: str) -> Checkpoint:
    """The moving average of the weights of a run's newest checkpoint, or of the checkpoint that is named."""
    source = find_model(name)
    if not isinstance(source, Checkpoint) or not (source.path / AVERAGE).is_file():
        raise CheckpointError(f"{source} holds no average of the weights: train with --ema-decay 0.999 to keep one")
    return replace(source, averaged=True)


def _require_stepped(source: Checkpoint) -> None:
    if source.averaged:
        raise CheckpointError(f"{source} is an average, from which no step was taken: leave out @ema")


def _nothing(path: Path) -> CheckpointError:
    """The error for a path or name that stands for nothing."""
    if path.suffix == RECORDING:
        return CheckpointError(f"cannot open the recorded step {path}: there is no such file{_near(path)}")
    if path.is_file():
        return CheckpointError(
            f"{path} is no recorded step, which ends in {RECORDING}: expected a run, a Hugging Face folder or a "
            "recorded step"
        )
    if not path.is_dir():
        return CheckpointError(
            f"{path} is not a run folder (no config.toml in it or in {RUNS / path}), nor a Hugging Face folder or "
            f"recorded step{_near(path)}; {_runs_here()}"
        )
    if within := known_runs(path):
        names = _listed([str(run.path) for run in within[:SHOWN]], len(within))
        return CheckpointError(f"{path} is a folder of runs, expected one of them: {names}")
    if recorded := sorted(path.glob(f"*{RECORDING}")):
        names = _listed([str(file) for file in recorded[:SHOWN]], len(recorded))
        return CheckpointError(f"{path} is neither a run nor a Hugging Face folder; it holds {names}: name the file")
    return CheckpointError(
        f"{path} is not a run folder (no config.toml in it), nor a Hugging Face folder (no config.json); {_runs_here()}"
    )


def _runs_here() -> str:
    runs = [run.path.name for run in known_runs()]
    return (
        f"runs here: {_listed(runs[:SHOWN], len(runs))}"
        if runs
        else ("there are no runs here yet: start one with `limpid train`")
    )


def _near(path: Path) -> str:
    """; did you mean …? when something beside `path`, or a run, has nearly this name."""
    beside = {entry.name: str(entry) for entry in path.parent.iterdir()} if path.parent.is_dir() else {}
    names = beside | {run.path.name: run.path.name for run in known_runs()}
    close = difflib.get_close_matches(path.name, names, 1)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _listed(names: list[str] | list[int], count: int) -> str:
    return ", ".join(map(str, names)) + (", …" if count > len(names) else "")
