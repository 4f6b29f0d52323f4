"""Watching changes nothing that the user's own code can see: every kind of state that a forward pass may keep."""

from __future__ import annotations

import copy
import io
import itertools
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import limpid
from doctor.kinds_of_state import KINDS, NAMES, hooked
from doctor.stateful import (
    STEPS,
    WIDTH,
    Annealed,
    Averaged,
    Base,
    Cached,
    Counter,
    Shapeless,
    batch,
    forget,
    loss_of,
)


def trained(make: Callable[[], Any], watched: str, breaks: bool = False) -> tuple[Any, Any]:
    """Everything that can be seen after a few steps, and the doctor."""
    forget()
    model = make()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    doctor = None
    if watched:
        kept = Path(tempfile.mkdtemp()) / "loop.json" if "kept" in watched else None
        doctor = limpid.watch(model, optimizer, say=False, baseline=kept)
        if "examined" in watched:
            doctor.preflight(batch(0), loss=loss_of)
    losses = []
    for number in range(STEPS):
        if breaks and number == 3:
            model.head.weight.data.mul_(math.inf)
        loss = loss_of(model, batch(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if doctor is not None:
            doctor.step(loss, batch(number))
    if doctor is not None:
        doctor.close()
    seen = [
        losses, model.state(), list(model.state_dict().items()), [(m.training, len(vars(m))) for m in model.modules()],
        torch.get_rng_state(), random.getstate(), np.random.get_state(),  # noqa: NPY002
    ]  # fmt: skip
    return seen, doctor


def same(a: Any, b: Any) -> bool:
    """To the bit; a number that is none equals itself."""
    if isinstance(a, Tensor | np.ndarray):
        return np.array_equal(
            np.asarray(a.detach() if isinstance(a, Tensor) else a),
            np.asarray(b.detach() if isinstance(b, Tensor) else b),
            equal_nan=a.dtype.kind == "f" if isinstance(a, np.ndarray) else a.is_floating_point(),
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("watched", ["watched", "examined and kept"])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_watching_leaves_no_trace(make: Callable[[], Any], watched: str, capsys: pytest.CaptureFixture) -> None:
    seen, doctor = trained(make, watched)
    printed = capsys.readouterr().out
    alone, _ = trained(make, "")
    for one, other in zip(seen, alone, strict=True):
        assert same(one, other), (one, other)
    assert printed == capsys.readouterr().out
    if make is Shapeless and "examined" in watched:
        assert list(doctor.skipped) == ["preflight"]
    else:
        assert doctor.skipped == {}  # everything was examined


@pytest.mark.parametrize("make", [Counter, Annealed, Averaged, Cached, hooked], ids=lambda make: make.__name__)
def test_a_step_that_breaks_is_made_again_without_a_trace(make: Callable[[], Any]) -> None:
    seen, doctor = trained(make, "watched", breaks=True)
    alone, _ = trained(make, "", breaks=True)
    for one, other in zip(seen, alone, strict=True):
        assert same(one, other), (one, other)
    assert doctor.findings[0].rule == "not-finite"


class Writes(Base):
    """Writes each call to a file of its own."""

    def between(self, x: Tensor) -> Tensor:
        with open("calls.txt", "a") as file:
            file.write("called\n")
        return super().between(x)

    def state(self) -> Any:
        return Path("calls.txt").read_text()


class Draws(Base):
    """Takes its noise from an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = itertools.cycle([0.1, 0.2, 0.3])

    def between(self, x: Tensor) -> Tensor:
        return super().between(x + next(self.noise))

    def state(self) -> Any:
        return next(self.noise)


@pytest.mark.parametrize("watched", ["watched", "examined"])
@pytest.mark.parametrize(
    ("make", "why"),
    [(Writes, "Writes.between opens a file"), (Draws, "noise is a cycle: what it has given cannot be taken back")],
)
def test_what_cannot_be_put_back_is_not_called_and_it_is_said(
    make: Callable[[], Any], why: str, watched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder, how in (("with", watched), ("without", "")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        found.append(trained(make, how))
    (seen, doctor), (alone, _) = found
    assert same(seen, alone)
    assert doctor.skipped == {"passes of the doctor's own": why}


def test_a_model_that_processes_share_keeps_its_state(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    def shared() -> Any:
        model = hooked()
        made = nn.parallel.DistributedDataParallel(model)
        made.state = model.state  # type: ignore[assignment]
        return made

    try:
        seen, doctor = trained(shared, "watched")
        assert same(seen, trained(shared, "")[0])
        assert doctor.skipped == {}
    finally:
        torch.distributed.destroy_process_group()


def test_casts_that_autocast_keeps_are_not_taken_from_a_pass_of_the_doctor() -> None:
    """A cast made without gradients, and kept, would cut the training's own pass from its weights."""

    def losses(watched: bool) -> list[float]:
        model = Base()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        doctor = limpid.watch(model, optimizer, say=False) if watched else None
        found = []
        for number in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, batch(number))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
        if doctor is not None:
            doctor.close()
            assert not doctor.skipped
        return found

    assert losses(watched=True) == losses(watched=False)


@pytest.mark.parametrize("watched", [False, True])
def test_weights_that_a_cache_of_parametrisations_keeps_are_the_trainings_own(watched: bool) -> None:
    """Spectral norms make a step of their iteration each time that a weight is asked for, in a cache once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1))
    for layer in model[::2]:
        nn.utils.parametrizations.spectral_norm(layer)
    twin = copy.deepcopy(model)
    doctor = limpid.watch(model, torch.optim.Adam(model.parameters()), say=False) if watched else None
    x = torch.randn(16, 2)
    for one in (model, twin):
        with nn.utils.parametrize.cached():
            sum(one(x + i).square().mean() for i in range(2)).backward()
    if doctor is not None:
        doctor.close()
    ours, theirs = model.state_dict(), twin.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert a.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_a_loss_that_is_checkpointed_is_called_as_often_as_if_nobody_watched() -> None:
    """Checkpointing, and hooks on what is saved, call functions of the user's once for each backward pass."""

    def calls(watched: bool) -> list[int]:
        torch.manual_seed(0)
        found = [0, 0, 0]

        def counted(place: int, given: Any) -> Any:
            found[place] += 1
            return given

        def judged(made: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(F.dropout(counted(0, made), 0.1), y)

        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        doctor = limpid.watch(model, optimizer, say=False) if watched else None
        for _ in range(STEPS):
            x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
            made = model(x)
            loss = torch.utils.checkpoint.checkpoint(judged, made, y, use_reentrant=False)
            hooks = (lambda one: counted(1, one)), (lambda one: counted(2, one))
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                loss = loss + made.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if doctor is not None:
                doctor.step(loss, (x, y))
        if doctor is not None:
            doctor.close()
            assert not doctor.skipped
        return found

    assert calls(watched=True) == calls(watched=False)


def test_a_schedule_is_simulated_without_its_functions_remembering() -> None:
    asked: list[int] = []

    def share(step: int) -> float:
        asked.append(step)
        return 1.0

    model = Base()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    before = list(asked)
    with limpid.watch(model, optimizer, scheduler=scheduler, say=False) as doctor:
        doctor.preflight(batch(0), loss=loss_of, total_steps=50)
    assert asked == before


def saved(thing: Any) -> Any:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_what_is_watched_is_saved_and_copied_as_if_it_were_not() -> None:
    model = Base()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu")
    before = set(scheduler.state_dict())
    with limpid.watch(model, optimizer, scheduler=scheduler, scaler=scaler, say=False) as doctor:
        assert set(saved(scheduler.state_dict())) == before
        assert saved(scaler.state_dict()) == scaler.state_dict()
        saved(optimizer)
        for other in (saved(model), copy.deepcopy(model)):  # an average, a target: nobody watches it
            other(batch(0)[0])
        assert doctor.recorder.record.calls == []
        model(batch(0)[0])
        assert len(doctor.recorder.record.calls) == 1
        scheduler.step()
        assert doctor.recorder.record.events == ["forward", "schedule"]


class Computed(nn.Linear):
    """What is asked of it is computed, and each time another."""

    asked = 0

    def __getattr__(self, name: str) -> Any:
        if name in {"weight", "p", "rate", "scale", "scaling", "lora_A", "base_layer"}:
            type(self).asked += 1
        return super().__getattr__(name)


class Block(nn.Module):
    """A spectral norm turns its vector each time its weight is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), Computed(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(F.linear(torch.tanh(self.up(x)), *self.down._parameters.values()))


class InBlocks(Base):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        Computed.asked = 0
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def between(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def state(self) -> Any:
        return Computed.asked


@pytest.mark.parametrize("watched", ["watched", "examined"])
def test_weights_that_are_computed_when_they_are_asked_for_are_not_asked_for(watched: str) -> None:
    alone, _ = trained(InBlocks, "")
    seen, _ = trained(InBlocks, watched)
    assert same(alone, seen)


def test_two_doctors_may_leave_in_any_order() -> None:
    def watched() -> tuple[Any, Any]:
        optimizer = torch.optim.AdamW(Base().parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return scheduler, limpid.watch(Base(), optimizer, scheduler=scheduler, say=False)

    own = "step" in vars(torch.optim.lr_scheduler.StepLR)
    (first, one), (second, other) = watched(), watched()
    one.close()
    first.step()
    second.step()
    assert (one.recorder.record.events, other.recorder.record.events) == ([], ["schedule"])
    other.close()
    assert ("step" in vars(torch.optim.lr_scheduler.StepLR)) == own
