"""Labels: which token each position is taught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.micro_batches import Micro
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "labels"
OFFSETS = (1, 0, 2, -1, 3, -2, 4, -3)
NEAR_ALL = Threshold(0.99, "a label in a hundred may be cut off or masked by another number")
ENOUGH = Threshold(8, "two tokens of a text are equal in a twentieth of the cases: all of eight by 3e-11")

NOT_SHIFTED = Rule(
    "labels-not-shifted",
    FAMILY,
    detects="The target of a position is its own input token: the model learns to copy.",
    equation=r"P(y_t = x_t) \ge 0.99,\; \text{chance}\; \textstyle\sum_v p_v^2",
    source="definition of next-token prediction; transformers#35066",
    threshold="a match of {match:.0%} with the own token and less with the next, on {labels:g} labels or more, where "
    "outputs depend on their own token; a notice where every position is labelled and outputs depend on later tokens. "
    "Nobody means it of fewer than {few:.0%} of the positions, nor of a model of what comes next",
    thresholds={
        "match": NEAR_ALL,
        "labels": ENOUGH,
        "few": Threshold(0.5, "what is chosen to be asked for is to be hidden: of masked words a seventh"),
    },
    cost="comparisons of two integer tensors",
    meant="an autoencoder, or a check that a model can copy at all",
    needs=(Probe.BATCH, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="labels are the inputs, not shifted by one; or words that were to be masked are not",
    fix="targets[t] = inputs[t + 1]: shift once, in the data or in the loss; give the model the masked ids",
    refuted_by="a match of 99 % with the next token",
    explains=("loss-below-floor", "not-causal", "loss-formula-unusual", "batch-repeats"),
)

MISALIGNED = Rule(
    "labels-misaligned",
    FAMILY,
    detects="Targets at another offset than the next token: shifted twice, backwards, or by the wrong axis.",
    equation=r"P(y_t = x_{t+k}) \ge 0.99 \;\text{for}\; k \neq 1",
    source="definition of next-token prediction",
    threshold="a match of {match:.0%} at an offset k within -3 … 4 and less at 1, on {labels:g} labels or more; a "
    "notice for k below -1",
    thresholds={"match": NEAR_ALL, "labels": ENOUGH},
    cost="comparisons of integer tensors",
    meant="a task of its own: to look several tokens ahead, or to give back the one before",
    needs=(Probe.BATCH, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="the labels are shifted the wrong way or by the wrong amount",
    fix="shift exactly once: models of transformers shift labels themselves",
    refuted_by="a match of 99 % with the next token",
    explains=("loss-formula-unusual", "loss-below-floor", "targets-unrelated"),
)

UNRELATED = Rule(
    "targets-unrelated",
    FAMILY,
    detects="Targets that are no shift of the inputs at all, although both are rows of the same vocabulary.",
    equation=r"\max_{|k| \le 4} P(y_t = x_{t+k}) < 0.5",
    source="definition of next-token prediction",
    threshold="a match below {match:.0%} at every offset, on {labels:g} labels or more: a fault where {other:.0%} of "
    "the targets are the next tokens of another row, a warning where the model calls itself one of language, more "
    "than {dense:.0%} of the positions have a label of the model's own vocabulary and no one token stands at "
    "{hidden:.0%} of them, else a notice: other objectives look like this",
    thresholds={
        "match": Threshold(0.5, "text repeats itself at one offset by a tenth or two"),
        "labels": Threshold(64, "a share of fewer scatters by more than a sixteenth"),
        "other": NEAR_ALL,
        "dense": Threshold(0.5, "masked language modelling labels a seventh"),
        "hidden": Threshold(0.5, "where most labels stand at one token, that is a mask: what it hides is taught"),
    },
    cost="comparisons of two integer tensors",
    meant="a task of its own on tokens: to sort, to turn round, to translate, to decipher",
    needs=(Probe.BATCH, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="another objective than the next token, or inputs and targets of different texts",
    fix="if this is a language model: take both from one row",
    refuted_by="a match of 99 % with the next token",
)


@before_first_step(NOT_SHIFTED, MISALIGNED, UNRELATED)
def alignment(exam: Exam) -> Iterator[Finding]:
    """Which input each position is taught: by the gradient where there is one, else by the labels themselves."""
    if exam.loss_gradients:
        first = exam.loss_gradients[0]
        yield from aligned(
            first,
            None,
            exam.info.is_decoder,
            own_token(exam, first) if copies(first) else None,
            next_given(exam.micros),
        )
        return
    for micro in exam.micros[:1]:
        if micro.ids is None or micro.labels is None or micro.ids.shape != micro.labels.shape:
            continue
        own = micro.shifted_by_model
        matches = {k: match(micro.ids, micro.labels, k - own) for k in OFFSETS}
        kept = {k: m for k, (m, n) in matches.items() if n}
        yield from _judged(kept, micro.labels.numel(), None, causal=exam.info.is_decoder)


@on_step(NOT_SHIFTED, MISALIGNED, UNRELATED, asks="downhill")
def alignment_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for gradient in record.downhill[:1]:
        given = next_given(record.micros)
        yield from aligned(gradient, record.number, watched.info.is_decoder, history.own_token, given)


def next_given(micros: Sequence[Micro]) -> bool:
    """Whether the labels of the batch are the next tokens already."""
    pairs = [(one.ids, one.labels) for one in micros if one.ids is not None and one.labels is not None]
    return any(x.shape == y.shape and x.ndim == 2 and match(x.cpu(), y.cpu(), 1)[0] >= NEAR_ALL for x, y in pairs)


def copies(gradient: LossGradient) -> bool:
    """Whether each position is taught its own input token."""
    own, count = gradient.match(0)
    return count >= ENOUGH and own >= NEAR_ALL > gradient.match(1)[0]


def own_token(exam: Exam, gradient: LossGradient) -> tuple[bool, bool, bool] | None:
    """Whether outputs depend on the input token at their own position, later and earlier ones; None where unknown.

    A decoder's own tokens are those beside the gradient.
    """
    call = exam.usual_call
    if call is None or gradient.ids is None or not exam.may_call:
        return None
    beside = gradient.ids
    ids = next((t for t in call.all_ids if t.cpu().equal(beside[: len(t), : t.shape[1]])), None)
    if ids is None or ids.shape[1] < 2:
        return None
    middle = ids.shape[1] // 2
    changed = ids.clone()
    changed[:, middle] = exam.other_ids(ids)[:, middle]
    first, again, other = (exam.logits(c) for c in (call, call, call.with_ids(changed, instead=ids)))
    if first is None or again is None or other is None or first.shape[:-1] != ids.shape or first.ne(again).any():
        return None
    moved = (other != first).any(-1)
    return bool(moved[:, middle].any()), bool(moved[:, :middle].any()), bool(moved[:, middle + 1 :].any())


def match(ids: Tensor, labels: Tensor, offset: int) -> tuple[float, int]:
    """Share of the labelled positions whose label is the input `offset` further on, and how many count."""
    length = min(ids.shape[1], labels.shape[1])
    first, last = max(0, -offset), min(length, length - offset)
    if last <= first:
        return 0.0, 0
    y, x = labels[:, first:last], ids[:, first + offset : last + offset]
    kept = y >= 0
    return (float((y == x)[kept].double().mean()), int(kept.sum())) if bool(kept.any()) else (0.0, 0)


def aligned(
    gradient: LossGradient,
    step: int | None,
    of_language: bool,
    own: tuple[bool, bool, bool] | None = None,
    shifted: bool = False,
) -> Iterator[Finding]:
    """Alignment by the gradient: what was really taught, whatever the code looks like.

    `own`: see `own_token`; `shifted`: see `next_given`.
    """
    if gradient.ids is None or gradient.misfit_squashed > 0.5:
        return
    matches = {k: gradient.match(k) for k in OFFSETS}
    other = another_row(gradient.ids, gradient.taught_ids) if gradient.complete else None
    exact = gradient.misfit < 0.05  # other objectives teach no token in particular
    labelled = float(gradient.labelled.double().mean())
    given = gradient.ids[gradient.rows, gradient.positions][gradient.labelled]
    masked = float((given == given.mode().values).double().mean()) >= UNRELATED["hidden"] if len(given) else False
    dense = (
        of_language
        and exact
        and labelled > UNRELATED["dense"]
        and int(gradient.ids.max()) < gradient.shape[-1]
        and not masked
    )
    counted = {k: m for k, (m, n) in matches.items() if n >= ENOUGH}
    if own is not None and copies(gradient):
        if not own[0]:  # the model shifts what it is given: there is nothing to copy
            return
        if own[1] and labelled == 1 and not of_language:
            yield _rebuilt(int(gradient.labelled.sum()), step)
            return
    hidden = (
        own is not None and own[0] and labelled < NOT_SHIFTED["few"]
    )  # positions are asked for that show their answer
    reads_backwards = own is not None and own[2] and not own[1]  # by its own mask or order it is to tell what comes
    yield from _judged(
        counted, int(gradient.labelled.sum()), step, other, dense, of_language or reads_backwards or shifted or hidden
    )


def _rebuilt(labels: int, step: int | None) -> Finding:
    return NOT_SHIFTED.finding(
        severity="notice",
        step=step,
        where="targets",
        says=f"the target of each position is its own input token ({labels:,} labels), and outputs depend on the whole "
        "row: it is written again from what the model keeps of it.",
        cause="an autoencoder, it seems",
        fix="nothing, if that is meant; a model of language is taught the next token",
        sure=0.5,
        refuted_by="an output that depends on no later token",
        evidence={"labels": labels},
    )


def another_row(ids: Tensor, taught: Tensor) -> float | None:
    """Match with the next tokens of the best other row, if most rows have one to 99 %."""
    best = []
    for row in range(min(len(ids), 8)):
        kept = taught[row, :-1] >= 0
        if int(kept.sum()) < ENOUGH:
            continue
        shares = (ids[:, 1:][:, kept] == taught[row, :-1][kept]).double().mean(-1)
        shares[row] = 0
        best.append(float(shares.max()))
    return min(best) if len(best) > 1 and min(best) >= UNRELATED["other"] else None


def _judged(
    matches: dict[int, float],
    labels: int,
    step: int | None,
    other: float | None = None,
    dense: bool = False,
    causal: bool = False,
) -> Iterator[Finding]:
    """Findings from matches by offset.

    `other`: match with the best other row; `dense`: whether most have labels; `causal`: whether the next token is what
    is to be told: the model is called so, its outputs depend on earlier tokens and on no later ones, or the labels of
    the batch are the next tokens.
    """
    right = matches.get(1, 0.0)
    best = max(matches, key=lambda k: (matches[k], -abs(k - 1)), default=1)
    evidence = {f"match_at_{k}": round(m, 4) for k, m in matches.items()}
    if best != 1 and matches[best] >= NEAR_ALL and right < NEAR_ALL and labels >= ENOUGH:
        yield _shifted(best, matches[best], right, labels, step, evidence, causal)
    elif matches and max(matches.values()) < UNRELATED["match"] and labels >= UNRELATED["labels"]:
        where = "" if other is None else f", but the next tokens of another row ({other:.0%})"
        yield UNRELATED.finding(
            severity="fault" if other is not None else "warning" if dense else "notice",
            step=step,
            where="targets",
            says=f"the targets are no shift of the inputs of their row (best match "
            f"{max(matches.values()):.0%}){where}.",
            cause="" if other is None else "one side was shuffled or sorted without the other",
            meant="" if other is None else None,
            sure=0.6 if other is None else 1.0,
            evidence=evidence,
        )


def _shifted(
    best: int, share: float, right: float, labels: int, step: int | None, evidence: dict[str, float], causal: bool
) -> Finding:
    if best == 0:
        return NOT_SHIFTED.finding(
            severity="fault",
            step=step,
            where="targets",
            says=f"the target of each position is its own input token (offset 0: {share:.0%} of {labels:,} labels, the "
            f"next token: {right:.0%}): the model learns to copy.",
            meant=None if causal else "",
            evidence=evidence,
        )
    return MISALIGNED.finding(
        severity="fault" if best > -2 else "notice",  # to give back what was given a while ago is a task of its own
        step=step,
        where="targets",
        says=f"each position is taught the token {best:+d} places from it ({share:.0%} of {labels:,} labels), not the "
        f"next one ({right:.0%}).",
        cause="the labels are shifted twice: in the data and again in the loss" if best == 2 else "",
        meant=None if causal else "",
        evidence=evidence,
    )


def next_token_is_taught(exam: Exam) -> bool:
    """Whether each position is taught a token that lies after it, so that no output may see one.

    By the gradient where there is one; else by the labels; with no labels at all, when the model says so itself.
    """
    for gradient in exam.loss_gradients:
        if gradient.ids is not None:
            return max(gradient.match(k)[0] for k in (1, 2, 3)) >= 0.9
    for micro in exam.micros:
        if micro.ids is not None and micro.labels is not None and micro.ids.shape == micro.labels.shape:
            later = max(match(micro.ids, micro.labels, k)[0] for k in (1, 2, 3))
            own = match(micro.ids, micro.labels, 0)[0] >= NEAR_ALL and micro.shifted_by_model
            return later >= 0.9 or (own and exam.info.is_decoder)
    return exam.info.is_decoder


def later_by(exam: Exam) -> int:
    """How many positions after each its target stands: 1 of a model of the next token."""
    for gradient in exam.loss_gradients:
        if gradient.ids is not None:
            return max((1, 2, 3), key=lambda k: gradient.match(k)[0])
    return 1


def labelled_positions(exam: Exam, like: Tensor) -> Tensor:
    """Where an output of the probe has a label, (row, position), by the gradient; everywhere, where it says nothing."""
    import torch

    for gradient in exam.loss_gradients[:1]:
        taught = gradient.taught_ids
        if gradient.complete and taught.ndim == 2 and len(taught) >= len(like) and taught.shape[1] >= like.shape[1]:
            return (taught >= 0)[: len(like), : like.shape[1]].to(like.device)
    return torch.ones_like(like, dtype=torch.bool)
