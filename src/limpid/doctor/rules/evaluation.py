"""What an evaluation leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.plain_passes import SEVERAL
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched
    from limpid.doctor.weight_copies import WeightCopy

FAMILY = "evaluation"

EVALUATION_CHANGES_WEIGHTS = Rule(
    "evaluation-changes-weights",
    FAMILY,
    detects="Weights that training goes on with after an evaluation, and that are not those before it.",
    equation=r"\theta_{\text{after evaluation}} = \theta_{\text{after the update}}",
    source="definition; Polyak & Juditsky 1992: the average is evaluated, the iterate is trained",
    threshold="elements of three tensors differ by more than two roundings of float32 between the end of an update and "
    "the next training pass, with passes without gradients in between, {times:g} evaluations in a row, and never in "
    "{without:g} steps or more without an evaluation; weights that an earlier step began with are put back on purpose, "
    "or are another rule's",
    thresholds={
        "times": Threshold(2, "once may be a checkpoint that is loaded on purpose"),
        "without": Threshold(3, "where weights change between all steps that is the method of training"),
    },
    cost="eight elements of three tensors per update",
    needs=(Probe.WEIGHTS_KEPT,),
    cause="an average of the weights, or another copy, is swapped in for the evaluation and not swapped back: what was "
    "trained is overwritten",
    fix="keep a copy of the trained weights, and put it back after evaluating",
    meant="a step of the method at that time: Switch EMA, pruning, a federated round, noise",
    refuted_by="the same weights before and after",
    explains=("loss-spike", "loss-plateau", "update-not-as-predicted", "weights-never-change"),
)


EVALUATED_IN_TRAINING_MODE = Rule(
    "statistics-from-evaluation",
    FAMILY,
    detects="Passes without gradients, in training mode, of a model with batch norm: its statistics follow their data.",
    equation=r"\hat\mu \leftarrow (1 - m)\, \hat\mu + m\, \mu_{\text{evaluated}}",
    source="documentation of torch.nn.BatchNorm1d: statistics are kept in training mode, with gradients or without",
    threshold="{passes:g} forward passes or more without gradients in a row, in training mode, at {times:g} places "
    "between updates, which are no more than one in {every:g}, and never one in evaluation mode; nobody means it where "
    "a loss is formed of each",
    thresholds=SEVERAL,
    cost="a count",
    needs=(Probe.EVENTS, Probe.MODES),
    cause="an evaluation without model.eval()",
    fix="model.eval() before evaluating, model.train() after",
    meant="batches' own statistics in use: generators, meta-learning, test-time adaptation",
    refuted_by="model.training False in these passes",
)


AVERAGE_WITHOUT_STATISTICS = Rule(
    "average-without-statistics",
    FAMILY,
    detects="An average of the weights whose batch norms keep the statistics that they began with.",
    equation=r"\bar\theta_t = d\, \bar\theta_{t-1} + (1 - d)\, \theta_t,\; \bar\mu_t = \bar\mu_0",
    source="Izmailov et al. 2018, section 3.2, arXiv:1803.05407; documentation of torch.optim.swa_utils.update_bn",
    threshold="exact: a copy of the model whose weights have moved towards the model's and whose buffers are as they "
    "were, though "
    "the model's have moved, at {looks:g} looks in a row from step {steps:g} on; not torch's AveragedModel, which has "
    "update_bn",
    thresholds={
        "looks": Threshold(2, "once may be between two copies"),
        "steps": Threshold(20, "a copy is made now and then, not at every step"),
    },
    cost="one walk over the objects of this process at the first step, of models with batch norm alone",
    needs=(Probe.PARAMETERS, Probe.MODES),
    cause="an average over parameters() alone: running means and variances are buffers",
    fix="copy or average buffers() too, or measure them anew (update_bn) before the average is used",
    meant="an average whose statistics are measured before it is used, or a teacher in training mode",
    refuted_by="a running mean of the average that moves",
)


@on_step(AVERAGE_WITHOUT_STATISTICS, asks="sampled")
def parameters_alone(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, model = AVERAGE_WITHOUT_STATISTICS, watched.info.model
    if not record.sampled or not watched.info.batch_norms or watched.info.sharded:
        return
    if history.copies is None:
        history.copies = _copies(watched)
    elif record.number >= rule["steps"]:
        stale = any(copy.follows_without_statistics(model) for copy in history.copies)
        if history.in_a_row(rule.slug, stale) == rule["looks"]:
            norms = watched.info.batch_norms
            yield rule.finding(
                severity="warning",
                step=record.number,
                where=f"the average's {norms[0]}",
                says=f"a copy of the model follows its weights, as an average does, but the running statistics of its "
                f"{len(norms)} "
                "batch norms are still those it began with, where the model's have moved: in use it normalises by "
                "stale "
                "numbers.",
                sure=0.8,
                evidence={"norms": len(norms)},
            )


def _copies(watched: Watched) -> list[WeightCopy]:
    """Those that no optimizer trains."""
    from torch import nn

    from limpid.doctor.alive import alive
    from limpid.doctor.other_optimizers import held_by, other_optimizers
    from limpid.doctor.weight_copies import WeightCopy, copies_of

    model = watched.info.model
    found = copies_of(model, alive(nn.Module))
    held = held_by(other_optimizers(())) if found else set()
    return [WeightCopy.of(one, model) for one in found if not any(id(p) in held for p in one.parameters())]


@on_step(EVALUATION_CHANGES_WEIGHTS)
def left_in_place(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = EVALUATION_CHANGES_WEIGHTS
    if record.moved_since is None:
        return
    if not record.after_evaluation:
        history.steps_apart.update([record.moved_since])
        return
    put_back = record.began_before is not None  # to what they were before an update: a choice of the best
    again = history.in_a_row(rule.slug, record.moved_since and not put_back)
    method = history.steps_apart[True] > 0 or history.steps_apart[False] < rule["without"]
    if again >= rule["times"] and not method:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="model",
            says=f"training goes on with other weights after an evaluation than before it, {again} times in a row: "
            f"{history.steps_apart[False]} times without an evaluation they stayed as the update left them.",
            sure=0.85,
            evidence={"evaluations": again, "without": history.steps_apart[False]},
        )


@on_step(EVALUATED_IN_TRAINING_MODE)
def statistics_follow(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, passes = EVALUATED_IN_TRAINING_MODE, history.passes
    times, made = passes.several_in_a_row, len(history.rates)
    if any(micro.is_rewarded for micro in record.micros):  # a policy acts
        return
    if not passes.are_evaluations(made):
        return
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [
        name
        for name, module in watched.info.model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.training and module.momentum != 0
    ]
    made_without = sum(count for count, _ in passes.bursts)
    if norms:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=norms[0],
            says=f"{made_without} forward passes without gradients ran in training mode, {times} times several "
            f"in a row: {len(norms)} batch norms normalise by what they are given, and keep its mean and variance.",
            meant=None if passes.judged_in_training(made) else "",
            sure=0.9,
            evidence={"passes": made_without, "times": times, "norms": len(norms)},
        )
