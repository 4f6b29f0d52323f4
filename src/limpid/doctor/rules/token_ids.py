"""Token ids against the vocabulary: wrapped by a narrow type, or of another tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.rules.labels import NEAR_ALL
from limpid.doctor.weights import fresh_gains

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "token_ids"

NEVER_TAUGHT = Rule(
    "token-never-a-label",
    FAMILY,
    detects="A frequent token that is never a label, though those before and after it are: the model cannot say it.",
    equation=r"\#\{t : y_t = v\} = 0 \;\text{with}\; \#\{t : x_t = v\} \gg 0",
    source="definition; documentation of torch.nn.functional.cross_entropy (ignore_index)",
    threshold="of a next-token loss read in full, a token that makes up {share:.0%} of the text or more, at least "
    "{count:g} times, after {before:g} different tokens or more, in the main between two that are labels, where it "
    "is {only:.0%} of what is left out, and never one itself, while logits are below {logits:g}",
    thresholds={
        "share": Threshold(0.05, "a mark of structure or an unknown word is rarer, and may well be left out"),
        "count": Threshold(16, "a label left out here and there is no rule"),
        "logits": Threshold(20, "beyond, the gradient of a sure prediction underflows to the 0 of no label"),
        "before": Threshold(4, "a start of text follows an end, and a role its turn"),
        "only": Threshold(0.9, "where other tokens between two labels are left out too, it is by their place"),
    },
    cost="counts of an integer tensor, in the first steps and every 50th",
    meant="a token that is to be read and never said, as a blank or a separator",
    needs=(Probe.LOSS_GRADIENT,),
    cause="ignore_index is the id of a token of the text: 0 where there is no padding",
    fix="ignore_index=-100, and labels of -100 for what is not to be taught",
    refuted_by="one label with this id",
)

ONE_TOKEN_DOMINATES = Rule(
    "one-token-dominates",
    FAMILY,
    detects="A token that makes up most of the text, while most of the vocabulary never occurs: words that are "
    "unknown.",
    equation=r"\max_v f_v > \tfrac12,\; |\{v : f_v > 0\}| < V / 2",
    source="Zipf 1949: no word makes up a tenth of a text",
    threshold="more than {share:.0%} of all tokens but for padding, and fewer than {seen:.0%} "
    "of the "
    "table's rows ever looked up, of {times:g} tokens a row of the table or more",
    thresholds={
        "share": Threshold(0.5, "blanks of code are a third"),
        "seen": Threshold(0.5, "tables are padded by a few rows"),
        "times": Threshold(20, "by then a word of a tenth of the mean frequency is seen nine times in ten"),
    },
    cost="counts of an integer tensor, on sampled steps",
    meant="sequences that rest most of the time: events, music, boards, sensors",
    needs=(Probe.ROWS, Probe.PARAMETERS),
    cause="words that the vocabulary does not know become one unknown token: another tokenizer's file, case, or "
    "language",
    fix="look at what the ids spell; use the vocabulary that the text was meant for",
    refuted_by="a text of many words",
    explains=("loss-plateau", "nothing-learned"),
)

WRAPPED = Rule(
    "ids-wrapped",
    FAMILY,
    detects="Token ids cut to 8 or 16 bits: those above wrapped around.",
    equation=r"\max x \le 2^8 - 1 \;\text{or}\; 2^{16} - 1 \;\text{while}\; V > 2^8, 2^{16}",
    source="transformers#2825, LLM-Shearing#65",
    threshold="no id above 255 (or 65,535) where {expected:g} would be expected: under a Zipf law with V types the "
    "share above n is 1 - H(n)/H(V); with V {beyond:g} times the limit or more, and ids that come within {near:.0%} of "
    "it. A fault where more than {dense:.0%} of the ids below are used, else a warning",
    thresholds={
        "expected": Threshold(14, "e^-14 = 1e-6 is the chance of none"),
        "beyond": Threshold(1.25, "a vocabulary that hardly goes beyond is no evidence"),
        "near": Threshold(0.9, "a corpus of few low ids is another thing"),
        "dense": Threshold(0.5, "wrapped ids fill the type evenly"),
    },
    cost="one maximum per batch",
    meant="bytes or pixels in a table that has room for more",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.ROWS),
    explains=("vocabulary-mismatch",),
)

VOCABULARY_MISMATCH = Rule(
    "vocabulary-mismatch",
    FAMILY,
    detects="Ids of another tokenizer: trained weights that predict worse than chance.",
    equation=r"L_0 > \ln V \;\text{for loaded weights}",
    source="silnlp#1033, self-rag#91",
    threshold="weights whose gains are all trained, and a first loss more than {above:g} nat above ln V; a notice "
    "where V is below {words:g}",
    thresholds={
        "above": Threshold(0.1, "the mean of a hundred labels scatters by less around chance"),
        "words": Threshold(1000, "few words are the same in any text, and only follow one another otherwise"),
    },
    cost="none: first loss",
    meant="a trained body under a new vocabulary, a fresh head, or text of another kind",
    needs=(Probe.PARAMETERS, Probe.BACKWARD, Probe.LOSS_GRADIENT),
    cause="ids of another tokenizer, or weights in another layout than the code's",
    fix="the tokenizer that came with the weights; compare one text's loss with the published one",
)


@before_first_step(WRAPPED)
def wrapped(exam: Exam) -> Iterator[Finding]:
    table = exam.info.table_rows
    ids = [value for micro in exam.micros if micro.ids is not None for value in micro.ids.flatten().tolist()]
    if ids and table:
        yield from _wrapped(max(ids), len(ids), len(set(ids)), table, None)


@on_step(WRAPPED)
def wrapped_so_far(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rows, table = history.rows, watched.info.table_rows
    if table is None or not rows.arrays:
        return
    if rows.largest < 2**16 <= table or rows.largest < 2**8 <= table:
        if len(rows.types) < 70_000:
            for ids in rows.arrays:
                rows.types.update(ids.ravel().tolist())
        if record.number <= 200:
            yield from _wrapped(rows.largest, rows.tokens, len(rows.types), table, record.number)


def _wrapped(high: int, count: int, distinct: int, vocab: int, step: int | None) -> Iterator[Finding]:
    """No id above a type's maximum in many tokens, although the vocabulary goes on far beyond it."""
    for bits in (8, 16):
        limit = 2**bits
        if vocab <= limit * WRAPPED["beyond"] or high >= limit:
            continue
        # share of tokens above the limit in a Zipf law over V types: 1 - H(limit)/H(V)
        expected = count * (1 - (math.log(limit) + 0.577) / (math.log(vocab) + 0.577))
        if expected < WRAPPED["expected"] or high < limit * WRAPPED["near"]:
            return
        dense = distinct > WRAPPED["dense"] * min(limit, count / 4)
        yield WRAPPED.finding(
            severity="fault" if dense else "warning",
            step=step,
            where="inputs",
            says=f"no id above {limit - 1} in {count:,} tokens although the vocabulary has {vocab:,}: {expected:,.0f} "
            f"would be expected; ids were stored in {bits} bits and wrapped.",
            cause=f"tokens were written or read as uint{bits}",
            fix=f"store ids in {'16' if vocab <= 65536 else '32'} bits and read them with the same type",
            meant=None if bits == 16 else "",
            sure=0.95 if dense else 0.7,
            refuted_by=f"one id above {limit - 1}",
            evidence={
                "largest": high,
                "tokens": count,
                "distinct": distinct,
                "vocab": vocab,
                "expected_above": expected,
            },
        )
        return


@before_first_step(VOCABULARY_MISMATCH)
def worse_than_chance(exam: Exam) -> Iterator[Finding]:
    """Trained weights that predict worse than chance: the ids mean other words to them."""
    constant, gains = fresh_gains(exam.info)
    if not exam.loss_gradients or not gains or constant:
        return
    gradient = exam.loss_gradients[0]
    if not bool(gradient.labelled.any()) or gradient.misfit > 0.3 or gradient.ids is None:
        return
    seen, chance = gradient.mean_surprise, math.log(gradient.shape[-1])
    if seen > chance + VOCABULARY_MISMATCH["above"]:
        few = gradient.shape[-1] < VOCABULARY_MISMATCH["words"]
        yield VOCABULARY_MISMATCH.finding(
            severity="notice" if few else "warning",
            where="inputs",
            says=f"trained weights give a first loss of {seen:.2f} nats, above ln V = {chance:.2f}: they predict worse "
            "than chance.",
            cause="tuned on another text than before, it may be" if few else "",
            sure=0.5 if few else 0.8,
            refuted_by=f"a first loss well below {chance:.2f}",
            evidence={"first_loss": seen, "chance": chance},
        )


@on_step(ONE_TOKEN_DOMINATES, asks="sampled")
def mostly_one(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    from limpid.doctor.runs import Runs

    rule, table = ONE_TOKEN_DOMINATES, watched.info.table_rows
    if not record.sampled or not table or history.rows.measured:
        return
    for ids in record.token_ids:
        given = ids.detach().cpu()
        runs = Runs(given)
        padding = runs.commonest()
        inside = given[given != padding] if padding is not None and runs.is_padding(padding) else given
        history.token_counts.update(inside.flatten().tolist())
    total = sum(history.token_counts.values())
    if total < rule["times"] * table:
        return
    (token, count), seen = history.token_counts.most_common(1)[0], len(history.token_counts)
    if count > rule["share"] * total and seen < rule["seen"] * table:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=f"token {token}",
            says=f"token {token} is {count / total:.0%} of the text, and only {seen} of {table:,} ids ever occur: "
            f"most words share "
            "one id, as unknown ones do.",
            sure=0.7,
            evidence={"token": token, "share": count / total, "seen": seen, "table": table},
        )


@on_step(NEVER_TAUGHT, asks="downhill")
def never_taught(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    for first in record.downhill[:1]:
        sure = first.of_half or first.largest > NEVER_TAUGHT["logits"]
        if first.ids is None or not first.complete or sure or first.match(1)[0] < NEAR_ALL:
            continue
        ids, taught = first.ids.cpu(), first.taught_ids.cpu()[:, :-1]
        following, left_out = ids[:, 1:], taught < 0
        if not bool(left_out.any()):
            continue
        token = int(following[left_out].mode().values)
        here = following == token
        between = left_out[:, 1:-1] & ~left_out[:, :-2] & ~left_out[:, 2:]
        alone = here[:, 1:-1] & between
        count, before = int(here.sum()), len(ids[:, :-1][here].unique())
        often = count >= max(NEVER_TAUGHT["count"], NEVER_TAUGHT["share"] * here.numel())
        if (
            bool((here & ~left_out).any())
            or not often
            or before < NEVER_TAUGHT["before"]
            or 2 * int(alone.sum()) < count
            or int(alone.sum()) < NEVER_TAUGHT["only"] * int(between.sum())
        ):
            continue
        yield NEVER_TAUGHT.finding(
            severity="warning",
            step=record.number,
            where=f"token {token}",
            says=f"token {token} is {count / here.numel():.0%} of the text and never a label, where the tokens before "
            "and after it are: it is ignored by the loss, and the model is not taught to say it.",
            sure=0.9,
            evidence={"token": token, "count": count, "before": before},
        )
