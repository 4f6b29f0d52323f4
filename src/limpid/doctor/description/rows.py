"""How rows of tokens begin and end, what separates what is in them, and whether they come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.words import counted, number, share, span

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.row_history import RowHistory
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

COMMON = 0.5
"""Share of the rows from which on the token at their ends is told."""
FEW = 4
"""Different tokens at the ends of rows that are all told."""
FILLED = 0.25
"""Share of the rows that end in a repeated token from which on it is taken for padding."""
KINDS = 64
"""Different tokens at an end of which counts are kept."""


@dataclass
class Ends:
    """The tokens that rows of the run began and ended with."""

    rows: int = 0
    first: Counter[int] = field(default_factory=Counter)
    last: Counter[int] = field(default_factory=Counter)

    def take(self, record: StepRecord) -> None:
        """Add the rows of a step that is looked at."""
        if not record.sampled:
            return
        for ids, shown in zip(record.token_ids, masks(record), strict=True):
            begin, end = ends(ids, shown)
            self.rows += len(ids)
            for kept, at in ((self.first, begin), (self.last, end)):
                kept.update(ids.gather(1, at[:, None])[:, 0].tolist())
                if len(kept) > KINDS:
                    for token, _ in kept.most_common()[KINDS // 2 :]:
                        del kept[token]

    def told(self) -> Iterator[str]:
        """In a sentence."""
        said = []
        for how, kept in (("begin", self.first), ("end", self.last)):
            known = kept.most_common(FEW)
            if known and (len(kept) <= FEW or known[0][1] >= COMMON * self.rows):
                which = ", ".join(f"{token} ({share(times / self.rows)})" for token, times in known)
                said.append(f"{how} with {which}" + ("" if len(kept) <= FEW else " and others"))
        if said:
            yield f"rows {'; '.join(said)}; of {number(self.rows)} looked at"


def rows(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Lengths and ends of the rows of the first pass, what stands between documents, whether rows come again."""
    if record.token_ids:
        ids, shown = record.token_ids[0], masks(record)[0]
        yield from _lengths(ids, shown)
        yield from history.so_far.ends.told()
        yield from _last_label(ids, shown, record.taught)
        yield from _between(ids, shown, record, _separators(watched, history.so_far.ends))
    yield from _again(history.rows)


def ends(ids: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
    """Where the first and the last shown token of each row stand, (row,) each; 0 and the end of a row without any."""
    first = shown.int().argmax(1)
    return first, ids.shape[1] - 1 - shown.flip(1).int().argmax(1)


def before_ends(record: StepRecord) -> set[int]:
    """Tokens that stand in a row before its last one: those that something may be learned from."""
    found: set[int] = set()
    for ids, shown in zip(record.token_ids, masks(record), strict=True):
        before = shown & (torch.arange(ids.shape[1]) < ends(ids, shown)[1][:, None])
        found |= set(ids[before].unique().tolist())
    return found


def hidden_alone(record: StepRecord) -> set[int]:
    """Tokens that stand at places of padding and nowhere else."""
    seen, hidden = set(), set()
    for ids, shown in zip(record.token_ids, masks(record), strict=True):
        seen |= set(ids[shown].unique().tolist())
        hidden |= set(ids[~shown].unique().tolist())
    return hidden - seen


def masks(record: StepRecord) -> list[Tensor]:
    """Which tokens are text, (row, position) for each of the token ids: not hidden by a mask.

    Without a mask padding is a token that a quarter of the rows end in more than once, and no row in another one.
    """
    masks = [micro.mask for micro in record.micros if micro.ids is not None] if record.micros else []
    masks = masks or [call.mask for call in record.calls if call.ids is not None]
    masks += [None] * (len(record.token_ids) - len(masks))
    return [_shown(ids, mask, record) for ids, mask in zip(record.token_ids, masks, strict=False)]


def _shown(ids: Tensor, mask: Tensor | None, record: StepRecord) -> Tensor:
    on_host = None if mask is None or mask.shape != ids.shape else record.host(mask)
    if on_host is not None:
        return on_host != 0
    filler = ids[:, -1:]
    repeated = (ids == filler).flip(1).cumprod(1).flip(1).bool()
    alike = (repeated.sum(1) > 1) & (filler[:, 0] == filler[:, 0].mode().values)
    filled = int(alike.sum()) >= max(2, FILLED * len(ids)) and bool((alike | (repeated.sum(1) == 1)).all())
    return ~(repeated & alike[:, None]) if filled else torch.ones_like(ids, dtype=torch.bool)


def _lengths(ids: Tensor, shown: Tensor) -> Iterator[str]:
    """How long rows are where some are shorter than the batch, and at which end they are filled."""
    if bool(shown.all()):
        return
    lengths, width = shown.sum(1), ids.shape[1]
    first, last = ends(ids, shown)
    before, after = int((first > 0).sum()), int((last < width - 1).sum())
    sides = " and ".join(
        f"{counted(rows, 'row')} {where}" for rows, where in ((before, "before the text"), (after, "after it")) if rows
    )
    full = int((lengths == width).sum())
    also = f"; {counted(full, 'row')} of {len(ids)} fill all {number(width)} positions" if full else ""
    within = bool((lengths < last - first + 1).any())
    yield (
        f"rows have {span(lengths.tolist())} tokens that are not padding, mean {float(lengths.float().mean()):.3g}"
        + (f"; padded: {sides}" if sides else "")
        + (", some tokens within" if within else "")
        + also
    )


def _last_label(ids: Tensor, shown: Tensor, read: Sequence[LossGradient]) -> Iterator[str]:
    """Whether the last token of rows is learned, where it always or never is and stands before padding."""
    one = next(iter(read), None)
    if one is None or one.ids is None or not one.complete or one.ids.shape != ids.shape or bool(shown.all()):
        return
    taught, (_, last) = one.taught_ids, ends(ids, shown)
    known = [row for row in range(len(ids)) if int(last[row]) > 0 and bool((taught[row] >= 0).any())]
    end = [int(ids[row, last[row]]) for row in known]
    learned = [
        bool((taught[row, int(last[row]) - 1 : int(last[row]) + 1] == end[i]).any()) for i, row in enumerate(known)
    ]
    beyond = sum(bool((taught[row, int(last[row]) + 1 :] >= 0).any()) for row in known)
    if known:
        also = f"; {counted(beyond, 'row')} learn something after it" if beyond else ""
        yield f"the last token before padding is learned in {sum(learned)} of {len(known)} rows{also}"


def _separators(watched: Watched, ends: Ends) -> set[int]:
    """Tokens that end a text or begin one: as the model's configuration says, or as every row has them."""
    declared = watched.info.declared("bos_token_id")
    found = set(watched.chat_form.ends) | ({declared} if isinstance(declared, int) else set())
    return found | {next(iter(kept)) for kept in (ends.first, ends.last) if len(kept) == 1}


def _between(ids: Tensor, shown: Tensor, record: StepRecord, separators: set[int]) -> Iterator[str]:
    """Marks of ends and beginnings within rows, and the places that rows are told."""
    first, last = ends(ids, shown)
    place = torch.arange(ids.shape[1])
    within = shown & (place > first[:, None]) & (place < last[:, None])
    for token in sorted(separators):
        times = int(((ids == token) & within).sum())
        if times:
            yield f"token {token} stands within rows {number(times)} times, {times / len(ids):.2g} a row"
    given = next((call.positions for call in record.calls if call.ids is not None), None)
    places = None if given is None else record.host(given)
    if places is not None and places.shape[1] > 1:
        anew = int((places[:, 1:] < places[:, :-1]).sum())
        which = f"begin anew within rows {number(anew)} times" if anew else "never begin anew within a row"
        yield f"position_ids run from {int(places.min())} to {int(places.max())} and {which}"


def _again(rows: RowHistory) -> Iterator[str]:
    """After how many steps rows come again."""
    if not rows.gaps or not rows.count:
        return
    steps = sorted(gap / max(1, rows.batch) for gap in rows.gaps)
    low, high = steps[0], steps[-1]
    which = f"{high:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    middle = "" if low == high else f", the median {steps[len(steps) // 2]:.3g}"
    yield f"a row comes again after {which} {'step' if high == 1 else 'steps'}{middle}"
