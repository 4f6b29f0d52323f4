"""Which choice of each row a loss makes likelier or less likely, as the gradient of a log probability shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.pushes import FEWEST, SCATTERS, by_row, rank_correlation
from limpid.doctor.description.words import share
from limpid.doctor.loop_facts import FITS

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

CHOICES = 3
"""From which on one entry can be told from the others by its sign."""
MOST_ROWS = 0.9
"""Share of the rows whose gradient must have that form."""


def credited(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Of one pass with scores of choices, whose loss is no cross-entropy of the usual sign."""
    if len(record.row_gradients) != 1 or (
        record.taught and record.taught[0].misfit < FITS and not record.taught[0].inverted
    ):
        return
    gradient = record.row_gradients[0][1].double()
    if gradient.ndim != 2 or gradient.shape[1] < CHOICES or len(gradient) < FEWEST:
        return
    choice, raised, known = _choices(gradient)
    if int(known.sum()) < MOST_ROWS * int((gradient != 0).any(1).sum()) or int(known.sum()) < FEWEST:
        return
    said = [f"raised in {share(float((raised[known] > 0).double().mean()))} of the rows"]
    said += _named(choice, raised, known, record)
    yield (
        "in each row the gradient sets one output against all others, as that of the log probability of one choice "
        f"does: it is {'; '.join(said)}"
    )


def _choices(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entry of each row whose sign no other entry has, how far it is raised, and whether there is one."""
    up, down = gradient < 0, gradient > 0
    one_up, one_down = up.sum(1) == 1, down.sum(1) == 1
    whole = (gradient != 0).all(1) & (one_up | one_down)
    choice = torch.where(one_up, gradient.argmin(1), gradient.argmax(1))
    return choice, -gradient.gather(1, choice[:, None])[:, 0], whole


def _named(choice: Tensor, raised: Tensor, known: Tensor, record: StepRecord) -> Iterator[str]:
    """Numbers of the batch that are that choice, or with which it is raised."""
    for name, x in by_row(record).items():
        if len(x) != len(choice) or int(x[known].unique().numel()) < 2:
            continue
        if bool((x.round() == x).all()) and float(x.min()) >= 0 and float(x.max()) <= float(choice.max()):
            often = torch.bincount(x.long()).double() / len(x)
            chance = float((often[choice[known].clamp(max=len(often) - 1)]).mean())
            is_it = float((x[known].long() == choice[known]).double().mean())
            yield f"{name} of the batch in {share(is_it)} (by chance {share(chance)})"
            continue
        r = rank_correlation(raised[known], x[known].double())
        if abs(r) * (int(known.sum()) - 1) ** 0.5 > SCATTERS:
            yield f"raised the more the {'higher' if r > 0 else 'lower'} {name} is (rank {r:.2f})"
