"""Inputs that no output depends on: a column of a table, or a whole tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam

FAMILY = "inputs_not_read"
ASIDE = (
    "label", "target", "mask", "position", "type", "length", "weight", "cache", "hidden", "state", "noise",
)  # fmt: skip
"""Parts of the names of what a model may leave aside."""

COLUMN_NOT_READ = Rule(
    "column-not-read",
    FAMILY,
    detects="A column of measured numbers that no output depends on.",
    equation=r"\partial f / \partial x_j = 0 \text{ for all rows}",
    source="definition; exact perturbation",
    threshold="exact: outputs of {rows:g} rows or more are the same to the bit when a column of a table of up to "
    "{columns:g} changes places between rows, and are not when all others do; not of models that return as many "
    "numbers as they are given, nor of columns of whole numbers",
    thresholds={
        "rows": Threshold(8, "that fewer agree may be a matter of units that are off"),
        "columns": Threshold(32, "a forward pass for each"),
    },
    cost="a forward pass for each column, before the first step",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD),
    cause="a slice that ends one column early, or an index that is used twice",
    fix="look at how the model takes its columns apart: x[:, :n] ends before n",
    meant="a feature left out on purpose: ablation, selection, a gate that is shut",
    refuted_by="an output that moves with the column",
    explains=("loss-plateau",),
)

TENSOR_NOT_READ = Rule(
    "tensor-not-read",
    FAMILY,
    detects="A tensor that the model is given for each row, and that no output depends on.",
    equation=r"\partial f / \partial x = 0 \text{ for all rows}",
    source="definition; exact perturbation",
    threshold="exact: after ten steps or more outputs of {rows:g} rows or more are the same to the bit, in training "
    "mode, when this tensor's rows change places, and are not when another's do; not of labels, positions and masks "
    "(by name, or yes and no for each token)",
    thresholds={"rows": Threshold(4, "that fewer agree may be a matter of units that are off")},
    cost="a forward pass for each tensor, at step 10, 40, 160",
    needs=(Probe.PARAMETERS, Probe.BATCH, Probe.FORWARD),
    cause="a branch that is computed and not added, or another tensor used in its place",
    fix="follow the tensor through forward(): where does it meet the output?",
    meant="an ablation, or an input for other modes of the model",
    refuted_by="an output that moves with the tensor",
    explains=("loss-plateau", "module-never-called"),
    again=True,
)


@before_first_step(COLUMN_NOT_READ)
def columns_that_move_nothing(exam: Exam) -> Iterator[Finding]:
    import torch

    from limpid.doctor.table_probe import outputs_of, table_of

    rule, given = COLUMN_NOT_READ, table_of(exam)
    if given is None or exam.later or not rule["rows"] <= len(given[1]) or given[1].shape[1] > rule["columns"]:
        return
    call, table = given
    own = outputs_of(exam, call, table, table)
    if own is None or own.shape[-1] == table.shape[1] or _differ(own, outputs_of(exam, call, table, table)):
        return
    unread = []
    for column in range(table.shape[1]):
        values = table[:, column]
        if bool((values == values.round()).all()) or len(values.unique()) < rule["rows"]:
            continue
        other = table.clone()
        other[:, column] = values.roll(1, 0)
        moved = outputs_of(exam, call, table, other)
        if moved is None:
            return
        unread += [column] if torch.equal(moved, own) else []
    rest = table.roll(1, 0)
    rest[:, unread] = table[:, unread]
    if unread and _differ(own, outputs_of(exam, call, table, rest)):
        named = ", ".join(map(str, unread[:6]))
        yield rule.finding(
            severity="warning",
            where=f"column{'s' if len(unread) > 1 else ''} {named} of the inputs",
            says=f"no output depends on {len(unread)} of {table.shape[1]} input columns ({named}): outputs of "
            f"{len(table)} rows stay the same to the bit when these change places between rows.",
            sure=0.75,
            evidence={"columns": unread, "of": table.shape[1]},
        )


@before_first_step(TENSOR_NOT_READ)
def tensors_that_move_nothing(exam: Exam) -> Iterator[Finding]:
    import torch

    from limpid.doctor.table_probe import outputs_of

    rule, call = TENSOR_NOT_READ, exam.usual_call
    if call is None or not exam.later or not exam.may_call or exam.info.translates:
        return
    named = {**dict(zip(call.names, call.args, strict=False)), **call.kwargs}
    held = {name: one for name, one in named.items() if isinstance(one, torch.Tensor) and one.ndim}
    rows = len(next(iter(held.values()), ()))
    if len(held) < 2 or rows < rule["rows"] or any(len(one) != rows or one.requires_grad for one in held.values()):
        return
    own = next((outputs_of(exam, call, one, one, True) for one in held.values()), None)
    if own is None or len(own) != rows:
        return
    moved = {name: outputs_of(exam, call, one, one.roll(1, 0), True) for name, one in held.items()}
    read = any(_differ(own, made) for made in moved.values())
    for name, one in held.items():
        meant = any(part in name.lower() for part in ASIDE) or name == "y" or _is_mask(one, held.values())
        alone = sum(other.shape == one.shape and bool((other == one).all()) for other in held.values()) == 1
        made = moved[name]
        if not read or meant or not alone or made is None or not bool((one != one.roll(1, 0)).any()):
            continue
        if torch.equal(made, own):
            yield rule.finding(
                severity="warning",
                where=f"input {name}",
                says=f"no output depends on the input {name} {tuple(one.shape)}: outputs of {rows} rows stay the same "
                "to the bit when its rows change places.",
                sure=0.75,
                evidence={"input": name, "rows": rows},
            )


def _is_mask(one: Tensor, others: Iterable[Tensor]) -> bool:
    """Whether it says yes or no of each token, whatever it is called: what a mask hides is asked of the padding."""
    import torch

    kinds = (torch.int32, torch.int64)
    return one.dtype == torch.bool and any(other.shape == one.shape and other.dtype in kinds for other in others)


def _differ(own: Tensor, other: Tensor | None) -> bool:
    import torch

    return other is not None and (own.shape != other.shape or not torch.equal(own, other))
