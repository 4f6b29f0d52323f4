"""The doctor: watches a training loop, examines it at the start, speaks when something is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from limpid.config.arguments import checked
from limpid.config.domain import Count
from limpid.doctor.baseline import Baseline
from limpid.doctor.baseline.file import LAST
from limpid.doctor.baseline.loop_sketcher import Both, LoopSketcher
from limpid.doctor.called_parts import CalledParts
from limpid.doctor.calls import Call
from limpid.doctor.description import Description, Line
from limpid.doctor.devices import loss_of
from limpid.doctor.examinations import Examinations
from limpid.doctor.expected import Expected
from limpid.doctor.finding import Finding, Skipped, is_assertion, not_examined
from limpid.doctor.finding_log import FindingLog
from limpid.doctor.history import History
from limpid.doctor.hooks import Hooks
from limpid.doctor.loop_facts import EARLY, LoopFacts
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.own_updates import own_rule, own_update, presumes_usual_update
from limpid.doctor.ranks import Ranks
from limpid.doctor.replay import nan_replay
from limpid.doctor.rule import ASKS, Probe, Rule, functions
from limpid.doctor.rules import RULES
from limpid.doctor.rules import expected as not_as_expected
from limpid.doctor.rules.ids_in_range import classes_of_loss, ids_of_call, looked_up, lost_device
from limpid.doctor.step_record import StepRecord
from limpid.doctor.step_recorder import StepRecorder
from limpid.doctor.tuning import Tuning
from limpid.doctor.watched import Scaler, Watched, as_list
from limpid.errors import ConfigError
from limpid.files import user_path

FEW_LOOKS = 3
"""Looks at what the token table is asked for, where the model is given ids that it does not have."""


class Doctor:
    """What `limpid.watch` returns. Use it as a context manager, or call `close()` at the end; either is optional."""

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Scaler | None = None,
        output: str | Path | None = None,
        total_steps: Count | None = None,
        pretrained: bool | None = None,
        say: Callable[[str], None] | bool = True,
        every: Count = 50,
        examine: bool = True,
        writer: Any = None,
        first_step: Count = 1,
        steps_per_epoch: float | None = None,
        rules: Iterable[str] | None = None,
        tokenizer: Any = None,
        tuning: Tuning | None = None,
        baseline: str | Path | list[str | Path] | None = None,
        expected: Mapping[str, Any] | str | Path | None = None,
    ) -> None:
        """`tokenizer` is the model's own, of limpid or transformers; `tuning` what a run of limpid says of itself.

        baseline  file of what the loop does: a run that finds none writes it, and later runs are held against it; of
                  several files the runs that worked are held together, and the first that is missing is written
        expected  what the loop is meant to do, as a table or a TOML file: what is seen to be otherwise is said
        """
        self.rules = _chosen(rules)
        probes = frozenset(probe for rule in self.rules for probe in rule.needs)  # what none needs is not measured
        self.info = ModelInfo(model)
        optimizers, schedulers = as_list(optimizer, "optimizer"), as_list(scheduler, "scheduler")
        self.watched = Watched(
            self.info, optimizers, schedulers, scaler, total_steps, pretrained, steps_per_epoch, tuning, tokenizer,
            None if baseline is None or not _is_first() else Baseline([user_path(one) for one in _several(baseline)]),
            None if expected is None else Expected.read(expected),
        )  # fmt: skip
        if self.watched.expected is not None:
            self.watched.expected.require_known(self.info.parameters)
        self.log = FindingLog(None if output is None else user_path(output), say, writer)
        self.skipped = Skipped(self.log.skipped, self._lost)
        self.history = History()
        self.history.curves.tuning = tuning
        self.recorder = StepRecorder(self.watched, self, self.history, self.skipped, first_step, every, probes)
        self.examinations = Examinations(
            self.watched, self.rules, self.recorder, self.history, self.skipped, self._add, first_step, examine
        )
        self.ranks: Ranks | None = None
        self.closed = False
        self._looked_up = 0
        self._on_step = [(f.__name__.replace("_", "-"), f, ASKS.get(f, "")) for f in functions("on_step", self.rules)]
        kept = self.watched.baseline
        self.called_parts = CalledParts(self.recorder)  # which listens first: what it finds is told of as a pass
        self.sketcher = None if kept is None else LoopSketcher(self.recorder, kept, first_step)
        self.hooks = Hooks(self.recorder if self.sketcher is None else Both(self.sketcher, self.recorder))
        with self.skipped.noting("watch"):
            self.hooks.everything(self.watched)
            self.called_parts.hooks = self.hooks
            if self.watched.processes > 1 and Probe.RANKS in probes:
                self.ranks = Ranks(self.info, first_step)
                self.ranks.watch_gradients(self.hooks)
                self.ranks.watch_pace(self.hooks)
                self.log.first = self.ranks.rank == 0
        if kept is not None and kept.new is not None:
            self.log.writes_baseline(kept.new.path)
        if self.info.sharded:
            self.skipped.note("the model's graph", "each process holds a part of the parameters: examine one alone")

    # what a user calls

    @checked
    def preflight(
        self,
        batch: Any,
        loss: Callable[..., Any] | Any = None,
        loss_function: Callable[..., Any] | None = None,
        total_steps: Count | None = None,
        pretrained: bool | None = None,
    ) -> list[Finding]:
        """Examine everything before the first step; nothing is changed by it.

        batch           what the loop has: a tensor, (inputs, targets), a dict, or a list of such micro-batches
        loss            (model, batch) → loss, as the loop computes it; or
        loss_function   (logits, targets) → loss; with neither, the model's own loss or cross-entropy
        """
        before = set(self.log.by_rule)
        self.watched.total_steps = total_steps or self.watched.total_steps
        self.watched.pretrained = self.watched.pretrained if pretrained is None else pretrained
        self.examinations.preflight(batch, loss if callable(loss) else None, loss_function)
        return self.log.findings(without=before)

    def step(self, loss: Any = None, batch: Any = None, metrics: Mapping[str, Any] | None = None) -> None:
        """Tell the doctor about one optimizer step: right before it or right after it, as you like.

        metrics  what is logged of the step, by TRL's names, such as reward, kl, rewards/chosen
        """
        if self.sketcher is not None:
            self.sketcher.reported(batch)
        self.recorder.report(loss, batch, metrics)

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self.recorder.steps

    @property
    def looks_inside(self) -> bool:
        """Whether it sees more of the next step's passes than what goes into the model and what comes out of it."""
        record, waits = self.recorder.record, self.examinations.wait
        early = record.number < self.recorder.first_step + EARLY
        looks = (record.sampled or record.read) and not self.info.compiled  # of what is compiled it sees no inside
        return looks or early or waits or self.sketcher is not None

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far: root causes first, then what they explain."""
        return self.log.findings()

    @property
    def facts(self) -> LoopFacts | None:
        """What the loop did at the last step whose loss was read from its gradient; printed, a table by part."""
        return self.history.facts

    @property
    def description(self) -> Description | None:
        """What the loop does, in sentences: printed, a page to hold against what it is meant to do.

        To ask for it takes some forward passes of a few rows with the model as it is then.
        """
        facts = self.history.facts
        if facts is None:
            return None
        told = (*self.history.so_far.told(self.history), *not_examined(self.skipped))
        run = (Line("run", text) for text in told)
        again = (Line("model", text) for text in self.examinations.again())
        return Description(facts.step, self.steps, (*self.history.sentences, *again, *run))

    def close(self) -> None:
        """Let go of everything; called by itself at the end of a `with` block."""
        if self.closed:
            return
        self.recorder.leave_attention()
        if self.recorder.record.updated and not self.skipped.too_many:
            with self.skipped.noting("close"), torch.no_grad():
                self.recorder.end()
        if self.sketcher is not None:
            with self.skipped.noting("baseline"):
                self.sketcher.close()
        if self.watched.expected is not None:
            with self.skipped.noting("expected"):
                record = self.recorder.record
                found = self.watched.expected.judged(self.watched, record, self.history, "end")
                self._add(not_as_expected.told(found, self.recorder.steps))
        if self.watched.baseline is not None:
            with self.skipped.noting("baseline"):
                self.watched.baseline.close()
            self.log.compared_to_the_end()
        self.closed = self.recorder.is_paused = True
        self.called_parts.close()
        self.recorder.others.close()
        self.hooks.close()

    def __enter__(self) -> Doctor:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        lost = loss_of(error)
        if lost is not None:
            self.skipped.end(lost)
        self.close()

    # what the recorder asks

    def called(self, call: Call) -> None:
        """Before a forward pass, which unknown ids will end; at the first one, all that needs no gradient."""
        odd = list(ids_of_call(self.info, call, self.recorder.record))
        self._add(odd)
        if odd and self._looked_up < FEW_LOOKS and (table := self.info.table) is not None:
            self._looked_up += 1
            self.hooks.next_input(table, lambda ids: self._add(looked_up(ids, self.info, self.recorder.record)))
        self.examinations.before_first_pass(call)

    def compared(self, given: Any, target: Any, ignored: int | None) -> None:
        """Before a cross-entropy, which a class unknown to it will end."""
        self._add(classes_of_loss(given, target, ignored, self.recorder.record))

    def updating(self, record: StepRecord, cleared: bool) -> None:
        """Before an update: what the loop's own passes show."""
        self.examinations.before_update(record, cleared)
        if self.ranks is not None:
            self.ranks.before_update(record.number)

    def ended(self, record: StepRecord) -> None:
        """Judge a step."""
        self.called_parts.ended()
        if not self.watched.optimizers:
            self.examinations.without_update(record)
        if self.sketcher is not None:
            self.sketcher.ended(record)
        if record.loss is not None and not math.isfinite(record.loss) and not record.broken:
            self.broke(record, record.loss)
        if self.ranks is not None:
            with self.skipped.noting("ranks"):
                record.rank_lines = self.ranks.exchange(record.number, self.history.rows.hashes)
        if not self.history.own_update:
            self.history.own_update = own_update(self.watched, record, self.history.so_far.kept)
        there: dict[str, bool] = {"": True}
        for name, function, asks in self._on_step:  # more than a hundred: nothing is made for those that find nothing
            try:
                if asks not in there:
                    there[asks] = bool(getattr(record, asks))
                for finding in function(self.watched, record, self.history) if there[asks] else ():
                    self._add([self._tried(finding, record)])
            except Exception as error:
                self.skipped.failed(name, error)
        if record.number == LAST:
            self.log.compared_to_the_end()

    def broke(self, record: StepRecord, loss: float) -> None:
        """The first number that is not finite: repeat the step, and say where it arises."""
        record.broken = True
        if self.history.broke_at is None and Probe.REPLAY in self.recorder.probes:
            self.history.broke_at = record.number
            with self.recorder.paused():
                self._add([nan_replay.opened(self.watched, record, self.history, loss, self.rules)])

    def _lost(self, error: BaseException) -> None:
        """The device can be used no more: what most likely was the cause, without asking it anything."""
        if is_assertion(error):
            self._add([lost_device(error, self.info, self.recorder.record)])
        else:
            self.log.skipped("what comes now", f"the device is lost: {error}".split("\n")[0])

    def _tried(self, finding: Finding, record: StepRecord) -> Finding:
        """A loss that rises, the first time: the step repeated at a tenth of its rate."""
        known = self.log.by_rule.get(finding.rule)
        repeated = record.updated and record.rng and not self.info.sharded
        if not RULES[finding.rule].tries_smaller_step or not repeated:
            return finding
        if known is not None and known.severity == finding.severity:
            return finding
        if known is not None and "loss_after" in known.evidence and record.number < 2 * (known.step or 0):
            return known  # tried not long ago
        with self.recorder.paused(), self.skipped.noting("at a tenth of the rate"):
            return nan_replay.with_smaller_step(finding, self.watched, record)
        return finding

    def _add(self, findings: Iterable[Finding]) -> None:
        said = self.watched.expected
        asked = (self._as_asked(one) for one in findings if RULES[one.rule] in self.rules)
        self.log.add(one for one in asked if said is None or not said.settles(one.rule))

    def _as_asked(self, finding: Finding) -> Finding:
        """A law of the usual update asks where the loop has one of its own."""
        if finding.severity == "notice" or finding.meant or not presumes_usual_update(RULES[finding.rule]):
            return finding
        own = self.history.own_update or own_rule(self.watched)
        return dataclasses.replace(finding, meant=own) if own else finding


def _is_first() -> bool:
    """Whether this is the first of the processes that train together: one of them speaks for all."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


def _several(given: Any) -> list[str | Path]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _chosen(rules: Iterable[str] | None) -> tuple[Rule, ...]:
    """Rules by their slugs, or all of them."""
    slugs = list(RULES if rules is None else rules)
    unknown = [slug for slug in slugs if slug not in RULES]
    if unknown:
        raise ConfigError(f"there is no rule {unknown[0]!r}: `limpid doctor --explain all` lists them")
    return tuple(RULES[slug] for slug in slugs)
