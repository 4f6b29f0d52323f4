"""One entry, or the size of one array, over the recorded steps of a run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from limpid.errors import LimpidError
from limpid.tracing import Trace
from limpid.tracing.names import AROUND, bare
from limpid.tracing.summary import norm
from limpid.view.answers import Refused
from limpid.view.documents.step import OverSteps, StepPoint
from limpid.view.folder import NotThere
from limpid.view.slices import Asked, parsed
from limpid.view.steps import Steps

What = Literal["entry", "norm"]
AT_ONCE = 0.8
"""Seconds of one answer: what is left is asked for again."""
HELD = 50_000
"""Numbers that are held, so that a step is read once."""


@dataclass
class OverTime:
    """Numbers of a run's recorded steps."""

    steps: Steps
    _held: dict[str, float | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, run: str, entry: str, what: str) -> OverSteps:
        """An entry NAME[i, j], or the norm of NAME, in every recorded step that has it, as far as time allows.

        Raises  Refused for what is neither
        """
        if what not in get_args(What):
            raise Refused(f"what is {what[:40]!r}: choose one of {', '.join(get_args(What))}")
        asked = parsed(entry)
        key = entry if what == "entry" else asked.name
        until, points, left = time.monotonic() + AT_ONCE, list[StepPoint](), 0
        for step in self._recorded(run):
            try:
                held = f"{run}/{step} {self.steps.stamp(run, step)} {what} {key}"
            except LimpidError:  # it was deleted meanwhile
                continue
            if held not in self._held:
                if points and time.monotonic() > until:
                    left += 1
                    continue
                self._hold(held, self._read(run, step, asked, what))
            value = self._held[held]
            if value is not None:
                points.append(StepPoint(step, value))
        return OverSteps(run, key, what == "norm", tuple(points), left)

    def _recorded(self, run: str) -> list[int]:
        """The recorded steps of a run; of a step that lies in no run, none."""
        try:
            return self.steps.runs.folder.run(run).recorded_steps()
        except NotThere:
            return []

    def _hold(self, key: str, value: float | None) -> None:
        with self._lock:
            self._held[key] = value
            for old in list(self._held)[:-HELD]:
                del self._held[old]

    def _read(self, run: str, step: int, asked: Asked, what: str) -> float | None:
        """None where the step has no such number: it was cut short, or another model."""
        try:
            trace = self.steps.passing(run, step).trace
            name, tensor = trace.tensor(asked.name)
            if tensor not in trace.record.names:
                return None
            array = trace.record.mapped(tensor)
            if what == "norm":
                with np.errstate(all="ignore"):
                    return norm(array) * _unscaled(trace, name)
            index, _ = asked.of(array.shape)
            part = array[index]
            return float(part) * _unscaled(trace, name) if np.ndim(part) == 0 else None
        except (LimpidError, KeyError):
            return None


def _unscaled(trace: Trace, name: str) -> float:
    """Gradients of quantities are recorded as the loss scale made them."""
    around = AROUND.fullmatch(name)
    is_gradient = around is not None and around[1] == "grad"
    return trace.entries.gradient_scale(bare(name)) if is_gradient else 1.0
