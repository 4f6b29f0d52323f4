"""The rate judged by what it does: changes too large for the weights, and changes too small to matter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from limpid.doctor.finding import Finding
from limpid.doctor.schedules import peak
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched


def rate(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Changes that replace the weights and do not help; changes too small to matter in the whole run."""
    update = record.update
    assert update is not None
    ratios = [u.median_ratio() for _, u in history.updates[-5:]]
    losses = [*history.losses.all, *([record.loss] if record.loss is not None else [])]
    yield from _too_low(watched, record, history)
    if len(ratios) >= 3 and min(ratios[-3:]) > 0.5 and 3 <= len(losses) < 10 and losses[-1] > 1.2 * losses[0] > 0:
        where = update.names[update.matrices()[0]]
        yield too_high(record.number, median(ratios), where, losses[-1], min(losses), losses[0], max(update.rates))
    yield from _raised(record, history, losses)
    losses = history.losses.all
    if len(ratios) >= 3 and min(ratios[-3:]) > 0.1 and len(losses) >= 10 and record.number >= 10:
        now, best, start = (
            median(losses[-5:]),
            min(median(losses[i : i + 5]) for i in range(len(losses) - 4)),
            losses[0],
        )
        worse = now > best * 1.05 + 0.02 or now > 0.97 * start or not math.isfinite(now)
        if worse:
            yield too_high(
                record.number, median(ratios), update.names[update.matrices()[0]], now, best, start, max(update.rates)
            )


def _raised(record: StepRecord, history: History, losses: list[float]) -> Iterator[Finding]:
    """A rate that was more than doubled a few steps ago, and a loss that went back beyond its start.

    Weights that grew tenfold at once make later changes look small: the largest since then counts.
    """
    rates = history.rates[-10:]
    since = next((i for i in range(1, len(rates)) if rates[-i] > 2 * rates[-i - 1] > 0), None)
    if since is None or not 3 < since < len(losses) - 1:
        return
    before, now = median(losses[max(0, len(losses) - since - 3) : -since + 1]), median(losses[-3:])
    ratios = [(u.median_ratio(), u) for number, u in history.updates if number > record.number - since]
    if not ratios or not (now > 1.1 * before and now > 0.97 * losses[0]):
        return
    ratio, update = max(ratios, key=lambda pair: pair[0])
    if ratio > 0.1:
        where = update.names[update.matrices()[0]]
        yield too_high(record.number, ratio, where, now, min(losses), losses[0], max(update.rates))


def _too_low(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What is left of the run cannot change the weights, or float32 cannot even hold the change."""
    recent = [u for _, u in history.updates[-3:]]
    if len(recent) < 3 or any(max(u.rates) == 0 for u in recent):
        return
    ratio = max(u.median_ratio() for u in recent)
    wanted = [
        max(u.predicted[i], u.step[i]) / u.weight[i] for u in recent for i in u.matrices() if u.weight[i] and u.moves[i]
    ]
    if not wanted:
        return
    lost = median(wanted) < 2.0**-22
    now = max(recent[-1].rates)
    top = max([*history.rates, peak(watched.schedulers, [g for o in watched.optimizers for g in o.param_groups])])
    whole = (watched.planned or 0) * max(ratio, median(wanted)) * (top / now if now else 1.0)
    if not lost and not 0 < whole < 1e-3:
        return
    yield Finding(
        rule="learning-rate-too-low",
        severity="fault" if lost else "warning",
        step=record.number,
        where="every parameter group",
        says=f"each update is {median(wanted):.1e} of the size of the weights (rate {now:g})"
        + (
            ", a step or two of float32 (6e-8) at most: next to nothing changes."
            if lost
            else f": in all {watched.planned:,} steps together they move by {whole:.1e} of their size."
        ),
        cause="a learning rate far too small for this optimizer, or a loss divided by far too much",
        fix="about 1e-3 for Adam on fresh weights, 1e-5 for fine-tuning; 0.1 for SGD",
        sure=0.9,
        refuted_by="a change of the weights by 1 % in the whole run",
        evidence={"update_over_weight": median(wanted), "rate": now, "whole_run": whole},
    )


def too_high(step: int, ratio: float, where: str, now: float, best: float, start: float, rate: float) -> Finding:
    return Finding(
        rule="learning-rate-too-high",
        severity="fault" if ratio > 0.3 or now > start else "warning",
        step=step,
        where=where,
        says=f"each step moves weights by {ratio:.0%} of their size (rate {rate:g}), and the loss is {now:.2f} after "
        f"{best:.2f} at its best and {start:.2f} at the start.",
        cause="the learning rate is too high",
        fix=f"a rate of about {rate * 0.03 / max(ratio, 1e-9):.0e}, and a warm-up",
        sure=0.9,
        refuted_by="a loss that falls at this rate",
        evidence={"update_over_weight": ratio, "rate": rate, "loss": now, "best": best, "start": start},
    )
