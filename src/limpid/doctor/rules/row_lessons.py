"""What each row is taught, by class, by reward, by prompt: read from the gradient of its output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step
from limpid.doctor.rules.arguments import found

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "row_lessons"
IGNORED = -100
NEEDS = (Probe.LOSS_GRADIENT, Probe.BATCH)
COST = "the gradient of the outputs, in the first steps and every 50th"
REWARDS = ("advantages", "advantage", "rewards", "reward", "returns")
ACTIONS = ("actions", "action", "answers", "choices")
PROMPTS = ("prompts", "prompt_ids", "groups", "states")

CLASS_WITHOUT_GRADIENT = Rule(
    "class-without-gradient",
    FAMILY,
    detects="A class none of whose rows teaches anything, whatever the model says of them.",
    equation=r"\partial L / \partial f(x_i) = 0 \text{ for all } i \text{ with } y_i = c",
    source="definition; Cortes & Vapnik 1995, eq. 10 (labels of -1 and 1)",
    threshold="exact: {rows:g} rows or more of a class, and not one with a gradient, while most of another class have "
    "one",
    thresholds={"rows": Threshold(24, "in a fresh model hardly all rows of a class keep a margin")},
    cost=COST,
    meant="one class alone that is learned, as the normal one of anomalies; a weight of 0 on purpose",
    needs=NEEDS,
    cause="labels of 0 and 1 where the loss expects -1 and 1, a weight of 0, or a mask",
    fix="labels as the loss defines them: of a hinge loss -1 and 1",
    refuted_by="one row of the class with a gradient",
    explains=("loss-plateau",),
)

CLASS_WEIGHTS_INVERTED = Rule(
    "class-weights-inverted",
    FAMILY,
    detects="Class weights that favour the frequent classes.",
    equation=r"w_c \propto f_c \text{ instead of } 1 / f_c",
    source="King & Zeng 2001, section 4.2, doi:10.1093/oxfordjournals.pan.a004868",
    threshold="weights, read from the gradient, that are alike within each class, differ {weights:g}-fold or more "
    "between classes, and rise with how frequent a class is, over frequencies that differ {share:g}-fold, of {rows:g} "
    "rows or more; or a pos_weight below 1 that is positives / negatives, of classes of which fewer than a quarter are "
    "positive, at three looks",
    thresholds={
        "weights": Threshold(1.5, "what is less hardly weighs"),
        "share": Threshold(2, "where classes are as frequent as each other there is nothing to weigh up"),
        "rows": Threshold(32, "frequencies are known to a sixth"),
    },
    cost=COST,
    meant="a false alarm that costs more than a miss",
    needs=(*NEEDS, Probe.ARGUMENTS),
    cause="weights in proportion to the counts of classes, not to their inverse",
    fix="weight = total / (classes * count)",
    refuted_by="a rare class whose rows weigh more",
)

REWARD_DESCENDED = Rule(
    "reward-descended",
    FAMILY,
    detects="A policy gradient with the wrong sign: what earned more is made rarer.",
    equation=r"\mathrm{corr}(A_i, -\partial L / \partial z_{i, a_i}) > 0",
    source="Williams 1992, eq. 2, doi:10.1007/BF00992696; Schulman et al. 2017, eq. 6, arXiv:1707.06347",
    threshold="a correlation of reward, or advantage, and of what raises the chosen action's logit below -{below:g} "
    "over "
    "{rows:g} rows or more, at {steps:g} read steps in a row",
    thresholds={
        "below": Threshold(0.5, "with 16 rows and no relation once in forty"),
        "rows": Threshold(16, "fewer agree by chance"),
        "steps": Threshold(2, "the later updates on a draw may have left it"),
    },
    cost=COST,
    needs=NEEDS,
    cause="a minus that is missing in the loss, or a ratio old/new where new/old is meant",
    fix="loss = -(log_prob * advantage).mean(); ratio = exp(new - old)",
    refuted_by="a positive correlation",
    explains=("gradient-ascent",),
)

BASELINE_OVER_PROMPTS = Rule(
    "baseline-over-all-prompts",
    FAMILY,
    detects="Advantages that tell prompts apart, not the answers to each: the baseline is taken over all of them.",
    equation=r"\mathrm{Var}_g(\bar A_g) / \mathrm{Var}(A) = 0 \text{ for } A_i = r_i - \bar r_{g(i)}",
    source="Shao et al. 2024, section 4.1.1, arXiv:2402.03300",
    threshold="means of groups carry more than {share:.0%} of the variance of the weights of answers, read from the "
    "gradient, "
    "at {steps:g} read steps in a row; of {groups:g} groups of {each:g} answers or more",
    thresholds={
        "share": Threshold(0.6, "of unrelated numbers in groups of four a quarter lies between groups"),
        "steps": Threshold(3, "once may be chance"),
        "groups": Threshold(3, "two means differ always"),
        "each": Threshold(4, "smaller groups have noisy means"),
    },
    cost=COST,
    meant="a baseline of the whole batch, as in REINFORCE++",
    needs=NEEDS,
    cause="the mean of the whole batch is subtracted where that of each prompt's answers is meant",
    fix="advantage = reward - mean over the answers to the same prompt",
    refuted_by="weights that add up to 0 in each group",
)


@on_step(CLASS_WITHOUT_GRADIENT, asks="row_gradients")
def classes_that_teach(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    labels = _classes(record)
    if labels is None or len(record.row_gradients) != 1:
        return
    _, gradient = record.row_gradients[0]
    if len(gradient) != len(labels):
        return
    taught = (gradient.reshape(len(gradient), -1) != 0).any(1)
    for label in labels.unique().tolist():
        here = labels == label
        history.class_rows[label][0] += int(here.sum())
        history.class_rows[label][1] += int((here & taught).sum())
    some = any(2 * with_ > rows for rows, with_ in history.class_rows.values())
    for label, (rows, with_) in history.class_rows.items():
        if some and with_ == 0 and rows >= CLASS_WITHOUT_GRADIENT["rows"]:
            yield CLASS_WITHOUT_GRADIENT.finding(
                severity="fault",
                step=record.number,
                where=f"class {label:g}",
                says=f"none of {rows} rows with the label {label:g} has a gradient, whatever the model says of them, "
                f"while those "
                "of other labels have: nothing is learned from this class.",
                evidence={"label": label, "rows": rows},
            )
            return


def _classes(record: StepRecord) -> Tensor | None:
    """One of a few labels for each row: the last tensor of a batch that is a pair or more."""
    import torch

    given = record.micros[0].given if len(record.micros) == 1 else None
    last = given[-1] if isinstance(given, tuple | list) and len(given) > 1 else None
    if not isinstance(last, torch.Tensor) or not last.ndim or last.numel() != len(last) or last.dtype == torch.bool:
        return None
    numbers = record.host(last)
    if numbers is None:
        return None
    labels = numbers.detach().flatten().float()
    if bool((labels == IGNORED).any()):
        return None
    return labels if 2 <= len(labels.unique()) <= 10 and bool((labels == labels.round()).all()) else None


@on_step(CLASS_WEIGHTS_INVERTED)
def weight_of_positives(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    yield from found(CLASS_WEIGHTS_INVERTED, record, history)


@on_step(CLASS_WEIGHTS_INVERTED, asks="downhill")
def weights_of_classes(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    import torch

    rule = CLASS_WEIGHTS_INVERTED
    for first in record.downhill[:1]:
        if first.ids is not None or first.misfit > 0.05 or first.shape[1] != 1 or not bool(first.labelled.all()):
            return
        taught, weight = first.taught.cpu(), first.weight.double().cpu()
        common = int(taught.mode().values)
        base = float(weight[taught == common].mean())
        for label in taught.unique().tolist():
            own = weight[taught == label] / base
            if len(own) > 1 and float(own.std()) > 0.03 * float(own.mean()):
                return  # rows are weighed one by one
            history.class_weights[label].append((len(own), float(own.mean())))
    counts = {label: sum(n for n, _ in each) for label, each in history.class_weights.items()}
    if len(counts) < 2 or sum(counts.values()) < rule["rows"] or not record.downhill:
        return
    order = sorted(counts, key=lambda label: counts[label])
    weights = torch.tensor([sum(n * w for n, w in history.class_weights[label]) / counts[label] for label in order])
    rises = bool((weights[1:] > 1.05 * weights[:-1]).all())
    wide = counts[order[-1]] >= rule["share"] * counts[order[0]] * (1 if len(counts) > 2 else 1.5)
    if rises and wide and float(weights[-1] / weights[0]) >= rule["weights"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="weights of classes",
            says=f"a row of class {order[0]}, the rarest ({counts[order[0]]} of {sum(counts.values())} rows), weighs "
            f"{float(weights[-1] / weights[0]):.1f} times less than one of class {order[-1]}, the most frequent "
            f"({counts[order[-1]]}): the rare class is ignored, the weights are the wrong way round.",
            sure=0.85,
            evidence={"counts": [counts[label] for label in order], "weights": [round(float(w), 4) for w in weights]},
        )


@on_step(REWARD_DESCENDED, BASELINE_OVER_PROMPTS, asks="row_gradients")
def policy_gradient(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What raises or lowers each chosen action, against what it earned and whose answer it is."""
    import torch

    given = record.micros[0].given if len(record.micros) == 1 else None
    if not isinstance(given, Mapping) or len(record.row_gradients) != 1:
        return
    logits, gradient = record.row_gradients[0]
    if gradient.ndim != 2 or gradient.shape[1] < 2:
        return
    chosen, earned, prompts = (_of_rows(record, given, names, len(gradient)) for names in (ACTIONS, REWARDS, PROMPTS))
    if chosen is None or earned is None:
        return
    index = chosen.long().clamp(0, gradient.shape[1] - 1)[:, None]
    push = -gradient.gather(1, index).squeeze(1).double()
    rule = REWARD_DESCENDED
    if len(push) >= rule["rows"] and float(push.std()) > 0 and float(earned.std()) > 0:
        correlation = float(torch.corrcoef(torch.stack([push, earned.double()]))[0, 1])
        rarer = float(push[earned > earned.mean()].mean()) < 0  # of what is imitated all is raised, the sure one less
        if history.in_a_row(rule.slug, rarer and correlation < -rule["below"]) == rule["steps"]:
            yield rule.finding(
                severity="fault",
                step=record.number,
                where="loss of the policy",
                says=f"actions that earned more are made rarer: reward and push on the chosen action's logit have a "
                f"correlation "
                f"of {correlation:.2f} over {len(push)} rows; the sign of the loss is the opposite of what is meant.",
                evidence={"correlation": correlation, "rows": len(push)},
            )
    if prompts is not None:
        weight = push / (1 - logits.double().softmax(1).gather(1, index).squeeze(1)).clamp(min=1e-6)
        yield from _between_prompts(weight, prompts, record, history)


def _between_prompts(weight: Tensor, prompts: Tensor, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = BASELINE_OVER_PROMPTS
    groups = [weight[prompts == prompt] for prompt in prompts.unique().tolist()]
    blocks = len(prompts) % len(groups) == 0 and bool(
        (prompts.view(len(groups), -1) == prompts.view(len(groups), -1)[:, :1]).all()
    )
    if len(groups) < rule["groups"] or not blocks or min(map(len, groups)) < rule["each"]:
        return
    total = float(weight.var(correction=0))
    means = sum(len(group) * float(group.mean() - weight.mean()) ** 2 for group in groups) / len(weight)
    share = means / total if total > 0 else math.nan
    if history.in_a_row(rule.slug, share > rule["share"]) == rule["steps"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="advantages",
            says=f"{share:.0%} of the variance of the answers' weights lies between prompts: an answer counts for how "
            f"easy its "
            "prompt is, not for how it compares with other answers to it; the baseline is the batch's mean.",
            sure=0.85,
            evidence={"share": share, "groups": len(groups)},
        )


def _of_rows(record: StepRecord, given: Mapping[str, Any], names: tuple[str, ...], rows: int) -> Tensor | None:
    """One number for each row, by the first of these names."""
    import torch

    held = next((given[name] for name in names if isinstance(given.get(name), torch.Tensor)), None)
    numbers = None if held is None or held.shape != (rows,) else record.host(held)
    return None if numbers is None else numbers.detach().float()
