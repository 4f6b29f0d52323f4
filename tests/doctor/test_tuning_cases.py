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
