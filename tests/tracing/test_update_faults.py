"""A fault in the update of one parameter is found among all that are moved with it, and pinned to its number."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from planted import FAULTS
from planted_update import PLACES, RESULTS, FaultyTorch, blamed, disagreements, parameter, planted
from recorded import configuration, record

import limpid.training.muon
from limpid.config import TrainConfig


def small(rule: str, precision: str) -> TrainConfig:
    config = configuration("llama", precision, rule=rule)
    return replace(config, model=replace(config.model, num_layers=1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("rule", "result"), RESULTS)
def test_every_fault_of_an_update_is_found_and_pinned(rule: str, result: str, precision: str, tmp_path: Path) -> None:
    with planted(rule, result, {place: FAULTS[fault] for fault, place in PLACES.items()}):
        found = disagreements(record(tmp_path, small(rule, precision), before=1))
    assert {blamed(result, place) for place in PLACES.values()} <= set(found)
    assert {parameter(number) for number in found} == set(PLACES.values())


@pytest.mark.parametrize(
    ("kind", "fault"),
    [*itertools.product(["iterates", "polynomials"], FAULTS), ("norm", "1% too large"), ("norm", "wrong sign")],
)
def test_every_fault_of_muons_products_is_found_and_pinned(
    kind: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limpid.training.muon, "torch", FaultyTorch(kind, FAULTS[fault]))
    first_of_each_size = ("blocks.0.attention.query.weight", "blocks.0.mlp.gate.weight")
    found = disagreements(record(tmp_path, small("muon", "fp32"), before=0))
    assert {f"{kind}({name})" for name in first_of_each_size} <= set(found)
    assert {parameter(number) for number in found} == set(first_of_each_size)
    if "1%" in fault:  # larger faults grow until a matrix after them overflows
        assert len(found) == 2


@pytest.mark.parametrize("rounds", [1, 4, 6])
def test_another_number_of_muons_products_is_found(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = limpid.training.muon.orthogonal

    def other(matrices, coefficients, steps, *rest):
        return own(matrices, coefficients, rounds, *rest)

    monkeypatch.setattr(limpid.training.muon, "orthogonal", other)
    assert set(disagreements(record(tmp_path, small("muon", "fp32"), before=0))) == set(PLACES.values())
