"""Padding: trained on, shown instead of the text, or hiding every end of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.rules.labels import next_token_is_taught
from limpid.doctor.runs import RUN, Runs

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "padding"

ALPHABET = Threshold(20, "rows of fewer symbols are no text that has an end: notes fall silent, a board is empty")

PADDING_TRAINED_ON = Rule(
    "padding-trained-on",
    FAMILY,
    detects="Padding among the labels: the loss is mostly about padding.",
    equation=r"\text{labels in runs of one token to the end of a row} / \text{labels} > 1\,\%",
    source="trl#976, transformers#23530",
    threshold="more than {share:.0%} of the labels, at least {labels:g} of them, in {rows:g} rows or more that end (or "
    "begin) in a run of {run:g} of the same token, or where the attention mask says padding; a fault above "
    "{fault:.0%}; a notice where neither mask nor model says what is padding and fewer than {words:g} different "
    "tokens are there",
    thresholds={
        "share": Threshold(0.01, "text repeats a token that long and to the end of a row less often than that"),
        "labels": Threshold(16, "four shortest runs"),
        "rows": Threshold(2, "one row may be odd text"),
        "run": RUN,
        "fault": Threshold(0.05, "enough to show in the loss"),
        "words": ALPHABET,
    },
    cost="one pass over an integer tensor",
    meant="rows that are to end in a filler which the model is to say itself, as of one fixed length",
    needs=(Probe.BATCH, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="padded positions have labels",
    fix="set labels of padding to -100 (all but the first, where it marks the end of a text)",
    refuted_by="labels below 0 at these positions",
)

MASK_INVERTED = Rule(
    "attention-mask-inverted",
    FAMILY,
    detects="An attention mask that shows the padding and hides the text.",
    equation=r"m_t = 1 \;\text{where } x_t \text{ is padding}",
    source="definition; conventions of transformers and torch.nn.MultiheadAttention",
    threshold="{share:.0%} of the runs of {run:g} or more of one token at the edges of rows are shown, {share:.0%} of "
    "the rest hidden, with {padding:g} positions of padding or more",
    thresholds={
        "share": Threshold(0.9, "a text may begin or end like its padding, and a mask hide a prompt"),
        "run": RUN,
        "padding": Threshold(8, "two shortest runs"),
    },
    cost="one pass over two integer tensors",
    needs=(Probe.BATCH, Probe.ARGUMENTS),
    cause="1 means 'attend' to models of transformers, 'ignore' to nn.MultiheadAttention's key_padding_mask",
    fix="mask = ids != pad, or ~mask",
    refuted_by="a mask that hides the padding",
    explains=(
        "padding-trained-on",
        "padding-counts",
        "end-never-a-label",
        "gradient-cut",
        "attention-row-sees-nothing",
        "epsilon-dominates",
        "not-finite",
    ),
)

END_NEVER_A_LABEL = Rule(
    "end-never-a-label",
    FAMILY,
    detects="The end of a text is never a label, so the model never learns to stop.",
    equation=r"\#\{t : y_t = \text{eos}\} = 0 \;\text{with ends in the batch}",
    source="transformers#22794, trl#1623",
    threshold="exact count: {rows:g} rows or more end in the same padding, and neither it nor a common last token "
    "before it that stands at ends alone, nor a token at which the model says it stops, is ever a label; a notice "
    "where "
    "fewer than {words:g} different tokens are there, the padding is not declared as an end, and last tokens differ",
    thresholds={
        "rows": Threshold(3, "two rows may share a last token by chance"),
        "words": ALPHABET,
    },
    cost="one pass over an integer tensor",
    meant="a model that need not stop: it is scored, or stopped by length",
    needs=(Probe.BATCH, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="padding and end of text share an id, and every one of them is masked",
    fix="label the first end token after each text, or give padding an id of its own",
    refuted_by="one label with this id",
)


@before_first_step(MASK_INVERTED)
def mask_inverted(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        ids, mask = micro.ids, micro.mask
        if ids is None or mask is None or mask.shape != ids.shape or mask.is_floating_point():
            continue
        ids, seen = ids.cpu(), mask.cpu().bool()
        edges = Runs(ids).at_edges()
        padding, text = int(edges.sum()), int((~edges).sum())
        shown, hidden = int((edges & seen).sum()), int((~edges & ~seen).sum())
        share = MASK_INVERTED["share"]
        if padding < MASK_INVERTED["padding"] or shown < share * padding or hidden < share * text:
            continue
        yield MASK_INVERTED.finding(
            severity="fault",
            where="attention mask",
            says=f"the attention mask shows {shown} of {padding} positions of padding and hides {hidden} of {text} of "
            "the text: it is the wrong way round.",
            meant=None if "attention_mask" in micro.given else "a mask that says where padding is, not what is seen",
            evidence={"padding": padding, "shown": shown, "text": text, "hidden": hidden},
        )


@before_first_step(PADDING_TRAINED_ON)
def trained_on(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        taught = None if micro.ids is None else _taught(exam, micro.ids, micro.labels)
        if micro.ids is not None and taught is not None:
            yield from _trained_on(micro.ids, taught, micro.mask, None, exam.loss_gradients, exam.info.paddings)


@on_step(PADDING_TRAINED_ON, asks="downhill")
def trained_on_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for first in record.downhill[:1]:
        if first.ids is not None and first.complete:
            mask = record.calls[0].mask if record.calls else None
            known = watched.info.paddings
            yield from _trained_on(first.ids, first.taught_ids, mask, record.number, record.downhill, known)


def _trained_on(
    ids: Tensor,
    taught: Tensor,
    mask: Tensor | None,
    step: int | None,
    gradients: list[LossGradient],
    declared: set[int],
) -> Iterator[Finding]:
    """Labels inside a run of one token that ends (or begins) a row, or that the attention mask calls padding."""
    rule, ids, taught = PADDING_TRAINED_ON, ids.cpu(), taught.cpu()
    if taught.shape != ids.shape or not bool((taught >= 0).any()):
        return
    runs = Runs(ids)
    token = runs.commonest()
    masked = mask is not None and mask.ndim == 2 and mask.shape == ids.shape and not bool(mask.bool().all())
    if not masked and (token is None or not runs.is_padding(token)):
        return
    padded = (ids != ids) if token is None else runs.taught_token(taught, token)
    rows = int(padded.any(1).sum())
    if masked and mask is not None:
        behind = _behind(mask) & (taught >= 0)
        padded |= behind
        rows = max(rows, int(behind.any(1).sum()))
    labels, count = int((taught >= 0).sum()), int(padded.sum())
    share = count / labels
    if rows < rule["rows"] or share <= rule["share"] or count < rule["labels"]:
        return
    evidence: dict[str, Any] = {"share": share, "rows": rows, "token": token, "labels": labels}
    known = masked or token in declared or len(ids.unique()) >= rule["words"]
    yield rule.finding(
        severity="notice" if not known else "fault" if share > rule["fault"] else "warning",
        step=step,
        where=f"{rows} rows",
        says=f"{share:.0%} of the labels are padding (id {token} repeated to the edge of {rows} rows)"
        f"{_split(gradients, taught, padded, evidence)}.",
        cause="" if known else "padding that has labels, or a symbol that rows of so few symbols end in",
        meant=None if masked else "",
        sure=0.95 if known else 0.5,
        evidence=evidence,
    )


def _behind(mask: Tensor) -> Tensor:
    """Positions that the mask hides, as it hides the position after them."""
    outside = ~mask.bool().cpu()
    behind = outside.clone()
    behind[:, :-1] &= outside[:, 1:]
    return behind


def _split(gradients: list[LossGradient], taught: Tensor, padded: Tensor, evidence: dict[str, Any]) -> str:
    """The loss on padding and on text, where the gradient tells."""
    for gradient in gradients[:1]:
        if gradient.complete and gradient.surprise.numel() == taught.numel():
            surprise, text = gradient.surprise.cpu().view(taught.shape), (taught >= 0) & ~padded
            on, off = float(surprise[padded].mean()), float(surprise[text].mean()) if bool(text.any()) else math.nan
            evidence |= {"loss_on_padding": on, "loss_on_text": off}
            return f"; their loss is {on:.2f}, that of the text {off:.2f} nats"
    return ""


@before_first_step(END_NEVER_A_LABEL)
def end_never_a_label(exam: Exam) -> Iterator[Finding]:
    for micro in exam.micros[:1]:
        if micro.ids is None or not next_token_is_taught(exam):
            continue
        taught = _taught(exam, micro.ids, micro.labels)
        if taught is not None and taught.shape == micro.ids.shape:
            learned = set(taught.unique().tolist())
            if not learned & exam.chat_form.ends:
                yield from _endless(micro.ids.cpu(), taught.cpu(), exam.info.declared("eos_token_id"))


def _endless(ids: Tensor, taught: Tensor, declared: object) -> Iterator[Finding]:
    """Texts that end inside their rows, in padding, without a token for the end that is ever a label."""
    runs = Runs(ids)
    ended = []  # the padding that a row ends in, and its last token before
    for row, labels, run in zip(ids, taught, runs.after, strict=True):
        if 2 <= run < len(row) and bool((labels >= 0).any()):
            ended.append((int(row[-1]), int(row[len(row) - run - 1])))
    padding, last = {pad for pad, _ in ended}, {token for _, token in ended}
    if len(ended) < END_NEVER_A_LABEL["rows"] or len(padding) != 1:
        return
    (pad,) = padding
    if int((taught == pad).sum()) or not runs.is_padding(pad):
        return
    if len(last) == 1 and bool((taught == next(iter(last))).any()) and not _inside(ids, next(iter(last)), pad):
        return  # an end of its own, and it is learned
    known = isinstance(declared, int) and declared == pad
    uneven = len((taught >= 0).sum(1).unique()) > 1  # else what is generated has a length, and needs no end
    common = len(last) == 1 or len(ids.unique()) >= END_NEVER_A_LABEL["words"]
    yield END_NEVER_A_LABEL.finding(
        severity="warning" if known or common else "notice",  # rows of a few symbols may be cut anywhere
        where=f"token {pad}",
        says=f"{len(ended)} texts end in padding (id {pad}), and neither that id nor another end of text is ever a "
        "label: the model cannot learn to stop.",
        cause="" if known or len(last) > 1 else "the end of text is masked",
        meant=None if known and uneven else "",
        sure=0.95 if known else 0.8,
        evidence={"token": pad, "texts": len(ended)},
    )


def _inside(ids: Tensor, token: int, pad: int) -> bool:
    """Whether a token stands before others of the text too, and so marks no end of it."""
    return bool(((ids[:, :-1] == token) & (ids[:, 1:] != pad) & (ids[:, 1:] != token)).any())


def _taught(exam: Exam, ids: Tensor, labels: Tensor | None) -> Tensor | None:
    """What each position is taught, (row, position); negative where nothing."""
    for gradient in exam.loss_gradients[:1]:
        if gradient.complete and gradient.ids is not None and gradient.ids.shape == ids.shape:
            return gradient.taught_ids.cpu()
    return labels
