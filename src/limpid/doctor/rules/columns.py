"""Columns of measured inputs: equal ones, codes among numbers, scales that drown the rest, formats too coarse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "columns"
COST = "three looks at the first 1,024 rows"

COLUMNS_EQUAL = Rule(
    "columns-equal",
    FAMILY,
    detects="Columns of measured numbers that are the same in every row.",
    equation=r"x_{ij} = x_{ik} \text{ for all } i,\; j \ne k",
    source="definition",
    threshold="exact: two columns or more of a table, with {values:g} different values or more, are equal in all of "
    "{rows:g} rows or more, while {others:g} or more others differ, and there is one such group alone",
    thresholds={
        "values": Threshold(16, "columns of few values may agree"),
        "rows": Threshold(64, "measured numbers do not agree by chance twice"),
        "others": Threshold(1, "a number that is repeated on purpose fills the row"),
    },
    cost=COST,
    needs=(Probe.BATCH, Probe.ROWS),
    cause="the same column was taken twice, as by a function that is bound late or an index that is not advanced",
    fix="look at where the columns are put together, and at the index of each",
    meant="a feature that a raw table holds twice, or that is fed twice for weight",
    refuted_by="a row in which they differ",
)

CODES_AMONG_NUMBERS = Rule(
    "codes-among-numbers",
    FAMILY,
    detects="A code for what is missing, such as -999, that the model takes for a measurement.",
    equation=r"|v - x_{(1)}| > 4\, (x_{(n)} - x_{(1)}),\; f(1.01\, v) - f(v) \approx 0.01\, (f(v) - f(\tilde x))",
    source="definition; Little & Rubin 2019, Statistical analysis with missing data, section 1.3",
    threshold="one value, {times:g} times or more in a column of {values:g} other values or more, that lies further "
    "than {gap:g} times their whole range from all of them, is marked by no column and no mask; and outputs follow "
    "it as they would a number: a hundredth more of it moves them by less than {share:.0%} of what it moves them",
    thresholds={
        "times": Threshold(2, "one outlier is one measurement"),
        "values": Threshold(8, "columns of few values are codes throughout"),
        "gap": Threshold(4, "of measurements no tail is so far from all others and so often the same"),
        "share": Threshold(0.3, "a model that knows the code answers a neighbour of it otherwise, or not at all"),
    },
    cost="three forward passes where there is such a value",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD),
    cause="missing values are coded by a number that no measurement has, and the code is fed as it is",
    fix="put the column's mean in its place, and beside it a column that says where it was missing",
    meant="a sentinel that the net is to learn as a value of its own",
    refuted_by="a mask, or a column, that is 1 where the code is",
    explains=("column-drowns-others", "initial-loss-off", "nothing-learned", "loss-plateau"),
    again=True,
)

COLUMN_DROWNS_OTHERS = Rule(
    "column-drowns-others",
    FAMILY,
    detects="A column whose scale is so much larger that fresh outputs depend on it alone.",
    equation=r"\mathrm{Var}_j\, f \ge 10^5\, \mathrm{Var}_{\ne j}\, f,\; \mathrm{std}(x_j) \gg \mathrm{std}(x_k)",
    source="LeCun et al. 1998, Efficient BackProp, section 4.3",
    threshold="a deviation more than {scale:g} times the median of the others', of {columns:g} columns or more, and "
    "outputs of "
    "fresh weights that move {share:g} times less when all others change places between rows than when it does",
    thresholds={
        "scale": Threshold(100, "a rate that suits one column moves another not at all"),
        "columns": Threshold(3, "of two, either may be the smaller"),
        "share": Threshold(100, "what the model does with its inputs first has not made up for it"),
    },
    cost="three forward passes where there is such a column, before the first step",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD),
    cause="columns of different units are fed as they are",
    fix="subtract each column's mean and divide by its deviation, both of the training rows",
    meant="raw units, left to the optimizer, or one main variable among corrections",
    refuted_by="outputs that move alike",
    explains=("initial-loss-off", "nothing-learned", "loss-plateau", "gradient-explodes"),
)

INPUTS_TOO_COARSE = Rule(
    "inputs-too-coarse",
    FAMILY,
    detects="A column in a format whose spacing, where its numbers lie, is a large part of their spread.",
    equation=r"2^{\lfloor \log_2 |x| \rfloor}\, \epsilon > \tfrac14\, \mathrm{std}(x)",
    source="IEEE 754-2019",
    threshold="exact: the spacing of the format at the median of a column is more than {spacing:g} of its deviation, "
    "in {rows:g} rows or more; whole numbers only where the spacing is above 1",
    thresholds={
        "spacing": Threshold(0.25, "neighbouring measurements are one number by then"),
        "rows": Threshold(64, "a deviation is known to a tenth"),
    },
    cost=COST,
    needs=(Probe.BATCH, Probe.ROWS),
    cause="numbers with a large offset, such as times since 1970, in float32 or less",
    fix="subtract the offset in float64, and cast what is left",
    refuted_by="two numbers nearer to each other than the spacing",
)


@on_step(COLUMNS_EQUAL)
def same_in_every_row(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, sample = COLUMNS_EQUAL, history.sample
    if not sample.due or not sample.is_table or sample.count < rule["rows"]:
        return
    table = sample.table
    groups: dict[bytes, list[int]] = {}
    for column, values in enumerate(table.T.contiguous()):
        if len(values.unique()) >= rule["values"]:
            groups.setdefault(values.numpy().tobytes(), []).append(column)
    equal = [columns for columns in groups.values() if len(columns) > 1]
    if len(equal) == 1 and len(groups) > rule["others"]:
        named = ", ".join(map(str, equal[0][:6]))
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=f"columns {named} of the inputs",
            says=f"columns {named} of {table.shape[1]} input columns are the same number in each of {len(table):,} "
            "rows.",
            sure=0.75,
            evidence={"columns": equal[0], "rows": len(table)},
        )


@on_step(INPUTS_TOO_COARSE)
def between_two_inputs(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    import torch

    rule, sample = INPUTS_TOO_COARSE, history.sample
    if not sample.due or not sample.is_table or sample.count < rule["rows"] or sample.format.itemsize > 4:
        return
    table = sample.table
    spread, middle = table.std(0), table.abs().median(0).values
    for column in range(table.shape[1]):
        values, place = table[:, column], float(middle[column])
        spacing = 2.0 ** math.floor(math.log2(place)) * torch.finfo(sample.format).eps if place > 0 else 0.0
        exact = spacing <= 1 and bool((values == values.round()).all())
        if float(spread[column]) > 0 and spacing > rule["spacing"] * float(spread[column]) and not exact:
            kind = str(sample.format).removeprefix("torch.")
            yield rule.finding(
                severity="warning",
                step=record.number,
                where=f"column {column} of the inputs",
                says=f"column {column} lies around {place:.6g}, where numbers of {kind} are {spacing:g} apart, and its "
                f"deviation is {float(spread[column]):.3g}: most of what it says is rounded away.",
                meant=None if sample.format.itemsize == 4 else "inputs quantised on purpose, in two bytes or one",
                sure=0.9,
                evidence={"column": column, "spacing": spacing, "deviation": float(spread[column])},
            )
            return


@before_first_step(CODES_AMONG_NUMBERS)
def taken_for_a_number(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.table_probe import outputs_of, table_of

    rule, given = CODES_AMONG_NUMBERS, table_of(exam)
    if given is None:
        return
    call, table = given
    found = [(column, code) for column in range(table.shape[1]) if (code := _code(table[:, column])) is not None]
    if not found or _marked(call, table, found):
        return
    columns, code = [column for column, value in found if value == found[0][1]], found[0][1]
    at, plain, near = table == code, table.clone(), table.clone()
    near[at] = 1.01 * code
    for column in columns:
        others = table[:, column][~at[:, column]]
        plain[:, column] = table[:, column].masked_fill(at[:, column], float(others.median()))
    outputs = [outputs_of(exam, call, table, rows) for rows in (table, plain, near)]
    own, without, beside = outputs
    if own is None or without is None or beside is None or not own.shape == without.shape == beside.shape:
        return
    effect, small = float((own - without).norm()), float((beside - own).norm())
    if not 0 < small < rule["share"] * effect:
        return
    where = f"column{'s' if len(columns) > 1 else ''} {', '.join(map(str, columns[:6]))}"
    yield rule.finding(
        severity="warning",
        where=f"{where} of the inputs",
        says=f"{int(at[:, columns].sum())} of {at[:, columns].numel()} values of {where} are exactly {code:g}, far "
        f"from all others (they lie in {_range(table, columns[0], code)}): a code for missing values, it seems, which "
        "the model takes for a measurement and no mask tells it of.",
        sure=0.85,
        evidence={"code": code, "columns": columns[:16], "times": int(at[:, columns].sum())},
    )


def _code(values: Tensor) -> float | None:
    """The least or largest value, where it comes again and again far from all others."""
    rule = CODES_AMONG_NUMBERS
    for code in (float(values.min()), float(values.max())):
        rest = values[values != code]
        if len(values) - len(rest) < rule["times"] or len(rest.unique()) < rule["values"]:
            continue
        low, high = float(rest.min()), float(rest.max())
        if min(abs(code - low), abs(code - high)) > rule["gap"] * (high - low):
            return code
    return None


def _range(table: Tensor, column: int, code: float) -> str:
    rest = table[:, column][table[:, column] != code]
    return f"{float(rest.min()):.3g} … {float(rest.max()):.3g}"


def _marked(call: Call, table: Tensor, found: list[tuple[int, float]]) -> bool:
    """Whether another input, or a column, is one number where a code is and another where none is."""
    import torch

    for column, code in found:
        at = table[:, column] == code
        for value in [*table.T, *(v for v in [*call.args, *call.kwargs.values()] if isinstance(v, torch.Tensor))]:
            rows = value.reshape(len(at), -1).T if value.ndim and len(value) == len(at) else []
            for mark in rows:
                inside, outside = mark[at], mark[~at]
                constant = bool((inside == inside[0]).all()) and bool((outside == outside[0]).all())
                if constant and bool(inside[0] != outside[0]):
                    return True
    return False


@before_first_step(COLUMN_DROWNS_OTHERS)
def depends_on_one_alone(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.table_probe import outputs_of, table_of

    rule, given = COLUMN_DROWNS_OTHERS, table_of(exam)
    if given is None or exam.later or not exam.fresh or given[1].shape[1] < rule["columns"]:
        return
    call, table = given
    spread = table.std(0)
    column = int(spread.argmax())
    others = spread[spread > 0].median()
    if not float(spread[column]) > rule["scale"] * float(others) > 0:
        return
    it, rest = table.clone(), table.roll(1, 0)
    it[:, column], rest[:, column] = table[:, column].roll(1, 0), table[:, column]
    own, by_it, by_rest = (outputs_of(exam, call, table, rows, training=True) for rows in (table, it, rest))
    if own is None or by_it is None or by_rest is None or not own.shape == by_it.shape == by_rest.shape:
        return
    first, second = float((by_it - own).norm()), float((by_rest - own).norm())
    if first > rule["share"] * second:
        yield rule.finding(
            severity="warning",
            where=f"column {column} of the inputs",
            says=f"column {column} has a deviation of {float(spread[column]):.3g}, the others one of "
            f"{float(others):.3g} (median): fresh outputs move {first / max(second, 1e-30):,.0f} times more with it "
            f"than with all other {table.shape[1] - 1} columns together.",
            sure=0.75,
            evidence={"column": column, "deviation": float(spread[column]), "others": float(others)},
        )
