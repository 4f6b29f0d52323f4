"""Rows among rows: an output that depends on the company, the number or the mere part of its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step
from limpid.doctor.rules.configuration import DROPOUT_IN_EVALUATION
from limpid.doctor.rules.leaks import BATCH_LEAKS, rows_meet
from limpid.doctor.rules.padding import MASK_INVERTED
from limpid.doctor.weights import rests_at_zero

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

FAMILY = "batch_axis"
UNBATCHED = "one sequence without an axis of the batch: its places, which are to see each other"
TIME_FIRST = "time along the first axis and the batch along the second, as torch.nn.RNN has them"

ROW_NUMBER_COUNTS = Rule(
    "row-number-counts",
    FAMILY,
    detects="Outputs that depend on the number of a row in its batch.",
    equation=r"f(P x) = P f(x) \text{ for a permutation } P \text{ of the rows}",
    source="definition; exact perturbation",
    threshold="rows moved on by one place whose outputs change by more than {share:.0%} of the largest, though copies "
    "in place of the other rows change nothing; a notice of a mixture of experts",
    thresholds={"share": BATCH_LEAKS["share"]},
    cost="nine forward passes of six rows, of 32 positions where that is enough, at the start and at steps 10, 40, …",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD),
    cause="a table of positions that is cut to the number of rows: x.size(0) where x.size(1) is meant, or batch and "
    "time "
    "exchanged",
    fix="cut positions along the axis of time, and ask for batch_first=True where rows come first",
    meant="members, tasks or environments with places of their own in the batch, or a state for each row",
    refuted_by="outputs that move with their rows",
    explains=("loss-plateau", "nothing-learned"),
    again=True,
)

POSITIONS_NOT_READ = Rule(
    "positions-not-read",
    FAMILY,
    detects="Positions of a sequence that its output does not depend on at all.",
    equation=r"\partial f / \partial x_t = 0",
    source="definition; exact perturbation",
    threshold="no output of any row changes by a bit when the value there is another row's, at more than {share:.0%} "
    "of "
    "the positions",
    thresholds={
        "share": Threshold(0.6, "who reads a window at the end reads what is recent; half and more is left out")
    },
    cost="a forward pass of six rows for each of up to 24 positions, at the start and at steps 10, 40, …",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD),
    cause="an axis that is taken for another (batch_first), a mask that hides the text, or a pooling of single "
    "positions",
    fix="see which axis each layer runs along, and what a mask's True means",
    meant="strided, masked or subsampled positions (MAE), a window at the end, an ablation",
    refuted_by="an output that moves",
    explains=("loss-plateau", "nothing-learned"),
    again=True,
)


@before_first_step(BATCH_LEAKS, ROW_NUMBER_COUNTS)
def in_company(exam: Exam) -> Iterator[Finding]:
    """A row among copies of itself, alone, and in another place."""
    probe, share = exam.row_probe, BATCH_LEAKS["share"]
    if probe.plain is None or probe.size == 0 or probe.dropped[0] > 0:
        return
    copies = probe.among_copies
    moves = copies <= share and probe.elsewhere > ROW_NUMBER_COUNTS["share"]
    if moves:
        yield ROW_NUMBER_COUNTS.finding(
            severity="notice" if exam.info.has_experts else "fault",
            where="model",
            says=f"the same rows in another order come out otherwise (by {probe.elsewhere:.0%} of the largest output), "
            "though what the other rows are changes nothing: outputs depend on the number of a row in its batch.",
            cause="experts with a capacity: who comes first finds room" if exam.info.has_experts else "",
            fix="nothing, if rows may compete; else more room for each expert" if exam.info.has_experts else "",
            evidence={"moved": probe.elsewhere, "among_copies": copies},
        )
    elif max(copies, probe.alone) > share:
        how = "among copies of itself" if copies > share else "in a batch of its own"
        yield BATCH_LEAKS.finding(
            severity="notice" if exam.info.has_experts or exam.info.norms_of_the_batch else "fault",
            where="model",
            says=f"a row comes out otherwise {how} than among the other rows of its batch (by "
            f"{max(copies, probe.alone):.0%} of the largest output), in evaluation mode: rows are mixed.",
            cause="batch norms that keep no running statistics: they take those of each batch, it seems on purpose"
            if exam.info.norms_of_the_batch
            else "a mean, variance, softmax, view or recurrence that runs across the rows (dim 0) instead of along "
            "each",
            meant=UNBATCHED if probe.of_single_values else TIME_FIRST if probe.along_time else rows_meet(exam),
            evidence={"among_copies": copies, "alone": probe.alone},
        )


@before_first_step(DROPOUT_IN_EVALUATION)
def dropped_in_evaluation(exam: Exam) -> Iterator[Finding]:
    """Outputs that are not token logits: dropout that is on in evaluation mode, by its own call."""
    if exam.plain is not None or exam.row_probe.plain is None:
        return
    moved, rates = exam.row_probe.dropped
    if moved > 0 and rates:
        yield DROPOUT_IN_EVALUATION.finding(
            severity="warning",
            where="model",
            says=f"in evaluation mode dropout of {max(rates):g} is on ({len(rates)} calls in a pass), and two "
            f"evaluations of the same rows differ by {moved:.0%} of the largest output.",
            evidence={"moved": moved, "p": max(rates), "calls": len(rates)},
        )


@before_first_step(POSITIONS_NOT_READ, MASK_INVERTED)
def all_positions(exam: Exam) -> Iterator[Finding]:
    """Which positions the outputs depend on, of text and of padding."""
    from limpid.doctor.runs import Runs

    read = exam.row_probe.read
    if read is None:
        return
    ids = None if exam.usual_call is None else exam.usual_call.ids
    edges = ~read & read if ids is None else Runs(ids[: len(read)].cpu()).at_edges()
    inside, of_text, of_padding = ~edges, read & ~edges, read & edges
    never = inside.any(0) & ~of_text.any(0)
    if (
        edges.sum() >= MASK_INVERTED["padding"]
        and of_padding.sum() > 0.5 * edges.sum()
        and (never | ~inside.any(0))[1:-1].all()
    ):
        yield MASK_INVERTED.finding(
            severity="fault",
            where="attention mask",
            says=f"outputs move with {int(of_padding.sum())} of {int(edges.sum())} positions of padding, and not by a "
            "bit with the text between the first token and the last: the mask is the wrong way round.",
            evidence={"padding_read": int(of_padding.sum()), "padding": int(edges.sum())},
        )
    elif int(never.sum()) > POSITIONS_NOT_READ["share"] * int(inside.any(0).sum()):
        where = [int(i) for i in (~never & inside.any(0)).nonzero()[:, 0]]
        yield POSITIONS_NOT_READ.finding(
            severity="warning",
            where="model",
            meant=None if exam.later and not where and not rests_at_zero(exam.info) else "",
            says=f"no output changes by a bit with what stands at {int(never.sum())} of {len(never)} positions; read "
            f"are {', '.join(map(str, where[:6])) or 'none'}.",
            evidence={"not_read": int(never.sum()), "positions": len(never)},
        )
