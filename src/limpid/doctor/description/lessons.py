"""What is taught: labels as the gradient of the loss shows them, and the loss itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_inputs, row_targets
from limpid.doctor.description.couplings import told as couplings
from limpid.doctor.description.examples import examples
from limpid.doctor.description.given_labels import given_labels
from limpid.doctor.description.words import counted, number, share, span
from limpid.doctor.loop_facts import ALIKE, FITS, OFFSETS

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

EVEN = 0.02
"""Scatter of what labels weigh, relative, below which they weigh alike."""
SHOWN, LINES, LETTERS = 14, 3, 160
"""Most tokens of an example in a line, and lines; most letters of one as text."""


def labels(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Which positions or rows are taught, what, and one row as an example."""
    read = record.taught
    yield from () if record.soft is None else record.soft.told(record)
    if not read or (read[0].ids is None and not _is_of_logits(read)):
        yield from _targets(record)
        yield from examples(record)
        yield from history.so_far.choices.told()
        return
    rows = sum(one.shape[0] for one in read)
    positions = sum(len(one.weight) for one in read)
    labelled = sum(int(one.labelled.sum()) for one in read)
    classes = counted(read[0].shape[-1], "class", "classes")
    if read[0].ids is None:
        yield f"{classes}; {number(labelled)} of {number(positions)} outputs have a label ({number(rows)} rows)"
        taught = torch.cat([one.taught[one.labelled] for one in read])
        if len(taught):
            values, counts = taught.unique(return_counts=True)
            yield f"{number(len(values))} different labels; the commonest, {int(values[counts.argmax()])}, at " + share(
                float(counts.max()) / len(taught)
            )
        yield from history.so_far.taught.told()
        yield from given_labels(record, read)
        yield from _row_and_class(watched, record, read)
        yield from history.so_far.choices.told()
        return
    yield f"{classes}; {share(labelled / max(1, positions))} of the positions are taught a token"
    offset = next((k for k in OFFSETS if min(one.match(k)[0] for one in read) >= ALIKE), None)
    yield f"a position is taught {_which(offset) if offset is not None else _at_no_place(read)}"
    yield from _places(read)
    yield from given_labels(record, read)
    yield from _directions(read)
    yield from _example(watched, read[0])


def _at_no_place(read: Sequence[LossGradient]) -> str:
    """How often it is nevertheless one of the nearest inputs, beside how often two inputs of a row are equal."""
    near = {"its own token": 0, "the next": 1, "the one before": -1}
    often = {name: min(one.match(offset)[0] for one in read) for name, offset in near.items()}
    said = ", ".join(f"{name} in {share(part)}" for name, part in often.items())
    return f"a token of no fixed place in its inputs ({said} of the positions)"


def _which(offset: int) -> str:
    return {0: "its own token", 1: "the next token of its row"}.get(offset, f"the input {offset} places on")


def _places(read: Sequence[LossGradient]) -> Iterator[str]:
    firsts, lasts, counts = [], [], []
    for one in read:
        for row in one.rows.unique().tolist():
            at = one.positions[one.labelled & (one.rows == row)]
            counts.append(len(at))
            if len(at):
                firsts.append(int(at.min()))
                lasts.append(int(at.max()))
    if not firsts:
        yield "no row has a label"
        return
    none = sum(not count for count in counts)
    also = f"; {counted(none, 'row')} of {number(len(counts))} {'has' if none == 1 else 'have'} none" if none else ""
    yield (
        f"labels of a row begin at position {span(firsts)} and end at {span(lasts)}, {span(counts)} of "
        f"{number(max(one.shape[1] for one in read))} positions{also}"
    )


def _is_cross_entropy(read: Sequence[LossGradient]) -> bool:
    return max(one.misfit for one in read) < FITS


def _is_of_logits(read: Sequence[LossGradient]) -> bool:
    """Whether outputs are scores of classes: the gradient is that of a cross-entropy, of them or of them squashed."""
    return _is_cross_entropy(read) or bool(read[0].squashed) or bool(read[0].smoothing)


def _directions(read: Sequence[LossGradient]) -> Iterator[str]:
    """Of several passes, which make their labels likelier and which less likely."""
    if len({one.inverted for one in read}) > 1:
        ways = ", ".join(f"{i + 1} {'less likely' if one.inverted else 'likelier'}" for i, one in enumerate(read))
        yield f"by forward pass the update makes its labels: {ways}"


def _example(watched: Watched, one: LossGradient) -> Iterator[str]:
    """The first row with a label: what is read, and what of it is learned."""
    if one.ids is None or not one.complete:
        return
    taught = one.taught_ids
    row = next((r for r in range(len(taught)) if bool((taught[r] >= 0).any())), None)
    if row is None:
        return
    given, learned = one.ids[row], taught[row]
    form = watched.chat_form if watched.tokenizer is not None else None
    if form is not None:
        yield f"row {row} reads «{_cut(form.text(given.tolist()))}»"
        parts = ["".join(_cut(form.text(run))) for run in _runs(learned)]
        yield f"and learns {' … '.join(f'«{part}»' for part in parts[:4])}"
        return
    for start in range(0, min(len(given), SHOWN * LINES), SHOWN):
        part, said = given[start : start + SHOWN].tolist(), learned[start : start + SHOWN].tolist()
        name = f"row {row} reads" if not start else f"from {start:>6}"
        yield f"{name}  {' '.join(f'{token:>4}' for token in part)}"
        yield f"and learns    {' '.join('   ·' if token < 0 else f'{token:>4}' for token in said)}"


def _row_and_class(watched: Watched, record: StepRecord, read: Sequence[LossGradient]) -> Iterator[str]:
    """The first rows with what each is taught, where they are of tokens and have one class for each output."""
    ids = record.token_ids[0] if record.token_ids else None
    first = [one for one in read if len(one.weight) == len(ids)] if ids is not None else []
    if ids is None:
        yield from _measured_row_and_class(record, read)
    for row in range(min(3, len(ids)) if ids is not None and first else 0):
        given = [] if ids is None else ids[row].tolist()
        text = f"«{_cut(watched.chat_form.text(given))}»" if watched.tokenizer is not None else _numbers(given)
        yield f"row {row}, {text}, is taught {', '.join(str(int(one.taught[row])) for one in first)}"


def _measured_row_and_class(record: StepRecord, read: Sequence[LossGradient]) -> Iterator[str]:
    """The same of rows of measured numbers."""
    given = row_inputs(record)
    if given is None or given.ndim != 2 or len(record.calls) != 1 or len(given) != len(read[0].taught):
        return
    for row in range(min(3, len(given))):
        values = " ".join(f"{float(x):.3g}" for x in given[row, :SHOWN])
        more = " …" if given.shape[1] > SHOWN else ""
        yield f"row {row}, {values}{more}, is taught {int(read[0].taught[row])}"


def _numbers(given: Sequence[int]) -> str:
    return " ".join(map(str, given[:SHOWN])) + (" …" if len(given) > SHOWN else "")


def _cut(text: str) -> str:
    shown = text.replace("\n", "⏎")
    return shown if len(shown) <= LETTERS else f"{shown[: LETTERS // 2]} … {shown[-LETTERS // 2 :]}"


def _runs(learned: Tensor) -> list[list[int]]:
    """Tokens that are learned, each stretch of positions by itself."""
    runs: list[list[int]] = [[]]
    for token in learned.tolist():
        if token >= 0:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _targets(record: StepRecord) -> Iterator[str]:
    """Of a loss that is not read from logits."""
    target = row_targets(record)
    if target is None:
        return
    x = target.double()
    shape = " × ".join(map(number, target.shape))
    yield f"targets: {shape}, {float(x.min()):.3g} to {float(x.max()):.3g}, mean {float(x.mean()):.3g}, deviation " + (
        f"{float(x.std(correction=0)):.3g}"
    )


def loss(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Its value, its formula, how it is reduced, what each label weighs."""
    functions = sorted({str(name) for name, *_ in (*record.means, *record.shares)})
    if record.loss is not None:
        by = f", by {', '.join(functions)}" if functions else ""
        yield f"{record.loss:.4g}{by}"
    if record.ways is not None:
        yield from record.ways.parts(record.scale_of_loss, record.loss)
        yield from couplings(record.ways.couplings, record)
    yield from itertools.chain.from_iterable(one.told(record, history.so_far.taught.counts) for one in record.into_loss)
    if record.metrics:
        yield "logged beside it: " + ", ".join(
            f"{name} {value:.4g}" for name, value in list(record.metrics.items())[:8]
        )
    read = record.taught
    if not read:
        return
    one = read[0]
    if one.inverted:
        yield "its gradient points uphill"
    exact = _is_cross_entropy(read)
    if one.squashed:
        yield f"its gradient is that of a cross-entropy of a {one.squashed} of the outputs"
    elif exact or one.ids is not None or record.class_labels or "cross_entropy" in functions:
        extra = f", of labels smoothed by {one.smoothing:.3g}" if one.smoothing else ""
        what = f"a cross-entropy of the outputs{extra}" if exact else "not that of a cross-entropy of the outputs alone"
        yield f"its gradient is {what}"
    if not exact or not record.all_passes_read:
        return
    total = record.sum_of_weights
    count = sum(each.labels for each in read)
    if math.isclose(total, 1, rel_tol=0.02):
        how = f"a mean over {counted(count, 'label')}"
    else:
        how = f"{total:.4g} times their mean ({counted(count, 'label')}; their sum would be {number(count)} times)"
    uneven = unevenness(read)
    yield f"{how}; labels weigh {'alike' if uneven < EVEN else f'unevenly: deviation {uneven:.2f} of their mean'}"
    if uneven >= EVEN:
        yield from _weights_by_part(read)
    surprise = sum(float(each.surprise[each.labelled].sum()) for each in read) / max(
        1, sum(int(each.labelled.sum()) for each in read)
    )
    yield f"{surprise:.3g} nats a label; {math.log(one.shape[-1]):.3g} would be a guess among all classes"


def unevenness(read: Sequence[LossGradient]) -> float:
    """Deviation of the weights of all labels of a step over their mean, whichever pass they are of."""
    each = torch.cat([one.weight[one.labelled] for one in read]).double()
    return float(each.std(correction=0) / each.mean().abs().clamp(min=1e-300)) if len(each) else 0.0


def _weights_by_part(read: Sequence[LossGradient]) -> Iterator[str]:
    """What a label weighs in each pass, and each row in sum, where that explains why labels weigh unevenly."""
    means = [float(one.weight[one.labelled].mean()) for one in read if bool(one.labelled.any())]
    if len(means) > 1 and max(means) - min(means) > EVEN * max(means):
        shown = ", ".join(f"{mean:.3g}" for mean in means[:8])
        counts = ", ".join(number(one.labels) for one in read[:8])
        yield f"a label weighs by forward pass {shown}; these have {counts} labels"
    rows = [weight for one in read for weight in one.by_row()[1]]
    counts_of_rows = {count for one in read for count in one.by_row()[0]}
    if len(counts_of_rows) > 1 and max(rows) - min(rows) <= EVEN * max(rows):
        yield "rows weigh alike, however many labels they have"
