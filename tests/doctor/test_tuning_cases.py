"""A slice of the benchmark of tuning: faults that a few steps of a hand-written loop show, and what looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.doctor.tuning.__main__ import is_right
from benchmarks.doctor.tuning.case import FAULTS, HONEST, Bench, inside, load

from limpid.doctor.finding import Finding

load()
QUICK = (
    "prompt-in-the-labels", "stop-masked", "stop-never-appended", "begins-twice", "marks-in-characters",
    "template-of-another-model", "factors-both-at-zero", "adapter-switched-off", "reference-is-the-policy",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


def said(bench: Bench, run: object, *arguments: bool) -> list[Finding]:
    assert callable(run)
    with inside(bench.folder):
        run(bench, *arguments)
    return bench.said()


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_named_first(name: str, tmp_path: Path) -> None:
    found = said(Bench(tmp_path), FAULTS[name].run, True)
    assert found
    assert is_right(found[0], FAULTS[name]), [(one.rule, one.says) for one in found]


@pytest.mark.parametrize("name", ["stop-masked", "reference-is-the-policy"])
def test_its_twin_is_not(name: str, tmp_path: Path) -> None:
    assert said(Bench(tmp_path), FAULTS[name].run, False) == []


@pytest.mark.parametrize(
    "name",
    [
        "plain-text-is-learned-whole",
        "answers-cut-at-the-context",
        "factors-warm-up-from-zero",
        "rejected-rows-come-first",
    ],
)
def test_an_honest_loop_is_left_alone(name: str, tmp_path: Path) -> None:
    assert said(Bench(tmp_path), HONEST[name].run) == []


def test_a_case_says_what_it_does_and_what_is_wanted() -> None:
    assert all(case.does and case.wanted for case in FAULTS.values())
    assert all(case.does for case in HONEST.values())
    assert not {*FAULTS} & {*HONEST}


def test_a_change_along_the_base_is_no_merged_adapter() -> None:
    """Factors that strengthen what each matrix holds already, each by its own measure, against ones merged into it."""
    from limpid.doctor.doctor import Doctor

    for merged in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(Adapted(0.2 + 0.3 * place, merged) for place in range(6)))
        doctor = Doctor(model, torch.optim.SGD(model.parameters(), lr=0.1), say=False, rules=["adapter-applied-twice"])
        found = doctor.preflight(torch.randn(4, 24), loss=lambda module, x: module(x).square().mean())
        doctor.close()
        assert [one.rule for one in found] == (["adapter-applied-twice"] if merged else [])


class Adapted(torch.nn.Module):
    """A linear map and factors of rank 4 beside it."""

    def __init__(self, gain: float, merged: bool) -> None:
        super().__init__()
        self.base = torch.nn.Linear(24, 24, bias=False)
        left, sizes, right = torch.linalg.svd(self.base.weight.detach())
        along = left[:, :4] * sizes[:4] * gain, right[:4]
        b, a = (torch.randn(24, 4), torch.randn(4, 24)) if merged else along
        self.lora_A, self.lora_B = torch.nn.Parameter(a), torch.nn.Parameter(b)
        if merged:
            self.base.weight.data += b @ a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T
