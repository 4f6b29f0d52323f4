"""Which outputs an update raises, held against the batch's numbers of each row; rewards and their groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.words import counted, number, share, span

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FEWEST = 8
"""Rows from which on a rank correlation is told: of fewer chance makes any."""
MOST = 4
"""Numbers of the batch, and outputs of a row, that are held against each other."""
SCATTERS = 2.5
"""Standard deviations of a rank correlation of nothing, 1/√(n - 1) (Kendall 1948), below which it says nothing."""
REWARDS = ("rewards", "reward", "advantages", "advantage", "returns")
PROMPTS = ("prompt_ids", "prompts", "prompt")


def pushes(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Of the outputs of rows, what those are in the batch that the update raises, by numbers of the batch."""
    held = {name: x for name, x in by_row(record).items() if x.unique().numel() > 1}
    made = [gradient for outputs, gradient in record.row_gradients if outputs.ndim in (1, 2)]
    if len(made) != 1 or not held:
        return
    pushed = -made[0].double().reshape(len(made[0]), -1)
    if pushed.shape[1] > MOST or (record.taught and pushed.shape[1] > 1):  # scores of classes: labels say it
        return
    for place in range(pushed.shape[1]):
        found = [(name, rank_correlation(pushed[:, place], x)) for name, x in held.items() if len(x) == len(pushed)]
        told = [(name, r) for name, r in found[:MOST] if abs(r) * (len(pushed) - 1) ** 0.5 > SCATTERS]
        if told:
            which = "outputs" if pushed.shape[1] == 1 else f"output {place}"
            said = ", ".join(f"{name} is {'high' if r > 0 else 'low'} (rank correlation {r:.2f})" for name, r in told)
            yield f"the update raises {which} of rows whose {said}"


def rewards(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Rewards and advantages of the batch: of how many rows they are above 0, and their groups by prompt."""
    held = by_row(record, named=(*REWARDS, *PROMPTS))
    prompts = next((held[name] for name in PROMPTS if name in held), None)
    prompts = _same_beginnings(record) if prompts is None else prompts
    for name in REWARDS:
        x = held.get(name)
        if x is None or not len(x):
            continue
        of_row = x.double().reshape(len(x), -1)
        alike = bool((of_row == of_row[:, :1]).all())
        means = of_row.mean(1)
        up, down = share(float((means > 0).double().mean())), share(float((means < 0).double().mean()))
        within = "" if alike or of_row.shape[1] == 1 else ", the mean of its positions"
        yield f"{name} of a row{within}: above 0 in {up}, below 0 in {down}"
        yield from _groups(name, means, prompts)


def _groups(name: str, x: Tensor, prompts: Tensor | None) -> Iterator[str]:
    """How numbers lie among rows of one prompt: their mean, and how many groups have only one value."""
    if prompts is None or len(prompts) != len(x):
        return
    _, group = prompts.reshape(len(prompts), -1).unique(dim=0, return_inverse=True)
    sizes = torch.bincount(group)
    if int(sizes.max()) < 2:
        return
    means = torch.bincount(group, weights=x) / sizes
    level = sum(bool((x[group == g] == x[group == g][0]).all()) for g in range(len(sizes)))
    yield (
        f"{name} by prompt: {counted(len(sizes), 'group')} of {span(sizes.tolist())} rows, "
        f"{'which stand together' if _stand_together(group) else 'which stand apart'}, with means "
        f"{float(means.min()):.3g} to {float(means.max()):.3g}; all alike in {number(level)} of them"
    )


def _stand_together(group: Tensor) -> bool:
    return int((group[1:] != group[:-1]).sum()) == int(group.max())


def _same_beginnings(record: StepRecord) -> Tensor | None:
    """The longest beginnings of rows of tokens that each have in common with another row; None where rows have none."""
    if len(record.token_ids) != 1:
        return None
    ids = record.token_ids[0]
    for length in range(ids.shape[1], 0, -1):
        starts, counts = ids[:, :length].unique(dim=0, return_counts=True)
        if len(starts) > 1 and int(counts.min()) > 1:
            return ids[:, :length]
    return None


def by_row(record: StepRecord, named: Sequence[str] = (), fewest: int = FEWEST) -> dict[str, Tensor]:
    """Tensors of a batch of one pass with one number for each row, by name, on the host; or those of these names."""
    given = record.micros[0].given if len(record.micros) == 1 else None
    if isinstance(given, Mapping):
        pairs = {str(name): one for name, one in given.items()}
    else:
        pairs = {str(i): one for i, one in enumerate(given)} if isinstance(given, tuple | list) else {}
    pairs |= {} if len(record.calls) != 1 else record.calls[0].tensors
    found = {}
    for name, one in pairs.items():
        usable = isinstance(one, Tensor) and one.layout == torch.strided and not one.is_complex() and one.ndim
        if usable and (name in named if named else one.numel() == len(one) >= fewest):
            on_host = record.host(one.detach())
            if on_host is not None:
                found[name] = on_host if named else on_host.double().reshape(-1)
    return found


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, of two lists of numbers, equal ones with their mean rank."""
    x, y = (_ranks(one) for one in (a, b))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x.norm() * y.norm()).clamp(min=1e-300))


def _ranks(x: Tensor) -> Tensor:
    _, place, counts = x.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() - 1) / 2)[place]
