"""What an experiment tracker is told of a run; one that fails is left out, and training goes on."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from limpid.config import TrainConfig
from limpid.errors import ConfigError
from limpid.files import MALFORMED, one_line, write_atomically
from limpid.metrics import Sample
from limpid.run import Run

NAMES = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "trackio": "trackio"}
"""Words of --report-to, which are also the extras and the packages they need."""
FINISH_SECONDS = 60.0
"""How long a tracker may take to send what is left, before the run ends without it."""


class Tracker(Protocol):
    """Made when a run starts or goes on, with its configuration; `where` says where a user finds it.

    Anything may raise: the run goes on without this tracker then.
    """

    where: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a training step (train/…) or of an evaluation after it (val/…)."""

    def sample(self, sample: Sample) -> None:
        """What the model made of a prompt."""

    def finish(self) -> None:
        """Nothing comes any more in this process."""


class Trackers:
    """All that a run reports to, each for as long as it works."""

    def __init__(self, run: Run, config: TrainConfig, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: dict[str, Tracker] = {}
        for name in config.run.report_to:
            self._try(name, partial(self._start, name, run, config))

    def _start(self, name: str, run: Run, config: TrainConfig) -> None:
        module = import_module(f"limpid.training.trackers.{name}")
        tracker: Tracker = module.start(run, config, identity(run))
        self._told[name] = tracker
        self._say(f"reporting to {NAMES[name]}: {tracker.where}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Tell every tracker of metrics, by the names of `tracked`."""
        for name, tracker in list(self._told.items()):
            self._try(name, partial(tracker.log, step, values))

    def sample(self, sample: Sample) -> None:
        """Tell every tracker of a sample."""
        for name, tracker in list(self._told.items()):
            self._try(name, partial(tracker.sample, sample))

    def finish(self) -> None:
        """Let every tracker send what is left, for as long as `FINISH_SECONDS`."""
        for name, tracker in list(self._told.items()):
            sending = threading.Thread(target=self._try, args=(name, tracker.finish), daemon=True)
            sending.start()
            sending.join(FINISH_SECONDS)
            if sending.is_alive():
                self._say(
                    f"{NAMES[name]} has not taken everything within {FINISH_SECONDS:.0f} s; what is left lies in "
                    f"{tracker.where}"
                )
        self._told = {}

    def _try(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever a tracker, a network or a disk does: training is worth more
            self._told.pop(name, None)
            said = one_line(error) or type(error).__name__
            self._say(f"{NAMES[name]} failed ({said}); training goes on without it, and metrics.jsonl has everything")


def require_installed(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker whose package is not there."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name, as a tracker leaves one, is no package
            raise ConfigError(
                f"report_to {name} needs an extra: pip install 'limpid[{name}]', or leave {name} out of report_to"
            )


def identity(run: Run) -> str:
    """What the run is called where runs of many folders meet; kept in its folder, so that a resumed run is the same."""
    file = run.path / "trackers.json"
    try:
        return str(json.loads(file.read_bytes())["id"])
    except (OSError, *MALFORMED):
        made = secrets.token_hex(4)
        write_atomically(file, json.dumps({"id": made}).encode() + b"\n")
        return made
