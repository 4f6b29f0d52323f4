"""Targets that outputs cannot reach, that inputs give away, or that go on where they should end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.history import History
    from limpid.doctor.micro_batches import Micro
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "targets"

OUT_OF_REACH = Rule(
    "targets-out-of-reach",
    FAMILY,
    detects="Targets of a regression that the last activation cannot give, such as negative numbers after a ReLU.",
    equation=r"\min_{\hat y \in [a, b]} \tfrac1n \textstyle\sum_i (\hat y_i - y_i)^2 > 0",
    source="definition; the range of each activation",
    threshold="exact: predictions are what relu, softplus, exp, sigmoid, tanh or softmax returned, and more than "
    "{share:.0%} "
    "of the targets' variance lies outside of its range, at {steps:g} looks in a row; above {most:.0%} nobody means it",
    thresholds={
        "share": Threshold(0.05, "noise around targets at the edge of a range is less"),
        "most": Threshold(0.5, "nobody bounds what is most of the targets"),
        "steps": Threshold(2, "one batch may be odd"),
    },
    cost="the name of one function and two comparisons, on sampled steps",
    meant="a bound on purpose: what lies beyond it is to be said as the bound, as of censored data",
    needs=(Probe.LOSS_INPUTS,),
    cause="an activation after the last layer, as from a loop over all layers",
    fix="leave the last layer without an activation, or scale the targets into its range",
    refuted_by="targets within the range",
    explains=("loss-plateau",),
)

ONE_ANSWER = Rule(
    "labels-of-one-kind",
    FAMILY,
    detects="Labels that say yes or no, and say the same for every row.",
    equation=r"y_i = y_1 \text{ for all } i",
    source="definition; Python's documentation of bool: every text but the empty one is true",
    threshold="exact: labels of truth values, one for each row, all the same in {batches:g} batches in a row with "
    "{rows:g} rows or more",
    thresholds={
        "batches": Threshold(10, "a batch may be of one kind"),
        "rows": Threshold(128, "one in 20 of the other kind would be there but for one in 700"),
    },
    cost="one comparison of as many truth values as there are rows",
    meant="one kind alone, whose opposite the loop makes itself or does not need",
    needs=(Probe.BATCH,),
    cause="bool('False') is True; a comparison with what no row has; a column that was filled in",
    fix="label == 'True', and count both kinds before training",
    refuted_by="one row with the other label",
    explains=("loss-plateau",),
)

LABELS = ("labels", "label", "targets", "target", "y", "desirable", "is_desirable")

TARGET_IN_INPUTS = Rule(
    "target-in-inputs",
    FAMILY,
    detects="An input column of the model that is the target itself.",
    equation=r"x_{ij} = y_i \text{ for all } i",
    source="definition; Kaufman et al. 2012, Leakage in data mining, section 3",
    threshold="exact: one column equals the target in every row, at {steps:g} sampled steps in a row, with {rows:g} "
    "rows or "
    "more and {values:g} different values or more",
    thresholds={
        "steps": Threshold(3, "with few values a column may agree by chance"),
        "rows": Threshold(8, "fewer agree by chance"),
        "values": Threshold(3, "two values may be one fact told twice"),
    },
    cost="one comparison on sampled steps",
    needs=(Probe.BATCH,),
    cause="the column to be predicted was left among the features",
    fix="drop it before the features are put together",
    refuted_by="a row in which they differ",
)

PAST_THE_END = Rule(
    "target-past-the-end",
    FAMILY,
    detects="A value target that goes on after an episode has ended.",
    equation=r"y = r + \gamma (1 - d)\, v(s'),\; d = 1 \Rightarrow y = r",
    source="Mnih et al. 2015, algorithm 1, doi:10.1038/nature14236; Sutton & Barto 2018, section 6.1",
    threshold="exact: of the rows that the batch calls done, {rows:g} or more, none has its reward as the target",
    thresholds={"rows": Threshold(8, "a few may be cut off, not done")},
    cost="one comparison on steps whose loss is read",
    meant="episodes cut off by time, whose value goes on; rewards that are scaled or have terms added",
    needs=(Probe.BATCH, Probe.LOSS_INPUTS),
    cause="1 - done is missing before the value of the next state",
    fix="target = reward + gamma * (1 - done) * value(next)",
    refuted_by="a target that is the reward where an episode ends",
    explains=("logits-drift", "loss-diverges"),
)

IDS_IN_HALF = Rule(
    "ids-in-half",
    FAMILY,
    detects="Whole numbers in a format that cannot tell neighbours apart: ids that were cast with the batch.",
    equation=r"|x| > 2^p: \text{ whole numbers are } 2 \text{ apart},\; p = 8 \text{ in bfloat16}, 11 "
    r"\text{ in float16}",
    source="IEEE 754-2019; Kalamkar et al. 2019, arXiv:1905.12322",
    threshold="exact: an input of a half-precision format that holds whole numbers only, some beyond {bfloat16:g} in "
    "bfloat16 "
    "or {float16:g} in float16",
    thresholds={
        "bfloat16": Threshold(256, "2^8: from there on a spacing of 2"),
        "float16": Threshold(2048, "2^11: from there on a spacing of 2"),
    },
    cost="one comparison on sampled steps",
    meant="large counts or measures, for which one part in 256 is close enough",
    needs=(Probe.BATCH,),
    cause="the whole batch was cast to half precision, ids too",
    fix="keep ids as int64, and cast measured numbers alone",
    refuted_by="integers in an integer format",
)


@on_step(OUT_OF_REACH, asks="reach")
def beyond_the_range(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, reach = OUT_OF_REACH, record.reach
    if reach is None:
        return
    name, low, high, share, outside = reach
    if history.in_a_row(rule.slug, share > rule["share"]) == rule["steps"]:
        yield rule.finding(
            severity="fault",
            meant=None if share > rule["most"] else "",
            step=record.number,
            where="the last activation",
            says=f"predictions come out of {name} and lie in [{low:g}, {high:g}], but {outside:.0%} of the targets do "
            f"not: "
            f"they can never be reached, and {share:.0%} of the targets' variance stays as error.",
            evidence={"activation": name, "outside": outside, "variance": share},
        )


@on_step(TARGET_IN_INPUTS, asks="sampled")
def given_away(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = TARGET_IN_INPUTS
    pair = _rows_and_targets(record) if record.sampled and record.micros else None
    if pair is None:
        return
    rows, targets = pair
    equal = (rows.float() == targets.float()[:, None]).all(0)
    leaks = bool(equal.any()) and _is_read(record, targets)
    leaks = leaks and len(targets) >= rule["rows"] and len(targets.unique()) >= rule["values"]
    if history.in_a_row(rule.slug, leaks) == rule["steps"]:
        column = int(equal.int().argmax())
        yield rule.finding(
            severity="fault",
            step=record.number,
            where=f"column {column} of the inputs",
            says=f"column {column} of {rows.shape[1]} input columns equals the target in all {len(targets)} rows: the "
            f"answer is "
            "among the features.",
            evidence={"column": column, "rows": len(targets)},
        )


def _is_read(record: StepRecord, targets: Tensor) -> bool:
    """Whether the model is given a column that is the targets, perhaps scaled: a loop may take it out before."""
    import torch

    if not record.calls:
        return True
    y = targets.double() - targets.double().mean()
    for value in record.calls[0].tensors.values():
        if not value.is_floating_point() or value.ndim < 2 or len(value) != len(y):
            continue
        x = value.detach().cpu().double().flatten(1)
        x = x - x.mean(0)
        along = (x * y[:, None]).sum(0).square() / (x.square().sum(0) * y.square().sum()).clamp(min=1e-300)
        if bool(torch.isclose(along, torch.ones_like(along), rtol=0, atol=1e-6).any()):
            return True
    return False


def _rows_and_targets(record: StepRecord) -> tuple[Tensor, Tensor] | None:
    """Inputs (row, column) and one number for each row, where a batch is such a pair."""
    import torch

    given = record.micros[0].given
    if not isinstance(given, tuple | list) or len(given) < 2:
        return None
    both = record.on_hosts([one for one in (given[0], given[-1]) if isinstance(one, torch.Tensor)])
    if len(both) < 2:
        return None
    rows, targets = both
    targets = targets.squeeze(-1) if targets.ndim == 2 else targets
    fits = rows.ndim == 2 and targets.ndim == 1 and len(rows) == len(targets) and rows.shape[1] > 1
    return (rows, targets) if fits and rows.is_floating_point() else None


@on_step(PAST_THE_END, asks="difference")
def goes_on(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, given = PAST_THE_END, record.micros[0].given if record.micros else None
    if record.difference is None or not isinstance(given, Mapping):
        return
    done, reward = (
        _column(record, given, *names) for names in (("done", "dones", "terminal", "terminated"), ("rewards", "reward"))
    )
    target = record.difference[1].flatten()
    if done is None or reward is None or len(done) != len(target) or len(reward) != len(target):
        return
    ended = done > 0
    apart = (target[ended] - reward[ended]).abs() > 1e-5 * (1 + reward[ended].abs())
    history.counts["done"] += int(ended.sum())
    history.counts["done and going on"] += int(apart.sum())
    if history.counts["done"] >= rule["rows"] and history.counts["done"] == history.counts["done and going on"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="target",
            says=f"in none of {history.counts['done']} rows that are done is the target the reward (it is off by "
            f"{float((target[ended] - reward[ended]).mean()):.2g} on average): the value of what comes after the end "
            f"of an "
            "episode is added, and values inflate.",
            sure=0.8,
            evidence={"rows": history.counts["done"]},
        )


def _column(record: StepRecord, given: Mapping[str, Any], *names: str) -> Tensor | None:
    """One number for each row, by name."""
    import torch

    held = next((given[name] for name in names if isinstance(given.get(name), torch.Tensor)), None)
    numbers = None if held is None or held.ndim != 1 else record.host(held)
    return None if numbers is None else numbers.detach().float()


@on_step(IDS_IN_HALF, asks="sampled")
def cast_with_the_batch(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    import torch

    limits = {torch.bfloat16: IDS_IN_HALF["bfloat16"], torch.float16: IDS_IN_HALF["float16"]}
    for call in record.calls[:1] if record.sampled else ():
        for value in [*call.args, *call.kwargs.values()]:
            if not isinstance(value, torch.Tensor) or value.dtype not in limits or not value.numel():
                continue
            largest, kind = float(value.detach().abs().max()), str(value.dtype).removeprefix("torch.")
            if largest > limits[value.dtype] and bool((value == value.round()).all()):
                yield IDS_IN_HALF.finding(
                    severity="fault",
                    meant=None if _are_ids(record, value) else "",
                    step=record.number,
                    where="inputs",
                    says=f"an input of {kind} holds whole numbers only, up to {largest:.0f}: beyond "
                    f"{limits[value.dtype]:.0f} "
                    "this format cannot tell one from the next, so that different ids look up the same row.",
                    evidence={"largest": largest, "format": kind},
                )


def _are_ids(record: StepRecord, value: Tensor) -> bool:
    """Whether the batch holds the same, but for rounding, as integers."""
    import torch

    held = [ids for ids in record.token_ids if ids.shape == value.shape]
    return any(bool(torch.equal(ids.to(value.dtype), value.detach().cpu())) for ids in held)


@on_step(ONE_ANSWER)
def one_answer(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = ONE_ANSWER
    kinds = [kind for micro in record.micros for kind in _truths(record, micro)]
    if not kinds:
        return
    same = len(set(kinds)) == 1
    history.one_kind = history.one_kind + len(kinds) if same and kinds[0] == history.kind else len(kinds) * same
    batches = history.in_a_row(rule.slug, same and history.kind in (None, kinds[0]))
    history.kind = kinds[0] if same else None
    if batches >= rule["batches"] and history.one_kind >= rule["rows"]:
        yield rule.finding(
            severity="warning",
            step=record.number,
            where="labels",
            says=f"the labels of all {history.one_kind:,} rows so far are {kinds[0]}: none has the other value, and "
            "all rows are learned as one class.",
            sure=0.85,
            evidence={"rows": history.one_kind, "label": kinds[0]},
        )


def _truths(record: StepRecord, micro: Micro) -> list[bool]:
    """The label of each row, where it is a truth value."""
    import torch

    given = micro.given if hasattr(micro.given, "keys") else {}
    held = next((given[name] for name in LABELS if name in given), None)
    if isinstance(held, torch.Tensor) and held.dtype == torch.bool and held.ndim == 1:
        numbers = record.host(held)
        return [] if numbers is None else [bool(one) for one in numbers.tolist()]
    return held if isinstance(held, list) and all(isinstance(one, bool) for one in held) else []
