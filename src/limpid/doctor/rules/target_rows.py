"""Targets against the batch that they stand in, and against the rows beside their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "target_rows"

STANDARDISED_BY_BATCH = Rule(
    "targets-standardised-by-batch",
    FAMILY,
    detects="Targets that each batch standardises by its own mean and deviation: one row has another target in other "
    "company.",
    equation=r"\tfrac1n \textstyle\sum_i y_i = 0,\; \tfrac1n \sum_i y_i^2 = 1 \text{ in each batch}",
    source="definition; LeCun et al. 1998, Efficient BackProp, section 4.3 (statistics of the training set)",
    threshold="exact: to {rounding:g} a mean of 0 and a deviation of 1 of the targets that a loss compares with, "
    "{rows:g} or more and as many at each look, in {looks:g} batches of different targets in a row, where the batch "
    "holds them or what they are a straight line of",
    thresholds={
        "rounding": Threshold(1e-5, "a hundred roundings of float32; of 8 drawn numbers a mean is off by a third"),
        "rows": Threshold(3, "two rows have one set alone"),
        "looks": Threshold(3, "statistics of the whole set hold in none of its batches"),
    },
    cost="a mean and a deviation, on sampled steps",
    meant="targets of which the order in their batch alone counts, as advantages or ranks",
    needs=(Probe.LOSS_INPUTS, Probe.BATCH),
    cause="(y - y.mean()) / y.std() of each batch",
    fix="mean and deviation of the training set, computed once; undo them when predicting",
    refuted_by="a batch whose mean is not 0",
    explains=("loss-plateau", "nothing-learned"),
)

TARGETS_OF_OTHER_ROWS = Rule(
    "targets-of-other-rows",
    FAMILY,
    detects="Targets that stand beside the wrong row: a row's inputs tell its neighbour's, and not its own.",
    equation=r"R^2(x_i \to y_{i+k}) \gg R^2(x_i \to y_i) \approx 0",
    source="definition; explained variance of a linear fit on rows that were not fitted",
    threshold="of {rows:g} rows or more, 8 times as many as numbers in a row or more, a linear fit on the first half "
    "explains {other:.0%} or more of the targets one or two rows before or after, from the other end of the batch, or "
    "of the batch before or after, in the second half, and less than {own:.0%} of their own",
    thresholds={
        "rows": Threshold(256, "of unrelated numbers 64 explain less than 0 on rows that were not fitted"),
        "other": Threshold(0.2, "ten standard errors and more"),
        "own": Threshold(0.1, "rows in order of time tell their own targets about as well as their neighbours'"),
    },
    cost="six linear fits of 64 numbers, at 256 and at 1,024 rows",
    meant="a series in the order of time, whose next value is the target",
    needs=(Probe.BATCH, Probe.ROWS),
    cause="inputs and targets are read by two iterators, of which one is a step ahead, or were shifted by a row",
    fix="keep input and target in one record from the start, and shuffle the records",
    refuted_by="inputs that tell their own targets",
    explains=("loss-plateau", "nothing-learned", "targets-unrelated", "loss-never-falls"),
)


@on_step(STANDARDISED_BY_BATCH, asks="explained")
def mean_of_each_batch(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, seen = STANDARDISED_BY_BATCH, record.explained
    if seen is None or not record.sampled:
        return
    target = seen[2].reshape(len(seen[2]), -1) if seen[2].ndim else seen[2].reshape(1, 1)
    if len(target) < rule["rows"] or target.shape[1] > 16:
        return
    y = target.double()
    mean, spread = float(y.mean(0).abs().max()), y.std(0, correction=0)
    unit = any(float((scale * spread - 1).abs().max()) < rule["rounding"] for scale in (1.0, _sample(len(y))))
    exact = mean < rule["rounding"] and unit and _from_the_batch(record, y)
    mark = (len(y), round(float((y**3).mean()), 6))  # a set that is served whole is the same at each step
    before, history.last_targets = history.last_targets, mark
    alike = before is not None and (before == mark or before[0] != mark[0])
    looks = history.in_a_row(rule.slug, exact and not alike)
    if looks == rule["looks"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="targets",
            says=f"the targets of each batch have a mean of 0 and a deviation of 1 to {rule['rounding']:.0e}, in "
            f"{looks} batches of {len(y)} different rows in a row: they are standardised by the batch's own "
            "statistics, so that a row's target depends on the other rows, and what was subtracted is lost.",
            sure=0.9,
            evidence={"rows": len(y), "looks": looks},
        )


def _sample(rows: int) -> float:
    """The deviation with n - 1 over that with n."""
    return float((rows / (rows - 1)) ** 0.5)


def _from_the_batch(record: StepRecord, target: Tensor) -> bool:
    """Whether the batch holds these targets, or others of which they are a straight line."""
    from limpid.doctor.data_sheet import row_targets

    held = row_targets(record)
    if held is None or held.numel() != target.numel() or len(held) != len(target):
        return False
    own = held.double().reshape(target.shape)
    own = own - own.mean(0)
    slope = (own * target).sum(0) / (own * own).sum(0).clamp(min=1e-300)
    return float((target - own * slope).abs().max()) < 1e-4


@on_step(TARGETS_OF_OTHER_ROWS)
def tell_a_neighbour_s(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, sample = TARGETS_OF_OTHER_ROWS, history.sample
    paired = sample.paired if sample.due and sample.count >= rule["rows"] else None
    if paired is None or sample.count < 8 * paired[0][0].shape[1]:
        return
    rows, targets = paired
    own = _explained(rows, targets)
    if own >= rule["own"]:
        return
    orders = {
        "the row before it": [y.roll(1, 0) for y in targets],
        "the row after it": [y.roll(-1, 0) for y in targets],
        "the row two before it": [y.roll(2, 0) for y in targets],
        "the row two after it": [y.roll(-2, 0) for y in targets],
        "the row as far from the other end of the batch": [y.flip(0) for y in targets],
    }
    found = {name: _explained(rows, others) for name, others in orders.items()}
    if len({len(y) for y in targets}) == 1 and len(targets) > 2:
        found["the same row of the batch before"] = _explained(rows[1:], targets[:-1])
        found["the same row of the batch after"] = _explained(rows[:-1], targets[1:])
    whose = max(found, key=lambda name: found[name])
    if found[whose] >= rule["other"]:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where="targets",
            says=f"the inputs of a row explain {found[whose]:.0%} of the variance of the target of {whose}, and "
            f"{max(own, 0):.0%} of their own (a linear fit on half of {sample.count:,} rows, judged on the other "
            "half): inputs and targets are out of step with each other.",
            meant="" if _in_order_of_time(rows, targets) else None,
            sure=0.95,
            evidence={"whose": whose, "explained": found[whose], "own": own, "rows": sample.count},
        )


def _in_order_of_time(rows: Sequence[Tensor], targets: Sequence[Tensor]) -> bool:
    """Whether a row holds the target of one before it, or tells what the next one holds."""

    held = [bool((x[k:] == y[: len(y) - k, None]).all(0).any()) for x, y in _single(rows, targets) for k in (1, 2)]
    return any(held) or _explained([x[:-1] for x in rows], [x[1:] for x in rows]) >= TARGETS_OF_OTHER_ROWS["own"]


def _single(rows: Sequence[Tensor], targets: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows with one target each, of steps that have three or more."""
    for x, y in zip(rows, targets, strict=True):
        flat = y.reshape(len(y), -1)
        if len(x) > 2 and flat.shape[1] == 1:
            yield x, flat[:, 0]


def _explained(rows: Sequence[Tensor], targets: Sequence[Tensor]) -> float:
    """Share of the targets' variance that a linear fit on the first half of the steps explains in the second."""
    import torch

    half = len(rows) // 2
    if half < 1:
        return 0.0
    x, y = torch.cat(list(rows)).double(), torch.cat(list(targets)).double()
    fitted = sum(len(one) for one in rows[:half])
    spread = x.std(0)
    x = (x - x.mean(0))[:, spread > 0] / spread[spread > 0]
    y = y - y[:fitted].mean(0)
    if not x.shape[1]:
        return 0.0
    gram = x[:fitted].T @ x[:fitted] + 1e-3 * fitted * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x[:fitted].T @ y[:fitted])
    left, total = (y[fitted:] - x[fitted:] @ weights).square().sum(), y[fitted:].square().sum()
    return float(1 - left / total) if float(total) > 0 else 0.0
