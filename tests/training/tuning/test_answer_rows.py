"""The rows of a step on records, derived a second time: a slip of the engine that the mathematics alone cannot see."""

import pydoc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import limpid
from limpid.run import Run

SLIPS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {
    "learned one token early": (
        "sft", "targets", "limpid.training.tuning.examples.rows_of",
        lambda right: lambda *given: (rows := right(*given)) | {"targets": np.roll(rows["targets"], -1, 1)},
    ),
    "rejected first": (
        "dpo", "tokens", "limpid.training.tuning.examples.rows_of",
        lambda right: lambda *given: {name: np.flip(array, 0).copy() for name, array in right(*given).items()},
    ),
    "judged otherwise": (
        "kto", "desirable", "limpid.training.tuning.examples.cut",
        lambda right: lambda *given: replace(
            micro := right(*given), arrays={**micro.arrays, "desirable": 1 - micro["desirable"]}
        ),
    ),
    "another prompt": (
        "grpo", "rows", "limpid.data.tuning.rows.Order._taken",
        lambda right: lambda order, first, after: (right(order, first, after) + 1) % len(order.lengths),
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_row_that_is_not_its_record_s_is_found(
    tuned: Callable[..., Run], slip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, found, where, wrong = SLIPS[slip]
    module, _, name = where.rpartition(".")
    owner = pydoc.locate(module)
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    step = limpid.trace(tuned(objective, run={"max_steps": 1, "save_steps": 0, "eval_steps": 0})).step
    assert not step.verdict.agrees
    assert step.verdict.first_disagreement is not None
    assert step.verdict.first_disagreement.name == found


def test_rows_of_a_later_epoch_are_those_of_the_records(tuned: Callable[..., Run]) -> None:
    run = tuned("reward", run={"max_steps": 6, "save_steps": 5, "eval_steps": 0, "gradient_accumulation_steps": 2})
    opened = limpid.trace(run, step=6).step  # the second epoch begins within step 5
    assert opened.verdict.agrees
    assert opened.written is not None
    assert {"rows", "tokens", "last"} <= {one.check.name for one in opened.written.checks}
    assert not opened.written.not_compared
