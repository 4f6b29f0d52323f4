"""How a run stands: how far it came, its losses, size, time and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from limpid.errors import LimpidError
from limpid.history.labels import Labels
from limpid.lock import is_held
from limpid.metrics import Metrics
from limpid.planning import parameter_count
from limpid.run import Run

State = Literal["training", "finished", "stopped", "diverged", "new", "unreadable"]

LOSSES = ("loss", "eval_loss")


@dataclass(frozen=True)
class Summary:
    """A run in one line."""

    run: Run
    state: State
    step: int = 0
    max_steps: int = 0
    loss: float | None = None
    """Of the last step, nats per token."""
    eval_loss: float | None = None
    """Of the last evaluation, nats per token."""
    best_eval_loss: float | None = None
    other_eval_losses: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The last and the best one of further validation sets and of the averaged weights, by what they are of."""
    parameters: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """That its steps took, evaluations and samples not counted."""
    size: int = 0
    """Bytes on the disk."""
    labels: Labels = field(default_factory=Labels)
    problem: str = ""
    """Why it cannot be read."""

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    def document(self) -> dict[str, Any]:
        """The same as plain values."""
        plain = {key: value for key, value in vars(self).items() if key not in ("run", "labels")}
        return {"name": self.name, "path": str(self.run.path)} | plain | vars(self.labels)


def summarise(run: Run) -> Summary:
    """How a run stands; one that cannot be read is told as such, with the reason."""
    size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        config = run.read_config()
    except LimpidError as error:
        return Summary(run, "unreadable", size=size, labels=Labels.of(run), problem=str(error))
    metrics = run.read_metrics()
    last = metrics.steps[-1] if metrics.steps else {}
    losses, judged = (metrics.column(name)[1].tolist() if name in metrics.names else [] for name in LOSSES)
    step = int(last.get("step", 0))
    return Summary(
        run,
        state_of(run, last, config.run.max_steps),
        step,
        config.run.max_steps,
        losses[-1] if losses else None,
        judged[-1] if judged else None,
        min(judged, default=None),
        _others(metrics, config.data.validation_sets or ("",)),
        parameter_count(config.model),
        int(last.get("num_tokens", 0)),
        sum(float(line.get("seconds", 0.0)) for line in metrics.steps),
        size,
        Labels.of(run),
    )


def _others(metrics: Metrics, sets: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Losses of the validation sets after the first, which `eval_loss` is of, and of all with averaged weights."""
    found = {}
    for number, name in enumerate(sets):
        key, of = (f"eval_{name}_", f"of {name}") if number else ("eval_", "")
        for column, average in ((f"{key}loss", ""), (f"{key}ema_loss", "averaged weights")):
            if column != "eval_loss" and column in metrics.names:
                values = metrics.column(column)[1].tolist()
                found[", ".join(filter(None, (of, average)))] = values[-1], min(values)
    return found


def state_of(run: Run, line: Mapping[str, Any], last: int) -> State:
    """How a run stands, of which `line` is the last step's and `last` the number of the step that it is to end with."""
    if is_held(run.path):
        return "training"
    if "step" not in line:
        return "new"
    if line.get("non_finite") and not line.get("updated") and "loss_scale" not in line:
        return "diverged"
    return "finished" if line["step"] >= last else "stopped"
