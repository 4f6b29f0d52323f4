"""On a device the doctor says what it says on the host: a device of pretence, whose numbers are the host's."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.doctor.faults import FAULTS
from benchmarks.doctor.healthy import HEALTHY
from benchmarks.doctor.judge import Record, judge
from benchmarks.doctor.settings import DEVICE
from torch import Tensor, nn

import limpid
import pretend
from doctor.bench import VOCAB, Decoder, Loop, batch, mean_loss, preflight, rules
from limpid.doctor import Doctor

STEPS = 24


@pytest.fixture(autouse=True)
def device() -> None:
    pretend.install()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


class There(Loop):
    """The loop that everybody writes, on a device."""

    def __init__(self, where: str = pretend.NAME) -> None:
        self.where = where
        super().__init__(Decoder().to(where))
        self.optimizer.param_groups[0]["foreach"] = self.optimizer.param_groups[1]["foreach"] = True

    def batch(self, number: int) -> Any:
        return tuple(one.to(self.where) for one in batch(number))


def spoken(record: Record | Doctor) -> list[Any]:
    """What was found, and what was not looked at."""
    found = [one if isinstance(one, dict) else vars(one) for one in record.findings]
    return [[(one["rule"], one["severity"], one["step"], one["where"]) for one in found], dict(record.skipped)]


def test_nothing_is_changed_and_everything_is_said() -> None:
    alone = There()
    losses = []
    for alone.number in range(STEPS):
        losses.append(alone.step()[0])
    watched, doctor = There().run(STEPS)
    here, at_home = There("cpu").run(STEPS)
    assert watched == losses
    assert watched == pytest.approx(here, rel=1e-5)
    assert spoken(doctor) == spoken(at_home) == [[], {}]
    assert str(doctor.description) == str(at_home.description)
    assert [one.value for one in doctor.facts.facts] == [one.value for one in at_home.facts.facts]  # type: ignore[union-attr]


def test_few_reads_wait() -> None:
    """Of a step that is not looked at closer: its norm, its loss, its ids and labels, and a few weights."""

    def waits(loop: There, doctor: Doctor | None) -> list[int]:
        counts = []
        for loop.number in range(60):
            before = pretend.waits()
            loss, batches = loop.step()
            if doctor is not None:
                doctor.step(loss, batches)
            counts.append(pretend.waits() - before)
        return counts

    alone, loop = waits(There(), None), There()
    with limpid.watch(loop.model, loop.optimizer, say=False) as doctor:
        watched = waits(loop, doctor)
    beside = [a - b for a, b in zip(watched, alone, strict=True)]
    assert sorted(beside)[len(beside) // 2] <= 8, beside


CASES = {"NUM-03": "plain", "OPT-02": "plain", "DAT-03 few": "plain", "GRA-01": "llama", "LOS-02": "plain"}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_as_on_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, found = next(fault for fault in FAULTS if fault.name == name), []
    for where in ("cpu", pretend.NAME):
        monkeypatch.setenv(DEVICE, where)
        found.append(judge(fault, CASES[name], 0))
    assert found[1].right, (found[1].first, found[1].crashed)
    assert spoken(found[0]) == spoken(found[1])


@pytest.mark.parametrize("name", ["OK-01", "OK-10", "OK-16", "OK-29"])
def test_a_healthy_run_is_silent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE, pretend.NAME)
    case = next(case for case in HEALTHY if case.name == name)
    record = judge(replace(case, settings={**case.settings, "steps": 8, "warmup": 2}), "plain", 0)
    assert not record.crashed
    assert not record.detected, record.findings
    assert not record.skipped


def test_a_preflight_hands_no_device_what_would_end_it() -> None:
    ids, labels = (one.to(pretend.NAME) for one in batch(0))
    beyond = ids.clone()
    beyond[2, 3] = VOCAB
    for given, where in (((beyond, labels), "inputs"), ((ids, labels.masked_fill(labels == 5, VOCAB)), "labels")):
        found = preflight_of(given)
        assert ("ids-out-of-range", where) in found, found
        assert not pretend.is_lost()


def preflight_of(given: Any) -> list[tuple[str, str]]:
    model = Decoder().to(pretend.NAME)
    with limpid.watch(model, torch.optim.AdamW(model.parameters()), say=False) as doctor:
        return [(one.rule, one.where) for one in doctor.preflight(given, loss=mean_loss)]


@pytest.mark.parametrize(("what", "at"), [("inputs", 2), ("inputs", 13), ("labels", 2), ("labels", 13)])
def test_a_lost_device_is_said_and_asked_nothing(what: str, at: int) -> None:
    """By an id that is seen before it ends everything, or a label that nobody has seen."""
    loop, said = There(), list[str]()

    def bad(number: int) -> tuple[Tensor, ...]:
        given = batch(number)
        if number == at:
            given[what == "labels"][1, 1] = VOCAB
        return tuple(one.to(pretend.NAME) for one in given)

    def run() -> None:
        with doctor:
            for loop.number in range(20):
                doctor.step(*loop.step())

    loop.batch = bad  # type: ignore[method-assign]
    doctor = limpid.watch(loop.model, loop.optimizer, say=said.append)
    try:
        with pytest.raises(RuntimeError, match="device-side assert"):
            run()
    finally:
        pretend.recover()
    assert rules(doctor.findings) == ["ids-out-of-range"]
    (finding,) = (one for one in doctor.findings if one.severity != "notice")
    assert finding.where == what
    assert finding.step == at + 1
    assert doctor.skipped == {}
    assert len(said) == (2 if what == "inputs" else 1)  # what a model is given, and what its table is asked for


def test_a_baseline_from_the_host_holds_a_run_on_a_device(tmp_path: Path) -> None:
    def run(where: str, halved: bool = False) -> Doctor:
        loop = There(where)
        if halved:
            with torch.no_grad():
                loop.model.blocks[1].up.weight.mul_(2)  # type: ignore[index, union-attr]
        return loop.run(12, baseline=tmp_path / "base")[1]

    run("cpu")
    same, other = run(pretend.NAME), run(pretend.NAME, halved=True)
    assert spoken(same)[0] == []
    assert "blocks.1.up.weight" in " ".join(one.says + one.where for one in other.findings)


def test_a_copy_of_the_model_may_lie_elsewhere() -> None:
    loop = There()
    copy = Decoder().requires_grad_(False).eval()
    copy.load_state_dict(loop.model.state_dict())
    _, doctor = loop.run(4)
    assert doctor.skipped == {}
    assert "another model of its class is held" in str(doctor.description)
    assert math.isfinite(float(F.cross_entropy(copy(batch(0)[0]).flatten(0, 1), batch(0)[1].flatten())))


def test_a_batch_that_lies_there_is_known_again() -> None:
    """Who serves the very same tensors at each step learns one batch by heart, and means to."""
    for where in ("cpu", pretend.NAME):
        loop = There(where)
        kept = loop.batch(0)
        loop.batch = lambda number, kept=kept: kept  # type: ignore[misc, method-assign]
        _, doctor = loop.run(6)
        assert [(one.rule, one.severity) for one in doctor.findings] == [("batch-repeats", "notice")]


class Masked(nn.Module):
    """As a model of transformers is called: ids, a mask of whole numbers, labels that it shifts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.decoder(input_ids)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def test_a_batch_of_several_tensors_is_examined_as_on_the_host() -> None:
    ids, _ = batch(0)
    found = []
    for where in ("cpu", pretend.NAME):
        model, held = Masked().to(where), ids.to(where)
        given = {"input_ids": held, "attention_mask": torch.ones_like(held), "labels": held}
        with limpid.watch(model, torch.optim.AdamW(model.parameters(), lr=1e-3), say=False) as doctor:
            doctor.preflight(given)
            for _ in range(4):
                loss = model(**given)["loss"]
                loss.backward()
                doctor.step(loss, given)
        found.append(spoken(doctor))
    assert found[0] == found[1]
    assert found[1][1] == {}


def test_pictures_are_watched_as_on_the_host() -> None:
    """A batch of measured numbers, and a label for each."""

    def run(where: str) -> Doctor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
        optimizer = torch.optim.SGD(model.to(where).parameters(), lr=1e-2)
        pictures, labels = torch.randn(256, 3, 8, 8), torch.randint(4, (256,))
        with limpid.watch(model, optimizer, say=False) as doctor:
            for number in range(12):
                rows = [(7 * number + row) % 16 for row in range(16)]  # of 256 the same sixteen, in another order
                given = pictures[rows].to(where), labels[rows].to(where)
                loss = F.cross_entropy(model(given[0]), given[1])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                doctor.step(loss, given)
        return doctor

    here, there = run("cpu"), run(pretend.NAME)
    assert spoken(here) == spoken(there)
    assert str(here.description) == str(there.description)


def test_before_the_first_step_it_says_the_same() -> None:
    here, there = (
        preflight(Decoder().to(where), tuple(one.to(where) for one in batch(0))) for where in ("cpu", pretend.NAME)
    )
    assert here == there == []
