"""When a step breaks: where the first number that is not finite arises, and what prevents it.

An operation is to blame when its inputs are finite (or masked on purpose) and its output is not. Then one thing at a
time is changed, and what prevents it names the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from limpid.doctor.calls import Call
from limpid.doctor.finding import Finding
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.replay.broken_step import BrokenStep
from limpid.doctor.replay.counterfactuals import counterfactuals, smaller_step
from limpid.doctor.replay.step_replay import RecordedPass
from limpid.doctor.rule import Rule, functions
from limpid.doctor.rules import RULES
from limpid.doctor.rules.overflow import NOT_FINITE
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched


def opened(
    watched: Watched, record: StepRecord, history: History, loss: float, rules: Iterable[Rule] = RULES.values()
) -> Finding:
    """The finding for a watched step that broke: the first of its micro-batches that shows where."""
    rates = record.rates if record.updated else history.last_rates
    found = None
    passes: list[RecordedPass | None] = [*recorded_passes(watched, record)]
    for recorded in passes or [None]:
        found = explained(watched.info, recorded, record.number, loss, history.previous, watched, rates, rules)
        if "operation" in found.evidence or found.rule != NOT_FINITE.slug:
            break
    assert found is not None
    return found


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
    outcome = smaller_step(recorded_passes(watched, record)[0], watched, record.rates)
    return replace(
        finding,
        says=" ".join([finding.says, *outcome.says]),
        cause=outcome.cause or finding.cause,
        evidence=finding.evidence | outcome.facts,
    )
