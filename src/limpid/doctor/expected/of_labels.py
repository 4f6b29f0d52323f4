"""What is taught, and the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from limpid.doctor.expected.key import Seen, is_amount, is_count, is_number, is_number_or_span, is_switch, key, one_of
from limpid.doctor.expected.of_data import first_call
from limpid.doctor.loop_facts import ALIKE, FITS, OFFSETS

if TYPE_CHECKING:
    from limpid.doctor.loss_gradient import LossGradient

MOST = 0.5
"""Share of labels from which on they are the next tokens of inputs that were changed here and there."""
NOTHING = 0.02
"""Unevenness below which labels weigh alike."""
WIDE = 0.15
"""Relative distance of a first loss from what was said: rows of a batch differ."""
SHARE = 0.05
"""The same of a share of positions, beside what so many of them scatter."""


@key(
    "labels",
    "taught",
    '"next token", "own token", "another token" or "class"',
    "what an output is taught: the next token of its row, the token at its place, one that stands at no fixed place of "
    "its row (masked words, translations), or one class for each row",
    one_of("next token", "own token", "another token", "class"),
    patience=2,
)
def taught(seen: Seen, said: Any) -> Any:
    read = exact(seen)
    if not read:
        return None
    if read[0].ids is None:
        return "class" if read[0].shape[1] == 1 else None
    if said == "next token" and min(one.match(1)[0] for one in read) > MOST:
        return said  # words of the inputs may be dropped or changed
    at = next((k for k in OFFSETS if min(one.match(k)[0] for one in read) >= ALIKE), None)
    return {None: "another token", 0: "own token", 1: "next token"}.get(at, f"the input {at} places on")


def readable(seen: Seen) -> list[LossGradient]:
    """What each forward pass was taught, where all of its outputs and nothing else were read: no chunks of a head."""
    read = seen.record.taught
    ids = [one for one in read if one.ids is not None]
    whole = all(one.complete and one.shape[:2] == one.ids.shape for one in ids if one.ids is not None)
    return read if whole and all(one.complete for one in read) else []


def exact(seen: Seen) -> list[LossGradient]:
    """The same where the loss is a cross-entropy of these outputs."""
    read = readable(seen)
    return read if read and max(one.misfit for one in read) < FITS else []


def _counts(seen: Seen) -> list[int]:
    """Labels of each row."""
    return [int((one.labelled & (one.rows == row)).sum()) for one in exact(seen) for row in one.rows.unique().tolist()]


@key(
    "labels",
    "labels_per_row",
    "a whole number, or [least, most]",
    "positions of a row that are taught",
    lambda value: is_count(value) or is_number_or_span(value),
    agrees=lambda said, seen: all(one == said if isinstance(said, int) else said[0] <= one <= said[1] for one in seen),
    patience=2,
)
def labels_per_row(seen: Seen, said: Any) -> Any:
    read = exact(seen)
    return None if not read or read[0].shape[1] < 2 else _counts(seen)


def _share_agrees(said: float, seen: tuple[float, int]) -> bool:
    share, count = seen
    return abs(share - said) <= SHARE + 3 * math.sqrt(said * (1 - said) / max(1, count))


@key(
    "labels",
    "labelled_share",
    "a number between 0 and 1",
    "share of the tokens that are taught, padding left out",
    lambda value: is_number(value) and 0 <= value <= 1,
    agrees=_share_agrees,
    patience=2,
)
def labelled_share(seen: Seen, said: Any) -> Any:
    read, call = exact(seen), first_call(seen)
    if len(read) != 1 or read[0].ids is None or call is None:
        return None
    mask = call.mask
    tokens = len(read[0].weight) if mask is None or mask.shape != read[0].ids.shape else int((mask != 0).sum())
    return int(read[0].labelled.sum()) / max(1, tokens), tokens


@key(
    "labels",
    "last_token_taught",
    "true or false",
    "whether the last token of a row, its end, is taught (to stop); false where it never is",
    is_switch,
    patience=2,
    settles=lambda said: () if said else ("stop-not-learned", "end-never-a-label"),
)
def last_token_taught(seen: Seen, said: Any) -> Any:
    read, call = exact(seen), first_call(seen)
    if len(read) != 1 or read[0].ids is None or call is None or read[0].match(1)[0] < ALIKE:
        return None
    ids, learned = read[0].ids, read[0].taught_ids
    if call.mask is None or call.mask.shape != ids.shape:
        return True if bool((learned[:, -2:] >= 0).any()) else None  # where rows end is not known
    lasts = [int(row.nonzero().max()) for row in call.mask if bool(row.any())]
    at_end = [bool(learned[row, last - 1] >= 0) for row, last in enumerate(lasts) if last > 0]
    return None if not at_end else any(at_end) if not said else sum(at_end) > len(at_end) / 2


@key("labels", "classes", "a whole number", "classes that an output chooses among", is_count)
def classes(seen: Seen, said: Any) -> Any:
    read = readable(seen)
    return read[0].shape[-1] if read else None


@key(
    "labels",
    "smoothing",
    "a number from 0 on",
    "ε of smoothed labels; 0 for none",
    is_amount,
    agrees=lambda said, seen: math.isclose(said, seen, rel_tol=0.05, abs_tol=1e-3),
)
def smoothing(seen: Seen, said: Any) -> Any:
    read = readable(seen)
    return float(read[0].smoothing) if read else None


@key("labels", "classes_mixed", "true or false", "whether a batch holds rows of several classes", is_switch, when="end")
def classes_mixed(seen: Seen, said: Any) -> Any:
    course = seen.course
    return None if course.batches < 4 else course.of_one_class < course.batches / 2


@key(
    "loss",
    "formula",
    '"cross-entropy"',
    "that the loss is a cross-entropy of the outputs, which makes its labels likelier",
    one_of("cross-entropy"),
    patience=2,
)
def formula(seen: Seen, said: Any) -> Any:
    read = readable(seen)
    if not read:
        return None
    if max(one.misfit for one in read) < FITS or bool(read[0].smoothing):
        return "uphill" if any(one.inverted for one in read) else "cross-entropy"
    squashed = read[0].squashed
    return f"of a {squashed} of them" if squashed else None  # a head in chunks has gradients like no loss


@key(
    "loss",
    "reduction",
    '"mean" or "sum"',
    "over all labels of an update: of a mean over rows of means say nothing",
    one_of("mean", "sum"),
    patience=2,
    settles=lambda said: ("loss-summed", "accumulation-not-divided") if said == "sum" else (),
)
def reduction(seen: Seen, said: Any) -> Any:
    read, record = exact(seen), seen.record
    if not read or not record.all_passes_read:
        return None
    total, count = record.sum_of_weights, sum(one.labels for one in read)
    unshifted = count / (count + sum(one.shape[0] for one in read))  # some count the labels before they are shifted
    if any(math.isclose(total, mean, rel_tol=0.03) for mean in (1, unshifted)):
        return "mean"
    if math.isclose(total, count, rel_tol=0.03):
        return "sum" if record.events.count("backward") == 1 else None  # gradients may be divided later
    return f"{total:.3g} times the mean"


@key(
    "loss",
    "label_weights",
    '"alike" or "uneven"',
    "whether all labels of an update count alike",
    one_of("alike", "uneven"),
    patience=2,
    settles=lambda said: ("passes-count-unequally",) if said == "uneven" else (),
)
def label_weights(seen: Seen, said: Any) -> Any:
    read = exact(seen)
    if not read or any(one.inverted for one in read):
        return None
    return "alike" if max(one.unevenness for one in read) < NOTHING else "uneven"


@key(
    "loss",
    "first_loss",
    "a number, or [low, high]",
    "the loss of the first step",
    is_number_or_span,
    agrees=lambda said, seen: (
        said[0] <= seen <= said[1] if isinstance(said, list) else abs(seen - said) <= WIDE * max(abs(said), 0.1)
    ),
    when="step",
    settles=lambda said: ("initial-loss-off",),
)
def first_loss(seen: Seen, said: Any) -> Any:
    return seen.course.first_loss if seen.record.number == 1 else None


@key(
    "loss",
    "last_loss",
    "a number, or [low, high]",
    "mean over the last tenth of the run: between two numbers, or below one",
    is_number_or_span,
    agrees=lambda said, seen: said[0] <= seen <= said[1] if isinstance(said, list) else seen <= said,
    when="end",
)
def last_loss(seen: Seen, said: Any) -> Any:
    losses = seen.history.losses.all
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if len(losses) >= 10 else None
