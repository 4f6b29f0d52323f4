"""Two faults in one run: which pairs are drawn, that each bites beside the other, that both are named."""

from __future__ import annotations

import itertools

import pytest
import torch
from benchmarks.doctor.fault import Fault
from benchmarks.doctor.faults import FAULTS
from benchmarks.doctor.pairs import bites, drawn, fits, perform


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def test_pairs_are_drawn_by_the_seed_and_can_be_told_apart() -> None:
    first, again = (list(itertools.islice(drawn(3), 40)) for _ in range(2))
    assert first == again
    assert first != list(itertools.islice(drawn(4), 40))
    for (a, b), architecture in first:
        assert a.family != b.family
        assert architecture in a.architectures
        assert architecture in b.architectures
        assert not {*a.accepted} & {*b.accepted}


def test_settings_that_differ_keep_faults_apart() -> None:
    assert not fits(named("NUM-02"), named("OPT-01"))  # two rates
    assert fits(named("OPT-07 head"), named("CFG-01 order"))


def test_a_fault_that_another_one_replaces_does_not_bite() -> None:
    pair = (named("OPT-06 betas"), named("OPT-06"))  # both make the optimizer: the later one is there
    assert not bites(pair[0], pair, "plain")


def test_a_fault_that_begins_after_the_run_does_not_bite() -> None:
    pair = (named("NUM-07"), named("DAT-06"))  # forty steps, and batches from the fortieth on
    assert not bites(pair[1], pair, "plain")


def test_both_are_named() -> None:
    record = perform((named("OPT-07 head"), named("CFG-01 order")), "plain")
    assert record["bites"]
    assert record["named"] == ["optimizer-holds-strangers", "schedule-before-update"]
