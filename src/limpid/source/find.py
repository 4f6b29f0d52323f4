"""From a path or name to what it stands for; told apart in this file alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from limpid.errors import CheckpointError
from limpid.files import MALFORMED, is_number, parse_json, user_path
from limpid.run import AVERAGE, RUNS, Run
from limpid.source import hub
from limpid.source.kinds import (
    KEPT,
    KINDS,
    RECORDING,
    Adapted,
    Checkpoint,
    KeptRecording,
    Model,
    ModelFolder,
    RecordedStep,
    Source,
)
from limpid.source.runs import SHOWN, last_run, namesake, nothing, runs_here

MOST_DIGITS = 18
"""Of a step's number, more than any run takes."""
ADAPTER = "adapter_config.json"
"""File that makes a folder an adapter."""


def open_source(what: str | Path | Source) -> Source:
    """What a path or name stands for: `last`, NAME under runs/, NAME@STEP or @best, a folder, a recorded step's file,
    ORG/NAME or ORG/NAME@REVISION on the hub, an adapter's folder, MODEL+ADAPTER, or a recording of calls.

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
        _require_adapter(str(what))
        raise nothing(user_path(str(what)))
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
        raise CheckpointError(f"{what} is {KINDS[type(source)]}, expected a run; {namesake(str(what)) or runs_here()}")
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
    if isinstance(source, RecordedStep | KeptRecording):
        kind = KINDS[type(source)]
        raise CheckpointError(f"{what} is {kind}, expected a run or a Hugging Face folder; {runs_here()}")
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
    if isinstance(source, ModelFolder | Adapted | KeptRecording):
        kind, there = KINDS[type(source)], namesake(str(what)) or runs_here()
        raise CheckpointError(f"{what} is {kind}, which has taken no steps: give a run; {there}")
    if isinstance(source, Run):
        return source, step
    _require_stepped(source)
    if step is not None and step < source.step:
        raise CheckpointError(f"{what} lies after step {step}: name a checkpoint before it, or the run alone")
    return source.run, source.step if step is None else step


def _recognised(place: Path, on_hub: str | None = None) -> Source | None:
    if place.is_file():
        return RecordedStep(place) if place.suffix == RECORDING else None
    if (place / "config.toml").is_file():
        return Run(place)
    if (place / "config.json").is_file():
        return ModelFolder(place, on_hub)
    if (place / ADAPTER).is_file():
        return _adapted(None, place)
    if (place / KEPT).is_file():
        return KeptRecording(place)
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


def _require_adapter(what: str) -> None:
    """Raise CheckpointError for MODEL+ADAPTER of which only the model is one."""
    model, plus, adapter = what.rpartition("+")
    if plus and not isinstance(find_source(model), RecordedStep | None):
        why = "no adapter_config.json in it" if user_path(adapter).is_dir() else "there is no such folder"
        raise CheckpointError(f"{what}: {model} is a model, but {adapter} is no adapter: {why}")


def _adapted(model: str | None, folder: Path) -> Adapted:
    """An adapter on a model: the one that is named, else the one that its own configuration names.

    Raises  CheckpointError where there is no such model
    """
    if model is not None:
        try:
            base: Source | None = open_source(model)
        except CheckpointError as error:
            raise CheckpointError(f"{model}+{folder}: {folder} is an adapter, but of the model: {error}") from error
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
    except (OSError, *MALFORMED) as error:
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
        which = "there are those" if len(nearest) == len(steps) else f"the nearest of {len(steps)} are those"
        there = f"{which} after {', '.join(map(str, nearest))}" if steps else "it holds none yet"
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
