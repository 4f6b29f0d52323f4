"""What cannot be compared is never agreement: numbers that are not finite, and nothing in common."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.comparison.compared import a_folder

from limpid.comparison.run import run
from limpid.comparison.variant import batch_for, parse_variant
from limpid.comparison.verdict import judge
from limpid.tracing.verdict import Holds, NotFinite, Unchecked


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("both", [False, True])
def test_a_number_that_is_not_finite_is_never_agreement(value: float, both: bool, tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    tokens, targets = batch_for((one, one), None)
    first, second = (run(one, tokens, targets, backward=True) for _ in range(2))
    for seen in (first, second) if both else (second,):
        for name in ("blocks.1.mlp.hidden", "blocks.1.mlp.output", "logits"):
            seen.values[name] = seen.values[name].copy()
            seen.values[name][0, 7, 3] = value
    comparison = judge(one.config, first, second)
    assert not comparison.agrees
    origin = comparison.verdict
    assert isinstance(origin, NotFinite)
    assert (origin.quantity, origin.index, origin.count) == ("blocks.1.mlp.hidden", (0, 7, 3), 1)
    assert origin.cause == "operation"
    assert str(origin.value) == str(value)
    after = {one.name: one.verdict for one in comparison.differences if one.kind == "forward"}
    assert isinstance(after["logits"], Unchecked)
    assert isinstance(after["blocks.0.mlp.hidden"], Holds)


def test_weights_that_are_not_finite_are_not_checked_or_not_finite(tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    one.weights["blocks.0.mlp.up.weight"][3, 4] = torch.nan
    tokens, targets = batch_for((one, one), None)
    comparison = judge(one.config, *(run(one, tokens, targets, backward=True) for _ in range(2)))
    assert not comparison.agrees
    assert isinstance(comparison.verdict, NotFinite)
    assert comparison.verdict.quantity == "blocks.0.mlp.up"
    assert comparison.verdict.cause == "no value"


def test_what_overflows_a_format_is_said_to_overflow_it(tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    one.weights["blocks.0.mlp.up.weight"].mul_(1e6)
    half = dataclasses.replace(one, label="half", precision="fp16")
    tokens, targets = batch_for((one, half), None)
    comparison = judge(one.config, *(run(each, tokens, targets, backward=False) for each in (one, half)))
    assert isinstance(comparison.verdict, NotFinite)
    assert comparison.verdict.cause == "overflow"
    assert comparison.verdict.largest == 65504.0
    assert comparison.outlier == 1


def test_variants_that_show_nothing_in_common_are_not_checked(tmp_path: Path) -> None:
    one = parse_variant(str(a_folder(tmp_path / "a", "llama")))
    tokens, targets = batch_for((one, one), None)
    first, second = (run(one, tokens, targets, backward=False) for _ in range(2))
    second.values.clear()
    comparison = judge(one.config, first, second)
    assert isinstance(comparison.verdict, Unchecked)
    assert not comparison.agrees
