"""Answers in their rows: whether prompts are learned too, whether the stop is, and whose template wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.chat_form import ChatForm
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.learned import Learned
    from limpid.doctor.micro_batches import Micro
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "answer_mask"
LOOKED_AT = 20
"""Steps whose rows are all looked at; later ones are sampled."""
TWO_MAY = "two rows may be cut off alike"

PROMPT_LEARNED = Rule(
    "prompt-learned",
    FAMILY,
    detects="What users say is learned like what the model is to answer: the mask of the answers is full.",
    equation=r"m_t = 1 \;\text{at}\; x_t \in \text{prompt}",
    source="marin#7237, Megatron-Bridge#3359",
    threshold="exact: a token right after what begins a user's turn in the model's own template is learned, in more "
    "than "
    "{share:.0%} of the turns that the rows hold; or more than {share:.0%} of the positions that the batch calls "
    "prompt have a gradient, which nobody means unless it weighs less than {less:.0%} of the answers'",
    thresholds={
        "share": Threshold(0.5, "a text may quote a turn; a mask that is full has all of them"),
        "less": Threshold(0.7, "of an answer's weight: a mask that is not applied gives both the same"),
    },
    cost="one pass over integers, in the first steps and on sampled ones",
    needs=(Probe.BATCH, Probe.LOSS_GRADIENT),
    cause="a mask of assistant tokens that is empty or unknown to the template, and is replaced by ones; labels copied "
    "from inputs",
    fix="labels of -100 for all but the answers: render the conversation up to each answer and with it, and learn the "
    "difference",
    meant="whole conversations learned, both speakers' part, or prompts of a small weight",
    refuted_by="labels below 0 at what users say",
)

STOP_NOT_LEARNED = Rule(
    "stop-not-learned",
    FAMILY,
    detects="No answer teaches the token that ends it: the model never learns to stop.",
    equation=r"\#\{t : m_t = 1,\; x_t \in \text{eos}\} = 0",
    source="trl#5988, trl#1623; the model's own eos_token_id",
    threshold="of the answers seen so far none has a token among those learned at which generating stops, and "
    "{cut:g} or "
    "more are followed by one that is not learned, or {open:g} or more that are shorter than the longest are "
    "followed by nothing, and do not all end in one token",
    thresholds={
        "cut": Threshold(3, TWO_MAY),
        "open": Threshold(16, "were half of the answers to end, sixteen in a row would not by 1.5e-5"),
    },
    cost="one pass over integers, in the first steps and on sampled ones",
    needs=(Probe.BATCH,),
    cause="labels are masked wherever they are padding's id, which is the end's too; or no end was appended to answers",
    fix="append the token that ends an answer, and learn it: labels of -100 from the position after it on",
    meant="answers of one length, an end mark of the data's own, or text cut from longer ones",
    refuted_by="one label that is a token at which generating stops",
    explains=("end-never-a-label", "broken-off-counted"),
)

TEMPLATE_MISMATCH = Rule(
    "template-mismatch",
    FAMILY,
    detects="Conversations in another form than the model's template: other marks, or its marks as plain characters.",
    equation=r"\text{marks}(x) \cap \text{marks}(\text{template}) = \emptyset",
    source="definition of a chat template: transformers, chat_templating",
    threshold="exact: {rows:g} rows or more whose text spells a mark of the template without its token; or that hold "
    "special tokens of the vocabulary which the template never writes, and no turn that begins as it writes it; a "
    "notice where prompts are masked and no turn begins so",
    thresholds={"rows": Threshold(2, "one row may be about templates")},
    cost="the text of eight rows, in the first steps",
    needs=(Probe.BATCH,),
    cause="text of one template is tokenized with special tokens split, or another model's template was applied",
    fix="tokenizer.apply_chat_template(messages), tokenized with add_special_tokens=False and special tokens known",
    meant="a form of one's own, with tokens for it, or texts about templates",
    refuted_by="rows that begin turns as the template does",
    explains=("prompt-learned", "stop-not-learned"),
)
ALL = (PROMPT_LEARNED, STOP_NOT_LEARNED, TEMPLATE_MISMATCH)


@before_first_step(*ALL)
def in_a_batch(exam: Exam) -> Iterator[Finding]:
    if not exam.info.translates:
        yield from _judged(exam.chat_form, exam.micros, {}, None)


@on_step(*ALL)
def in_a_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if (record.sampled or record.number <= LOOKED_AT) and not watched.info.translates:
        yield from _judged(watched.chat_form, record.micros, history.stops, record.number)


def _judged(form: ChatForm, micros: Sequence[Micro], stops: dict[str, int], step: int | None) -> Iterator[Finding]:
    from limpid.doctor.learned import learned_rows

    for micro in micros:
        for rows in learned_rows(micro):
            yield from _prompts(form, rows, step)
            if form.ends:
                _count_stops(form, rows, stops, drawn=micro.is_rewarded)
            if form.conversation and (step is None or step <= 3):
                yield from _template(form, rows, step)
    yield from _stops(stops, step)


def _prompts(form: ChatForm, rows: Learned, step: int | None) -> Iterator[Finding]:
    """Turns of users, by what begins them."""
    if not form.opening:
        return
    turns = [(row, place) for row, ids in enumerate(rows.ids) for place in _after(ids.tolist(), form.opening)]
    taught = sum(bool(rows.learned[turn]) for turn in turns)
    if turns and taught > PROMPT_LEARNED["share"] * len(turns):
        yield PROMPT_LEARNED.finding(
            severity="warning",
            step=step,
            where="labels",
            says=f"what users say is learned, too, in {taught} of {len(turns)} turns: {rows.learned.sum():,} of "
            f"{rows.real.sum():,} tokens have a label.",
            sure=0.9,
            evidence={"turns": len(turns), "learned": taught},
        )


def _after(ids: list[int], sequence: Sequence[int]) -> Iterator[int]:
    """Places right after each occurrence of a sequence."""
    size = len(sequence)
    for place in range(len(ids) - size):
        if ids[place : place + size] == list(sequence):
            yield place + size


@on_step(PROMPT_LEARNED)
def against_the_gradient(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A mask that the batch holds and the loss does not keep to."""
    from limpid.doctor.micro_batches import ANSWER_MASKS

    for micro, gradient in zip(record.micros, record.taught, strict=False):
        mask = micro.array(*ANSWER_MASKS)
        ids = gradient.ids
        if mask is None or ids is None or not gradient.complete or mask.shape != tuple(ids.shape):
            continue
        prompt = mask <= 0
        prompt[:, :-1] &= mask[:, 1:] <= 0  # the position before an answer predicts its first token
        prompt &= mask.cumsum(-1) == 0  # padding is another matter
        learned = gradient.labelled.view(ids.shape).cpu().numpy()
        count = int((learned & prompt).sum())
        if count > PROMPT_LEARNED["share"] * prompt.sum() > 0:
            weight = gradient.weight.view(ids.shape).cpu().numpy()
            answers = weight[learned & ~prompt]
            less = bool(answers.size) and weight[learned & prompt].mean() < PROMPT_LEARNED["less"] * answers.mean()
            yield PROMPT_LEARNED.finding(
                severity="fault",
                step=record.number,
                where="loss",
                says=f"{count:,} of {prompt.sum():,} positions that the batch's mask calls prompt have a gradient: the "
                + ("mask weighs them by less." if less else "mask is not applied."),
                cause="the loss is formed without the mask of the answers",
                fix="multiply each token's loss by the mask, and divide by its sum",
                meant="prompts of a smaller weight" if less else None,
                evidence={"positions": int(prompt.sum()), "learned": count},
            )


def _count_stops(form: ChatForm, rows: Learned, stops: dict[str, int], *, drawn: bool) -> None:
    import numpy as np

    ends = np.array(sorted(form.ends))
    longest = stops["longest"] = max(stops.get("longest", 0), int(rows.real.sum(-1).max()))
    for ids, learned, real in zip(rows.ids, rows.learned, rows.real, strict=True):
        if not learned.any():
            continue
        last = int(np.flatnonzero(learned)[-1])
        taught = bool(np.isin(ids[learned], ends).any())
        follows = last + 1 < len(ids) and int(ids[last + 1]) in form.ends
        alone = last + 1 == len(ids) or not real[last + 1] or len(set(ids[last + 1 :].tolist())) == 1
        ends_as_others = int(ids[last]) == stops.setdefault("end", int(ids[last]))
        others = last - int(np.flatnonzero(learned)[0]) != stops.setdefault(
            "size", last - int(np.flatnonzero(learned)[0])
        )
        counted = {
            "answers": 1,
            "uneven": others,
            "taught": taught,
            "cut": not taught and follows,
            "other": not ends_as_others,
        }
        counted["open"] = not taught and not follows and alone and last + 1 < longest and rows.has_prompts and not drawn
        for name, happened in counted.items():
            stops[name] = stops.get(name, 0) + int(happened)


def _stops(stops: dict[str, int], step: int | None) -> Iterator[Finding]:
    rule = STOP_NOT_LEARNED
    if not stops.get("answers") or stops["taught"]:
        return
    cut = stops["cut"]
    alone = stops["open"] if stops["other"] else 0  # all end in one token: an end of the data's own
    if cut >= rule["cut"] or alone >= rule["open"]:
        what = (
            f"{cut} of them are followed by one that has no label"
            if cut >= rule["cut"]
            else f"{alone} of them end without one"
        )
        yield rule.finding(
            severity="fault" if cut >= rule["cut"] else "warning",
            meant=None if cut >= rule["cut"] and stops["other"] and stops["uneven"] else "",
            step=step,
            where="labels",
            says=f"of {stops['answers']} answers none teaches a token at which generating stops, and {what}.",
            sure=1.0 if cut >= rule["cut"] else 0.9,
            evidence={name: stops[name] for name in ("answers", "cut", "open")},
        )


def _template(form: ChatForm, rows: Learned, step: int | None) -> Iterator[Finding]:
    rule, some = TEMPLATE_MISMATCH, [row[there].tolist() for row, there in zip(rows.ids, rows.real, strict=True)][:8]
    spelled = {
        mark: sum(id not in row and mark in form.text(row) for row in some)
        for mark, id in form.marks.items()
        if id != form.start and id not in form.ends
    }
    mark = max(spelled, key=lambda mark: spelled[mark], default="")
    if mark and spelled[mark] >= rule["rows"]:
        yield _other_form(
            "fault",
            step,
            f"{spelled[mark]} of {len(some)} rows spell {mark} in plain characters, not as the one token that it is: "
            "to the model they are no turns.",
            {"rows": len(some), "spelled": spelled[mark]},
            1.0,
            None if spelled[mark] == len(some) else "",
        )
        return
    if any(True for row in some for _ in _after(row, form.opening)) or len(some) < rule["rows"]:
        return
    own = {*form.conversation, *form.ends, form.start}
    strange = [id for id in form.special.values() if id not in own and all(id in row for row in some)]
    named = {id: word for word, id in form.special.items()}
    padded = {row[-1] for row in some} | {row[0] for row in some}
    strange = [id for id in strange if id not in padded]
    if strange:
        yield _other_form(
            "fault",
            step,
            f"rows hold {', '.join(named[id] for id in strange[:3])}, which the model's template never writes, and no "
            "turn that begins as it does: it is another form.",
            {"rows": len(some)},
            0.9,
        )
    elif rows.has_prompts:
        yield _other_form(
            "notice",
            step,
            f"no turn of {len(some)} rows begins as the model's chat template writes it: talked to by that template, "
            "the model gets prompts that it was not tuned on.",
            {"rows": len(some)},
            0.5,
        )


def _other_form(
    severity: str, step: int | None, says: str, evidence: dict[str, int], sure: float, meant: str | None = ""
) -> Finding:
    return TEMPLATE_MISMATCH.finding(
        severity=severity,  # type: ignore[arg-type]
        step=step,
        where="rows",
        says=says,
        meant=meant,
        sure=sure,
        evidence=evidence,
    )
