"""A slice of the fault-injection benchmark: a few faults of each family, and every healthy run at reduced length."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from benchmarks.doctor.fault import FAMILIES, Exact, Fault
from benchmarks.doctor.faults import FAULTS
from benchmarks.doctor.healthy import HEALTHY, Healthy
from benchmarks.doctor.judge import judge
from benchmarks.doctor.models import ARCHITECTURES
from benchmarks.doctor.practices import PRACTICES

from limpid.doctor import RULES

QUICK = {
    "NUM-02": "limpid", "NUM-05": "plain", "OPT-02": "gpt2", "OPT-03": "llama", "OPT-04": "plain",
    "OPT-07 copy": "plain", "DAT-01": "gpt2", "DAT-02": "plain", "DAT-03": "limpid", "GRA-01": "llama",
    "GRA-02": "plain", "GRA-04": "gpt2", "GRA-06": "limpid", "LOS-02": "llama", "LOS-03": "plain",
    "CFG-01 order": "gpt2", "CFG-03": "limpid",
}  # fmt: skip
"""Faults that a first few steps show, and the architecture each is tried on here; the benchmark tries all."""
SHORT = 8
"""Steps of a healthy run here; the benchmark runs it to its end."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_named_first(name: str) -> None:
    record = judge(named(name), QUICK[name], 0)
    assert record.right, (record.first, record.findings, record.skipped, record.crashed)
    assert record.named is not None
    assert record.named <= 10
    assert not record.early


@pytest.mark.parametrize("name", [name for name in QUICK if isinstance(named(name).proof, Exact)])
def test_the_injection_bites(name: str) -> None:
    proven = named(name).prove(QUICK[name])
    assert proven.bites, proven


ODD = [case for case in HEALTHY if case not in PRACTICES]
"""What practice looks odd is asked of smaller models, in test_honest.py."""


@pytest.mark.parametrize(("index", "case"), list(enumerate(ODD)), ids=[case.name for case in ODD])
def test_a_healthy_run_is_silent(index: int, case: Healthy) -> None:
    architecture = ARCHITECTURES[index % len(ARCHITECTURES)]
    settings = {"warmup": 10, "steps": SHORT, **case.settings}
    steps = min(SHORT, settings["steps"])
    shortened = {"steps": steps, "warmup": settings["warmup"] * steps // settings["steps"]}
    record = judge(replace(case, settings={**case.settings, **shortened}), architecture, 0)
    assert not record.crashed
    assert not record.detected, record.findings


def test_every_family_has_faults_and_every_accepted_rule_exists() -> None:
    assert {fault.family for fault in FAULTS} == set(FAMILIES.values())
    for fault in FAULTS:
        assert set(fault.accepted) <= set(RULES), fault.name
        assert set(fault.architectures) <= set(ARCHITECTURES)
        assert fault.architectures == ARCHITECTURES or fault.why_not, fault.name


def test_names_are_unique() -> None:
    names = [case.name for case in (*FAULTS, *HEALTHY)]
    assert len(names) == len(set(names))
