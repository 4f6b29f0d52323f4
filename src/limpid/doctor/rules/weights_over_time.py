"""Weights against what they were: put back, evaluated at a scale they never had, 0 for ever."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, variance
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "weights_over_time"

WEIGHTS_PUT_BACK = Rule(
    "weights-put-back",
    FAMILY,
    detects="Weights that are put back again and again to those of an earlier step, while the optimizer goes on: the "
    "updates in between are lost.",
    equation=r"\theta_t = \theta_s \ne \theta_{t-1} + \Delta_{t-1},\; s < t,\; \text{while } t \text{ and the moments "
    r"go on}",
    source="definition; documentation of torch.nn.Module.load_state_dict",
    threshold="exact: elements of three tensors equal, to the bit, those at the beginning of the same earlier step, "
    "{times:g} times, where updates had moved them, the optimizer kept its own state and its rate is not lower; a "
    "notice where an evaluation came before and the {losses:g} losses before it were not lower than those after the "
    "earlier step by {sure:g} standard errors, or where they were higher by as many; elements that change are {few:g} "
    "or more, and of many sizes: at a bound, or of few levels, they are soon what they were",
    thresholds={
        "times": Threshold(2, "once may be a restart; a rollback that lowers the rate is meant"),
        "few": Threshold(3, "an update moves nearly all"),
        "losses": Threshold(8, "enough for their scatter, few enough to be of one place"),
        "sure": Threshold(2, "who goes back to the best weights has lost nothing by the updates in between"),
    },
    cost="eight elements of three tensors per update",
    meant="tasks, folds or episodes that all begin at the same weights, as in meta-learning",
    needs=(Probe.WEIGHTS_KEPT,),
    cause="a checkpoint that is loaded inside the loop, at each epoch, instead of before it",
    fix="load_state_dict once, before the loop; if a restart is meant, put the optimizer back, too",
    refuted_by="weights that begin an epoch as the last update left them",
    explains=("loss-plateau", "loss-never-falls", "nothing-learned", "loss-spike"),
)

AVERAGE_OFF_SCALE = Rule(
    "average-off-scale",
    FAMILY,
    detects="Weights that are evaluated at a scale they never had in training: no average of them.",
    equation=r"\min_s |\theta_s| \le |\bar\theta| \le \max_s |\theta_s| \text{ for } "
    r"\bar\theta = \sum_s a_s \theta_s,\; \sum_s a_s = 1,\; a_s \ge 0",
    source="definition of a convex combination; Kingma & Ba 2014, section 3, arXiv:1412.6980 (an average that begins "
    "at 0)",
    threshold="exact: of {elements:g} or more sampled elements that kept their sign in training {share:.0%} or more "
    "are nearer to 0 than they ever were (or further from it), by 2% or more, and less than {other:.0%} the other way, "
    "in {times:g} evaluations in a row, of a run that began here",
    thresholds={
        "elements": Threshold(6, "fewer may be alike by chance"),
        "share": Threshold(0.4, "an average that is too small by a half hides in the past of what grew from nothing"),
        "other": Threshold(0.05, "rounding goes both ways"),
        "times": Threshold(2, "once may be a look at other weights"),
    },
    cost="eight elements of three tensors per update",
    meant="weights that are pruned, rounded or shrunk for evaluation",
    needs=(Probe.WEIGHTS_KEPT,),
    cause="an average that begins at 0 and is not divided by 1 - d^t, or whose shares do not add up to 1",
    fix="begin the average at the weights (or divide it by 1 - d^t): a = d a + (1 - d) w, with a = w at first",
    refuted_by="evaluated weights between the least and the largest that training had",
)

ZERO_AND_STAYS = Rule(
    "zero-and-stays",
    FAMILY,
    detects="Gains or matrices that are 0 and have a gradient of exactly 0: they can never leave it.",
    equation=r"\theta = 0,\; \partial L / \partial \theta = 0 \text{ at every step}",
    source="definition of a stationary point; Zhang et al. 2019, section 3, arXiv:1901.09321 (one factor at "
    "0, not both)",
    threshold="exact: a gain of a norm or a matrix that is 0 throughout, with a gradient that is 0 throughout and a "
    "rate above 0, at {looks:g} looks in a row, at step {steps:g} or later",
    thresholds={
        "looks": Threshold(4, "what waits for another tensor to leave 0 waits one step"),
        "steps": Threshold(20, "a rate that begins at 0 moves nothing at first"),
    },
    cost="none: samples of updates are there",
    meant="a part that sleeps on purpose and is woken later, or was pruned as a whole",
    needs=(Probe.UPDATES,),
    cause="an initialisation at 0 of gains, or of two factors of one product: the gradient of each is multiplied by "
    "the other",
    fix="gains at 1, or 0 in the last norm of a residual branch alone; of two factors only one at 0",
    refuted_by="one gradient that is not 0",
    explains=("units-dead", "loss-plateau", "loss-never-falls", "nothing-learned", "slice-without-gradient"),
)


@on_step(WEIGHTS_PUT_BACK)
def back_where_they_were(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, start, begun = WEIGHTS_PUT_BACK, record.began_before, history.steps_begun
    rate = max(record.group_rates.values(), default=0.0)
    begun.setdefault(record.number, (rate, math.nan if record.loss is None else record.loss))
    if len(begun) > 4096:
        begun.pop(next(iter(begun)))
    if (
        start is None
        or record.optimizer_count <= start.counted
        or rate < 0.99 * begun.get(start.step, (rate, math.nan))[0]
    ):
        return
    gained = _gained(history, start.step, record.number)
    # an evaluation may have chosen these weights; without one only a loss that rose may have
    history.lost_by_return += gained > rule["sure"] if record.after_evaluation else not gained < -rule["sure"]
    times = history.times(f"{rule.slug} {start.step}")
    if times >= rule["times"]:
        lost, accused = record.number - start.step, history.lost_by_return >= rule["times"]
        yield rule.finding(
            severity="warning" if accused else "notice",
            step=record.number,
            where="model",
            says=f"the weights are again, to the bit, those that step {start.step} began with, at {times} returns, "
            f"while the optimizer goes on: the {lost:,} updates since then are thrown away"
            + ("." if accused else ", by which the loss had not become lower."),
            cause="" if accused else "a return to the best weights so far, it seems",
            fix="" if accused else "nothing, if that is meant",
            sure=0.9 if accused else 0.5,
            evidence={"as_at_step": start.step, "updates_lost": lost, "times": times},
        )


def _gained(history: History, start: int, now: int) -> float:
    """By how many standard errors the losses before a return are lower than those after the step to which it goes."""
    count = min(int(WEIGHTS_PUT_BACK["losses"]), (now - start) // 2)
    groups = [range(start, min(start + count, now)), range(max(now - count, start), now)]
    then, last = ([x for i in group if (x := history.steps_begun.get(i, (0.0, math.nan))[1]) == x] for group in groups)
    if min(len(then), len(last)) < 2:
        return 0.0
    error = math.sqrt(variance(then) / len(then) + variance(last) / len(last))
    return (fmean(then) - fmean(last)) / max(error, 1e-30)


@on_step(AVERAGE_OFF_SCALE)
def nearer_to_zero_than_ever(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, seen = AVERAGE_OFF_SCALE, record.outside
    if not record.after_evaluation:
        return
    share, other = (0.0, 0.0) if seen is None else (max(seen.shrunk, seen.grown), min(seen.shrunk, seen.grown))
    off = seen is not None and seen.elements >= rule["elements"] and share >= rule["share"] and other < rule["other"]
    if history.in_a_row(rule.slug, off) == rule["times"] and seen is not None:
        nearer = seen.shrunk > seen.grown
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="weights in evaluation",
            says=f"what is evaluated is no average of the weights of this run: {share:.0%} of {seen.elements} sampled "
            f"elements are {'nearer to 0' if nearer else 'further from 0'} than at any step of training, "
            f"{seen.ratio:.2f} times as large as the last ones (median).",
            cause=""
            if nearer
            else "a sum of weights that is not divided by their number, or shares that add up to more than 1",
            sure=0.9,
            evidence={"ratio": seen.ratio, "share": share, "elements": seen.elements},
        )


@on_step(ZERO_AND_STAYS, asks="judged_update")
def never_leaves_zero(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, update = ZERO_AND_STAYS, record.judged_update
    if update is None:
        return
    gains, parameters = set(watched.info.norm_gains), watched.info.parameters
    still = [
        name
        for name, weight, change, moves, rate in zip(
            update.names, update.weight, update.change, update.moves, update.rates, strict=True
        )
        if weight == change == 0 and not moves and rate > 0
        and (name in gains or (name in parameters and parameters[name].ndim >= 2))
        and not bool(parameters[name].any())
    ]  # fmt: skip
    looks = {name: history.in_a_row(f"{rule.slug} {name}", True) for name in still}
    for name in update.names:
        if name not in looks and history.streaks.get(f"{rule.slug} {name}"):
            history.in_a_row(f"{rule.slug} {name}", False)
    stuck = [name for name, count in looks.items() if count >= rule["looks"]]
    if stuck and record.number >= rule["steps"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=stuck[0],
            says=f"{len(stuck)} tensor{'s' if len(stuck) > 1 else ''} ({', '.join(stuck[:3])}) began at 0 and "
            f"{'have' if len(stuck) > 1 else 'has'} a gradient of exactly 0 at each of {looks[stuck[0]]} looks: no "
            "update can ever move "
            f"{'them' if len(stuck) > 1 else 'it'}, and what is multiplied by {'them' if len(stuck) > 1 else 'it'} "
            "is dead.",
            sure=0.9,
            evidence={"tensors": stuck[:16], "looks": looks[stuck[0]]},
        )
