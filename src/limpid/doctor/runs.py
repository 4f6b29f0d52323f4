"""Runs of one token at the edges of rows: padding, or blanks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.doctor.rule import Threshold

if TYPE_CHECKING:
    from torch import Tensor

RUN = Threshold(4, "text repeats a token four times, and to the edge of a row, in under 1 % of the rows")

FEWEST = 4
"""Different tokens, at least, for padding to be told from text: a language of two words is full of runs."""


class Runs:
    """The runs of one token at the edges of rows."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self.after = [trailing_run(row) for row in ids]  # lengths of the runs that end each row
        self.before = [trailing_run(row.flip(0)) for row in ids]  # and that begin it

    def commonest(self) -> int | None:
        """The token that most rows end or begin with a run of."""
        ends = [int(row[-1]) for row, run in zip(self.ids, self.after, strict=True) if run >= RUN]
        starts = [int(row[0]) for row, run in zip(self.ids, self.before, strict=True) if run >= RUN]
        return max(set(ends + starts), key=(ends + starts).count) if ends or starts else None

    def at_edges(self) -> Tensor:
        """Where runs of the commonest such token are, (row, position)."""
        edges = self.ids != self.ids
        for row, (after, before) in enumerate(zip(self.after, self.before, strict=True)):
            edges[row, self.ids.shape[1] - after :] = after >= RUN
            edges[row, :before] |= before >= RUN
        if bool(edges.any()):
            edges &= self.ids == self.ids[edges].mode().values  # text may begin with blanks
        return edges

    def taught_token(self, taught: Tensor, token: int) -> Tensor:
        """Positions in runs of the token at which it is taught, (row, position).

        The position before a run may be taught the token once: that is an end of text.
        """
        inside, length = self.ids != self.ids, self.ids.shape[1]
        for row, (after, before) in enumerate(zip(self.after, self.before, strict=True)):
            if after >= length or before >= length:
                continue
            if after >= RUN and int(self.ids[row, -1]) == token:
                inside[row, length - after :] = True
            elif before >= RUN and int(self.ids[row, 0]) == token:
                inside[row, : before - 1] = True
        return inside & (taught == token)

    def is_padding(self, token: int) -> bool:
        """Whether a token that runs to the edges is padding: it hardly occurs inside, or the runs are everywhere.

        (Text has runs too: a row of code may end in spaces, but spaces are everywhere in it.)
        """
        rows, length = self.ids.shape
        if len(self.ids.unique()) < FEWEST:
            return False
        edge = [
            (after if int(row[-1]) == token else 0) + (before if int(row[0]) == token and before < length else 0)
            for row, after, before in zip(self.ids, self.after, self.before, strict=True)
        ]
        inside, others = int((self.ids == token).sum()) - sum(edge), self.ids.numel() - sum(edge)
        padded = sum(run > 0 for run in edge)
        # short rows may well end in four blanks; an end of text may share the id
        rare = length >= 16 and inside <= max(padded, 0.01 * others) and padded >= max(2, rows / 20)
        everywhere = sum(run >= 8 for run in edge) > rows / 2
        return rare or everywhere


def trailing_run(row: Tensor) -> int:
    """Length of the run of one token that ends a row."""
    different = (row != row[-1]).nonzero()
    return len(row) if not len(different) else len(row) - 1 - int(different[-1])
