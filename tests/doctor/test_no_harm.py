"""Watching changes nothing that the user's own code can see: every kind of state that a forward pass may keep."""

from __future__ import annotations

import collections
import copy
import io
import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import limpid

VOCAB, WIDTH, ROWS, LENGTH, STEPS = 19, 8, 6, 12, 5
SEEN: dict[str, int] = {"calls": 0}
TOTAL = 0


class Base(nn.Module):
    """A table, a layer between, a head; a subclass keeps something in `between`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle, self.head = (
            nn.Embedding(VOCAB, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, VOCAB),
        )

    def between(self, x: Tensor) -> Tensor:
        return torch.tanh(self.middle(x))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.between(self.table(ids)))

    def state(self) -> Any:
        """What the user would read."""
        return None


class Counter(Base):
    calls = 0

    def between(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().between(x)

    def state(self) -> Any:
        return self.calls


class ClassCounter(Base):
    calls = 0
    seen: ClassVar[list[int]] = []

    def between(self, x: Tensor) -> Tensor:
        ClassCounter.calls += 1
        self.seen.append(len(x))
        return super().between(x)

    def state(self) -> Any:
        return type(self).calls, list(self.seen)


class GlobalCounter(Base):
    def between(self, x: Tensor) -> Tensor:
        global TOTAL
        TOTAL += 1
        SEEN["calls"] += 1
        return super().between(x)

    def state(self) -> Any:
        return TOTAL, dict(SEEN)


class HelpedCounter(Base):
    def between(self, x: Tensor) -> Tensor:
        return helper(super().between(x))

    def state(self) -> Any:
        return list(helper.__defaults__[0]), vars(helper).get("calls")


def helper(x: Tensor, sizes: list[int] = []) -> Tensor:  # noqa: B006  such defaults are the case
    sizes.append(len(x))
    helper.calls = getattr(helper, "calls", 0) + 1  # type: ignore[attr-defined]
    return x


class Annealed(Base):
    temperature = 4.0

    def between(self, x: Tensor) -> Tensor:
        self.temperature = max(1.0, self.temperature * 0.9)
        return super().between(x) / self.temperature

    def state(self) -> Any:
        return self.temperature


class Cached(Base):
    """Keeps tensors, an array, a queue and a dictionary from call to call, and uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.past, self.masks = collections.deque(maxlen=3), {}
        self.memory, self.counts = torch.zeros(WIDTH), np.zeros(VOCAB)

    def between(self, x: Tensor) -> Tensor:
        self.memory.lerp_(x.detach().mean((0, 1)), 0.1)
        self.past.append(x.detach().mean())
        self.masks[x.shape] = self.masks.get(x.shape, 0) + 1
        self.counts[len(x)] += 1
        return super().between(x + self.memory + sum(self.past))

    def state(self) -> Any:
        return list(self.past), self.masks, self.memory, self.counts


class Averaged(Base):
    """Averages of weights: as a buffer, as a parameter that is not trained, as a tensor in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slow", self.middle.weight.detach().clone())
        self.slower = nn.Parameter(self.middle.weight.detach().clone(), requires_grad=False)
        self.slowest = [self.middle.weight.detach().clone()]

    def between(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for average in (self.slow, self.slower, self.slower.data, self.slowest[0]):
                average.lerp_(self.middle.weight, 0.01)
        return super().between(x) + 0.1 * x @ self.slow + 0.1 * x @ self.slower

    def state(self) -> Any:
        return self.slow, self.slower, self.slowest


class Clamped(Base):
    """Writes to its own weights in the forward pass."""

    def between(self, x: Tensor) -> Tensor:
        self.middle.weight.data.mul_(0.999)
        with torch.no_grad():
            self.head.weight.clamp_(-0.2, 0.2)
        return super().between(x)


class ShortRows(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH, max_norm=0.5)


class OwnNoise(Base):
    """Draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.torch, self.numpy = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.legacy, self.python = np.random.RandomState(1), random.Random(1)

    def between(self, x: Tensor) -> Tensor:
        noise = self.numpy.random() + self.legacy.rand() + self.python.random() + random.random() + np.random.rand()  # noqa: NPY002
        return super().between(x + 0.1 * noise + 0.1 * torch.randn(x.shape, generator=self.torch))

    def state(self) -> Any:
        return self.torch.get_state(), self.numpy.random(), self.legacy.rand(), self.python.random()


class ListOfAuxiliaries(Base):
    """Collects a loss per call, which the loop takes: one too many would crash it."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary: list[Tensor] = []

    def between(self, x: Tensor) -> Tensor:
        self.auxiliary.append(x.pow(2).mean())
        return super().between(x)

    def state(self) -> Any:
        return len(self.auxiliary)


class Object:
    """Somebody's own way to keep numbers."""

    __slots__ = ("calls", "sizes")

    def __init__(self) -> None:
        self.calls, self.sizes = 0, []

    def note(self, x: Tensor) -> None:
        self.calls += 1
        self.sizes.append(len(x))


class Noted(Base):
    def __init__(self) -> None:
        super().__init__()
        self.notes, self.mock = Object(), Mock()

    def between(self, x: Tensor) -> Tensor:
        self.notes.note(x)
        self.mock(1)
        return super().between(x)

    def state(self) -> Any:
        return self.notes.calls, self.notes.sizes, self.mock.call_count


class SetsModes(Base):
    def between(self, x: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True)
        self.middle.eval() if self.middle.training else self.middle.train()
        return super().between(x)

    def state(self) -> Any:
        found = torch.are_deterministic_algorithms_enabled(), self.middle.training, torch.is_grad_enabled()
        torch.use_deterministic_algorithms(False)
        return found


class Printing(Base):
    def between(self, x: Tensor) -> Tensor:
        print("forward")
        return super().between(x)


class Shapeless(Base):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.LazyLinear(WIDTH)


class Normed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, x: Tensor) -> Tensor:
        return self.norm(super().between(x).flatten(0, 1)).view(x.shape)


class Dropping(Base):
    def between(self, x: Tensor) -> Tensor:
        return F.dropout(super().between(x), 0.2, self.training)


def with_(change: Callable[[nn.Linear], Any]) -> Callable[[], Base]:
    def make() -> Base:
        model = Base()
        change(model.middle)
        return model

    return make


def hooked() -> Base:
    """Hooks of every kind, which count; one changes the output a little."""
    model, fired = Base(), collections.Counter[str]()
    count = 0

    def after(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        nonlocal count
        count += 1
        fired["after"] += 1
        return output * (1 + 0.01 * count)

    def seen(name: str) -> Callable[..., None]:
        return lambda *_: fired.update([name])

    model.middle.register_forward_hook(after)
    model.middle.register_forward_pre_hook(seen("before"))
    model.middle.register_full_backward_hook(seen("backward"))
    model.middle.weight.register_hook(seen("gradient"))
    model.middle.weight.register_post_accumulate_grad_hook(seen("accumulated"))
    model.state = lambda: (count, dict(fired))  # type: ignore[method-assign]
    return model


def stepped_in_backward() -> Base:
    """An optimizer of its own for one weight, which steps as soon as its gradient is there."""
    model = Base()
    own = torch.optim.SGD([model.middle.bias], lr=0.1, momentum=0.9)

    def step(parameter: Tensor) -> None:
        own.step()
        own.zero_grad()

    model.middle.bias.register_post_accumulate_grad_hook(step)
    return model


def compiled() -> Any:
    model = Counter()
    made = torch.compile(model, backend="eager")
    made.state = model.state
    return made


KINDS: list[Callable[[], Any]] = [
    Counter, ClassCounter, GlobalCounter, HelpedCounter, Annealed, Cached, Averaged, Clamped, ShortRows, OwnNoise,
    ListOfAuxiliaries, Noted, SetsModes, Printing, Shapeless, Normed, Dropping, hooked, stepped_in_backward, compiled,
    with_(torch.nn.utils.weight_norm), with_(parametrizations.weight_norm), with_(torch.nn.utils.spectral_norm),
    with_(parametrizations.spectral_norm), with_(parametrizations.orthogonal),
]  # fmt: skip
NAMES = [kind.__name__ if kind.__name__ != "make" else f"norm{i}" for i, kind in enumerate(KINDS)]


def batch(number: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(number))
    return ids[:, :-1], ids[:, 1:]


def loss_of(model: Any, given: Any) -> Tensor:
    loss = F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten())
    if isinstance(getattr(model, "auxiliary", None), list):
        (auxiliary,) = model.auxiliary
        model.auxiliary.clear()
        loss = loss + 0.01 * auxiliary
    return loss


def forget() -> None:
    """Begin anew, as a new process would."""
    global TOTAL
    TOTAL = 0
    SEEN["calls"] = 0
    ClassCounter.calls = 0
    ClassCounter.seen.clear()
    helper.__defaults__[0].clear()  # type: ignore[index]
    vars(helper).clear()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002


def trained(make: Callable[[], Any], watched: str, breaks: bool = False) -> tuple[Any, Any]:
    """Everything that can be seen after a few steps, and the doctor."""
    forget()
    model = make()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    doctor = None
    if watched:
        doctor = limpid.watch(model, optimizer, say=False)
        if watched == "examined":
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


@pytest.mark.parametrize("watched", ["watched", "examined"])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_watching_leaves_no_trace(make: Callable[[], Any], watched: str, capsys: pytest.CaptureFixture) -> None:
    seen, doctor = trained(make, watched)
    printed = capsys.readouterr().out
    alone, _ = trained(make, "")
    for one, other in zip(seen, alone, strict=True):
        assert same(one, other), (one, other)
    assert printed == capsys.readouterr().out
    if make is Shapeless and watched == "examined":
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
