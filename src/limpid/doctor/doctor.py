"""The doctor at the bedside: listens to a training loop, examines it at the start, speaks when something is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limpid.doctor.calls import Call
from limpid.doctor.checks.ids import classes_of_loss, ids_of_call
from limpid.doctor.exam import Exam, examine
from limpid.doctor.examination import AFTER_BACKWARD, AT_FIRST_SIGHT, CHECKS
from limpid.doctor.finding import Finding
from limpid.doctor.finding_log import FindingLog
from limpid.doctor.hooks import Hooks
from limpid.doctor.model_info import ModelInfo, local
from limpid.doctor.ranks import Ranks, processes
from limpid.doctor.replay import nan_replay
from limpid.doctor.skipped import Skipped
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.step_recorder import StepRecorder
from limpid.doctor.undisturbed import undisturbed
from limpid.doctor.watched import Watched, unwrapped
from limpid.doctor.watching import WATCHES

RISING = ("learning-rate-too-high", "loss-diverges", "gradient-explodes")
"""Rules of a loss that rises: the step at which they speak is made again with a smaller update."""


class Doctor:
    """What `limpid.watch` returns. Use it as a context manager, or call `close()` at the end; either is optional."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        output: str | Path | None = None,
        total_steps: int | None = None,
        pretrained: bool | None = None,
        say: Callable[[str], None] | bool = True,
        every: int = 50,
        examine: bool = True,
        writer: Any = None,
        first_step: int = 1,
    ) -> None:
        self.info = ModelInfo(model)
        self.watched = Watched(
            self.info,
            unwrapped(optimizer, "optimizer"),
            unwrapped(scheduler, "scheduler"),
            scaler,
            total_steps,
            pretrained,
        )
        self.log = FindingLog(None if output is None else Path(output), say, writer)
        self.skipped = Skipped(self.log.skipped)
        self.checked: set[str] = set()
        self.history = History()
        self.recorder = StepRecorder(self.watched, self, self.history, self.skipped, first_step, every)
        self.ranks: Ranks | None = None
        self.closed = False
        self._examined, self._waiting = not examine, False
        self.hooks = Hooks(self.recorder)
        with self.skipped.noting("watch"):
            self.hooks.everything(self.watched)
            if processes() > 1:
                self.ranks = Ranks(self.info, first_step)
                self.ranks.listen(self.hooks)
                self.log.first = self.ranks.rank == 0
        if self.info.sharded:
            self.skipped.note("the model's graph", "each process holds a part of the parameters: examine one alone")

    # what a user calls

    def preflight(
        self,
        batch: Any,
        loss: Callable[..., Any] | Any = None,
        loss_function: Callable[..., Any] | None = None,
        total_steps: int | None = None,
        pretrained: bool | None = None,
    ) -> list[Finding]:
        """Examine everything before the first step; nothing is changed by it.

        batch           what the loop has: a tensor, (inputs, targets), a dict, or a list of such micro-batches
        loss            (model, batch) → loss, as the loop computes it; or
        loss_function   (logits, targets) → loss; with neither, the model's own loss or cross-entropy
        """
        before = set(self.log.found)
        self.watched.total_steps = total_steps or self.watched.total_steps
        self.watched.pretrained = self.watched.pretrained if pretrained is None else pretrained
        self._run(self._exam(batch=batch, loss=loss if callable(loss) else None, loss_function=loss_function), CHECKS)
        self._examined = True
        return self.log.findings(without=before)

    def step(self, loss: Any = None, batch: Any = None) -> None:
        """Tell the doctor about one optimizer step: right before it or right after it, as you like."""
        self.recorder.reported(loss, batch)

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self.recorder.steps

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far: root causes first, then what they explain."""
        return self.log.findings()

    def close(self) -> None:
        """Let go of everything; called by itself at the end of a `with` block."""
        if self.closed:
            return
        self.recorder.look_away()
        if self.recorder.record.updated and not self.skipped.too_many:
            with self.skipped.noting("close"), torch.no_grad():
                self.recorder.end()
        self.closed = self.recorder.is_paused = True
        self.hooks.close()

    def __enter__(self) -> Doctor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # what was heard

    def called(self, call: Call, step: int) -> None:
        """Before a forward pass, which unknown ids will end; at the first one, all that needs no gradient."""
        self.log.add(ids_of_call(self.info, call, step))
        if not self._examined:
            self._examined = self._waiting = True
            self._run(self._exam(call=call), AT_FIRST_SIGHT)

    def compared(self, given: Any, target: Any, step: int) -> None:
        """Before a cross-entropy, which a class unknown to it will end."""
        self.log.add(classes_of_loss(given, target, step))

    def updating(self, record: StepRecord, cleared: bool) -> None:
        """Before the first update: what the loop's own backward pass shows."""
        if self._waiting and record.calls and not cleared:
            self._waiting = False
            norms = {
                name: None if p.grad is None else float(local(p.grad).norm())
                for name, p in self.info.parameters.items()
                if p.grad is None or not p.grad.is_sparse
            }
            loss_gradients = [record.loss_gradients[i] for i in sorted(record.loss_gradients)]
            exam = self._exam(call=record.calls[0].detached(), seen_norms=norms, seen_loss_gradients=loss_gradients)
            self._run(exam, AFTER_BACKWARD)
        if self.ranks is not None:
            self.ranks.before_update(record)

    def ended(self, record: StepRecord) -> None:
        """Judge a step."""
        if record.loss is not None and not math.isfinite(record.loss) and not record.broken:
            self.broke(record, record.loss)
        for check in WATCHES:
            with self.skipped.noting(_named(check)):
                self.log.add([self._opened(finding, record) for finding in check(self.watched, record, self.history)])
        if self.ranks is not None:
            self.log.add(self.ranks.after_step(record, self.history.facts.get("hashes", [])))

    def _opened(self, finding: Finding, record: StepRecord) -> Finding:
        """A loss that rises, the first time: the step made again at a tenth of its rate."""
        known = self.log.found.get(finding.rule)
        if finding.rule not in RISING or not record.updated or not record.calls or self.info.sharded:
            return finding
        if known is not None and known.severity == finding.severity:
            return finding
        with self.recorder.paused(), self.skipped.noting("at a tenth of the rate"):
            return nan_replay.with_smaller_step(finding, self.watched, record)
        return finding

    def broke(self, record: StepRecord, loss: float) -> None:
        """The first number that is none: open the step, and say where it was made."""
        record.broken = True
        if "broken" in self.history.facts:
            return
        self.history.facts["broken"] = record.number
        with self.recorder.paused():
            found = nan_replay.opened(self.watched, record, self.history, loss)
        self.log.add([found])

    # the examination

    def _exam(self, **given: Any) -> Exam:
        watched = self.watched
        return Exam(
            watched.info,
            watched.optimizers,
            watched.schedulers,
            watched.scaler,
            watched.total_steps,
            watched.pretrained,
            **given,
        )

    def _run(self, exam: Exam, checks: list[Any]) -> None:
        with self.recorder.paused(), self.skipped.noting("examination"):
            with undisturbed(self.info.model):
                self.log.add(examine(exam, checks))
            for what, why in exam.skipped.items():
                self.skipped.note(what, why)
            self.checked.update(map(_named, checks))


def _named(check: Any) -> str:
    """A check's name as its rules are written."""
    return str(check.__name__).strip("_").replace("_", "-")
