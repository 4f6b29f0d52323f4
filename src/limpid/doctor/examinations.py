"""When batch and model are examined: before the first pass, at the first update, and again ever more rarely."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.description import neighbours, own_backwards, places, reach, scales, state_before, tried
from limpid.doctor.exam import Exam, Function, examine
from limpid.doctor.finding import Finding, Skipped
from limpid.doctor.history import History
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.own_updates import own_rule
from limpid.doctor.rule import Probe, Rule, functions
from limpid.doctor.rules.labels import copies, own_token
from limpid.doctor.step_record import StepRecord
from limpid.doctor.step_recorder import StepRecorder
from limpid.doctor.watched import Watched
from limpid.doctor.weights import local

AGAIN, FURTHER = 10, 4
"""The step at which batch and model are examined again, and how much later each time."""


class Examinations:
    """Those of one doctor, each with what the loop has shown by then."""

    def __init__(
        self,
        watched: Watched,
        rules: Sequence[Rule],
        recorder: StepRecorder,
        history: History,
        skipped: Skipped,
        add: Callable[[Iterable[Finding]], None],
        first_step: int,
        wanted: bool,
    ) -> None:
        self.watched, self.info, self.rules = watched, watched.info, rules
        self.recorder, self.history, self.skipped, self.add = recorder, history, skipped, add
        self.begun, self.without_backward = not wanted, False
        self.asked: list[Function] = []  # who looked before the first pass
        self.due = first_step - 1 + AGAIN if wanted else None
        self.latest: tuple[int, Call] | None = None  # the step whose call was kept last, and that call
        self.tried_again: tuple[int, tuple[str, ...]] = 0, ()  # of which step, and what was told of it

    @property
    def wait(self) -> bool:
        """Whether the first one is still to come, or is to go on at the first update."""
        return not self.begun or self.without_backward

    def preflight(self, batch: Any, loss: Callable[..., Any] | None, loss_function: Callable[..., Any] | None) -> None:
        """All of it before the first step, with a batch and a loss of the user's."""
        if self.info.shapeless:
            self.skipped.note("preflight", "parameters take their shape from the first forward pass: examined then")
            return
        exam = self.exam(batch=batch, loss=loss, loss_function=loss_function)
        self._examine(exam, self.rules)
        self._read_order(exam)
        self._read_reach(exam)
        self.begun = True

    def before_first_pass(self, call: Call) -> None:
        """All that needs no gradient."""
        if self.begun or self.info.shapeless:
            return
        self.begun = self.without_backward = True
        if call.part is not None:  # others may follow in the same pass
            return
        rules = [rule for rule in self.rules if not _needs_backward(rule)]
        self.asked = functions("before_first_step", rules)
        exam = self.exam(call=call)
        self._examine(exam, rules)
        self._read_order(exam)

    def before_update(self, record: StepRecord, cleared: bool) -> None:
        """What the loop's own backward pass shows, at the first update and when it is time again."""
        if record.number == self.recorder.first_step and self.history.so_far.states_before is None:
            with self.skipped.noting("what optimizers hold"):
                self.history.so_far.states_before = state_before(self.watched)
        if record.sampled and record.calls:
            self.latest = record.number, record.calls[0].detached()
        if self.without_backward and record.calls and not cleared:
            self._at_first_update(record)
        elif self.due is not None and record.number >= self.due and record.sampled and record.calls:
            self.due = record.number * FURTHER
            exam = self.exam(call=record.calls[0].detached(), seen_loss_gradients=_in_order(record), later=True)
            self._examine(exam, [rule for rule in self.rules if rule.again], record.number)
        if not self.begun and record.number > self.recorder.first_step + 1 and not self.info.shapeless:
            self.begun = True
            self.skipped.note("model and batch", "neither the model nor a part of it was called with gradients")

    def without_update(self, record: StepRecord) -> None:
        """A step of a loop whose optimizer is not known: no update will tell that all parts were called."""
        if self.without_backward and record.calls and record.calls[0].part is not None:
            self._at_first_update(record)

    def _at_first_update(self, record: StepRecord) -> None:
        norms = {name: None if p.grad is None else _norm(p.grad) for name, p in self.info.parameters.items()}
        known = [norm for norm in norms.values() if norm is not None]
        if known and not any(known):  # a loss that is level here shows nothing of what lies behind it
            return
        if not known and "backward" not in record.events and own_rule(self.watched):
            return  # an update that makes its gradients itself
        self.without_backward = False
        gradients = _in_order(record)
        exam = self.exam(call=record.calls[0].detached(), seen_norms=norms, seen_loss_gradients=gradients)
        exam.own_backward = record.own_backward
        exam.arrived = record.arrived
        if gradients and copies(gradients[0]):
            with self.recorder.paused(), self.skipped.noting("the own token"):
                self.history.own_token = own_token(exam, gradients[0])
        in_parts = record.calls[0].part is not None
        shown = [rule for rule in self.rules if _needs_backward(rule)]
        shown = [rule for rule in shown if rule.at_first_update or not rule.functions.get("on_step")]
        if in_parts:  # nothing was asked before the first pass, and another part's turn may still be to come
            turns = all(any(p.grad is not None for p in _held(one)) for one in self.watched.optimizers)
            shown = [rule for rule in self.rules if (rule in shown and turns) or not _needs_backward(rule)]
        self._examine(exam, shown, without=self.asked)
        if in_parts:
            self._read_order(exam)
        self._read_reach(exam)

    def again(self) -> tuple[str, ...]:
        """What passes with the model as it is now show otherwise than at first: made when the page is asked for.

        Nothing where several processes train together, of which one alone may ask.
        """
        first = self.history.so_far.tried
        if first is None or self.latest is None or self.watched.processes > 1 or self.skipped.ended:
            return ()
        step, call = self.latest
        if step != self.tried_again[0] and step > self.recorder.first_step:
            with self.recorder.paused(), self.skipped.noting("what passes show again"):
                exam = self.exam(call=call, later=True)
                now = tried(exam, reach(exam), exam.skipped)
                self.tried_again = step, tuple(now.told_again(step, first))
        return self.tried_again[1]

    def exam(self, **given: Any) -> Exam:
        """One examination of what is watched, with what was given beside it."""
        watched = self.watched
        return Exam(
            watched.info,
            watched.optimizers,
            watched.schedulers,
            watched.scaler,
            watched.total_steps,
            watched.pretrained,
            watched.steps_per_epoch,
            watched.tuning,
            watched.tokenizer,
            skipped=Skipped(lost=self.skipped.end),
            **given,
        )

    def _examine(
        self, exam: Exam, rules: Sequence[Rule], step: int | None = None, without: Sequence[Function] = ()
    ) -> None:
        with self.recorder.paused(), self.skipped.noting("examination"):
            first = self.recorder.first_step
            stands = step or (None if first == 1 else first)  # a run that goes on: the step that it goes on with
            found = examine(exam, [f for f in functions("before_first_step", rules) if f not in without])
            self.add(finding if finding.step else dataclasses.replace(finding, step=stands) for finding in found)
            self.skipped.take(exam.skipped)

    def _read_order(self, exam: Exam) -> None:
        """For the description: what becomes of outputs when rows stand elsewhere, where their passes were made."""
        with self.recorder.paused(), self.skipped.noting("rows in another order"):
            if "row_probe" in exam.__dict__ and exam.row_probe.plain is not None:
                self.history.so_far.moved_with_order = exam.row_probe.elsewhere

    def _read_reach(self, exam: Exam) -> None:
        """For the description of the loop: which outputs read a token, and what else passes of the doctor's show."""
        with self.recorder.paused(), self.skipped.noting("which outputs read a token"):
            with scales(self.info) as self.history.so_far.scales:
                found = reach(exam)
            self.history.so_far.tried = tried(exam, found, self.skipped)
        with self.recorder.paused(), self.skipped.noting("places in attention"):
            self.history.so_far.places, self.history.so_far.neighbours = places(exam), neighbours(exam)
        with self.recorder.paused(), self.skipped.noting("backward passes of one's own"):
            self.history.so_far.own_backwards = own_backwards(exam.adjoints)


def _norm(gradient: Tensor) -> float:
    return float((gradient.coalesce().values() if gradient.is_sparse else local(gradient)).norm())


def _held(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _in_order(record: StepRecord) -> list[LossGradient]:
    """The gradients of the logits, by forward pass."""
    return [record.loss_gradients[i] for i in sorted(record.loss_gradients)]


def _needs_backward(rule: Rule) -> bool:
    """Whether a loop without preflight shows what the rule needs only once its first backward pass is done."""
    return Probe.BACKWARD in rule.needs or Probe.LOSS_GRADIENT in rule.needs
