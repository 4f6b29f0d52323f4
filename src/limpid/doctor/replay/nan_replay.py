"""When a step breaks: where the first number that is not finite arises, and what prevents it.

An operation is to blame when its inputs are finite (or masked on purpose) and its output is not. Then one thing at a
time is changed, and what prevents it names the cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.finding import Finding
from limpid.doctor.history import History
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.replay.counterfactuals import counterfactuals, smaller_step
from limpid.doctor.replay.step_replay import Origin, RecordedPass, ReplayResult, replay
from limpid.doctor.rule import Rule, functions
from limpid.doctor.rules import RULES
from limpid.doctor.rules.overflow import NOT_FINITE
from limpid.doctor.shield import Shield
from limpid.doctor.step_record import StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.weights import local


@dataclass(frozen=True)
class BrokenStep:
    """One pass of a step that broke; it is repeated when somebody first asks what that shows."""

    info: ModelInfo
    recorded: RecordedPass | None  # None where the call of the model was not seen
    step: int | None
    loss: float

    @property
    def what(self) -> str:
        """What is not finite, in words."""
        if not math.isfinite(self.loss):
            return f"the loss is {self.loss}"
        return f"a gradient is not finite (the loss, {self.loss:.4g}, is)"

    @cached_property
    def bad_parameters(self) -> Mapping[str, int]:
        """How many elements are not finite already before the forward pass, by parameter."""
        if self.recorded is None:
            return {}
        counts = {name: int((~torch.isfinite(local(p.detach()))).sum()) for name, p in self.info.parameters.items()}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def obstacle(self) -> str:
        """Why the model cannot be called again without leaving a trace."""
        return Shield(self.info.model).obstacle

    @cached_property
    def _result(self) -> ReplayResult | None:
        if self.recorded is None or self.bad_parameters or self.info.sharded or self.obstacle:
            return None
        return replay(self.recorded)

    @property
    def replayed(self) -> bool:
        return self._result is not None

    @property
    def origin(self) -> Origin | None:
        """The first operation whose inputs are finite and whose output is not."""
        return None if self._result is None else self._result.origin

    @property
    def logits_finite(self) -> bool:
        return self._result is not None and self._result.logits_finite

    @property
    def labels(self) -> Tensor | None:
        if self.recorded is None:
            return None
        micro = self.recorded.micro
        return micro.labels if micro is not None and micro.labels is not None else self.recorded.call.labels

    @property
    def overflowed(self) -> bool:
        """Whether the operation's value, in float64, is beyond its format."""
        origin = self.origin
        return origin is not None and origin.exact_largest is not None and origin.exact_largest > origin.limit

    @property
    def evidence(self) -> dict[str, Any]:
        origin = self.origin
        if origin is None:
            return {}
        return {
            "operation": origin.op,
            "largest_input": origin.largest,
            "inputs": list(origin.inputs),
            "backward": origin.backward,
        }

    def overflow(self, rule: Rule, value: str, cause: str, fix: str = "") -> Finding:
        """The finding for a value that outgrew its format."""
        origin = self.origin
        assert origin is not None
        return rule.finding(
            severity="fault",
            step=self.step,
            where=origin.module,
            says=f"{self.what}: {origin.module} {value} reached {origin.exact_largest:.3g} > {origin.limit:.5g} "
            f"({str(origin.dtype).removeprefix('torch.')} maximum); the same product of the same numbers is finite in "
            "float64.",
            cause=cause,
            fix=fix,
            refuted_by=f"a largest value below {origin.limit:.5g}",
            evidence=self.evidence | {"value": origin.exact_largest, "limit": origin.limit},
        )


def opened(
    watched: Watched, record: StepRecord, history: History, loss: float, rules: Iterable[Rule] = RULES.values()
) -> Finding:
    """The finding for a watched step that broke: the first of its micro-batches that shows where."""
    rates = record.rates if record.updated else history.last_rates
    finding = None
    passes: list[RecordedPass | None] = [*recorded_passes(watched, record)]
    for recorded in passes or [None]:
        finding = explained(watched.info, recorded, record.number, loss, history.previous, watched, rates, rules)
        if "operation" in finding.evidence or finding.rule != NOT_FINITE.slug:
            break
    assert finding is not None
    return finding


def explained(
    info: ModelInfo,
    recorded: RecordedPass | None,
    step: int | None,
    loss: float,
    before: Call | None = None,
    watched: Watched | None = None,
    rates: Sequence[float] = (),
    rules: Iterable[Rule] = RULES.values(),
) -> Finding:
    """The finding for one pass of a step whose loss or gradient is not finite.

    before  the batch before; `watched` and `rates` (of the last update) let that update be undone
    """
    broken = BrokenStep(info, recorded, step, loss)
    ways = functions("at_break", [*rules, NOT_FINITE])  # which always has an explanation
    finding = next(finding for way in ways for finding in way(broken))
    if recorded is None or broken.origin is None:
        return finding
    outcome = counterfactuals(recorded, broken.origin, before, watched, list(rates))
    return replace(
        finding,
        says=" ".join([finding.says, *outcome.says]),
        cause="; ".join(filter(None, [finding.cause, outcome.cause])),
        evidence=finding.evidence | outcome.facts,
    )


def recorded_passes(watched: Watched, record: StepRecord) -> list[RecordedPass]:
    """The forward passes of a step, as they were."""
    micros = record.micros if len(record.micros) == len(record.calls) else [None] * len(record.calls)
    return [
        RecordedPass(watched.info, call.detached(), micro, rng, autocast)
        for call, micro, rng, autocast in zip(record.calls, micros, record.rng, record.autocast, strict=True)
    ]


def with_smaller_step(finding: Finding, watched: Watched, record: StepRecord) -> Finding:
    """A finding of a loss that rises, with what the step it was seen at does to the loss of its own batch."""
    passes = recorded_passes(watched, record)
    known = record.loss if len(passes) == 1 else None
    outcome = smaller_step(passes[0], watched, record.rates, known)
    moved = outcome.helps and finding.rule == "loss-diverges"  # the rate is not to blame, nor is the direction
    return replace(
        finding,
        severity="notice" if moved else finding.severity,
        says=" ".join([finding.says, *outcome.says]),
        cause="what is fed, or what the loss compares with, changed" if moved else outcome.cause or finding.cause,
        evidence=finding.evidence | outcome.facts,
    )
