"""Honest loops that look like mistakes, and what tells them apart; beside each the mistake itself."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import limpid
from doctor.small_loops import alarms, classes, net, table, watched
from limpid.doctor.wrapped_functions import LISTENERS


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def by_class(model: nn.Module, given: Any) -> Tensor:
    return F.cross_entropy(model(given[0]), given[1])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("maximize", [False, True])
def test_an_update_by_a_closure_is_judged_by_the_gradients_it_makes(optimizer: Any, maximize: bool) -> None:
    model = net(6, 16, 1)
    made = optimizer(model.parameters(), lr=1e-2, maximize=maximize)
    with limpid.watch(model, made, say=False) as doctor:
        for _ in range(24):
            given = table()

            def closure(given: Any = given) -> Tensor:
                made.zero_grad()
                loss = squared(model, given)
                loss.backward()
                return loss

            doctor.step(made.step(closure), given)
    assert ("gradient-ascent" in alarms(doctor)) == maximize


class Deep(nn.Module):
    """Residual blocks, of which some passes leave some out; or one that none ever calls."""

    def __init__(self, chance: float, unused: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.chance = nn.Linear(6, 8), nn.Linear(8, 1), chance
        self.blocks = nn.ModuleList(net(8, 8, 8) for _ in range(5))
        self.unused = unused

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in list(self.blocks)[: 4 if self.unused else 5]:
            if not self.training or torch.rand(()) < self.chance:
                x = x + block(x)
        return self.last(x)


def test_layers_that_are_left_out_by_chance_have_their_turn() -> None:
    assert watched(Deep(0.5), table, squared) == []
    assert watched(Deep(1.0, unused=True), table, squared) == ["module-never-called"]


def test_weights_that_a_mask_holds_at_zero_say_nothing_of_epsilon() -> None:
    model = net(6, 32, 32, 1)
    for layer in (model[0], model[2]):
        prune.random_unstructured(layer, "weight", 0.9)
    assert watched(model, table, squared) == []


def test_parameters_of_another_optimizer_are_not_missing() -> None:
    model = net(6, 16, 1)
    first, second = torch.optim.Adam(model[0].parameters(), 1e-2), torch.optim.SGD(model[2].parameters(), 1e-2)
    assert watched(model, table, squared, optimizer=first) == []
    del second
    assert watched(model, table, squared, optimizer=first) == ["parameters-not-in-optimizer"]


@pytest.mark.parametrize("listed", [True, False])
def test_parameters_that_nobody_registers(listed: bool) -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(6, 6), nn.Linear(6, 6)]
            self.layers = layers if listed else nn.ModuleList(layers)
            self.last = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).tanh()
            return self.last(x)

    assert watched(Blocks(), table, squared) == (["parameters-not-registered"] if listed else [])


def test_a_loss_that_another_player_raises() -> None:
    forger, judge = net(2, 8, 2), net(2, 8, 1)
    first, second = (torch.optim.Adam(m.parameters(), 1e-2) for m in (forger, judge))
    with limpid.watch(forger, first, say=False) as doctor:
        for _ in range(3):
            loss = F.softplus(-judge(forger(torch.randn(16, 2)))).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            doctor.step(loss)
        assert doctor.history.plays
        doctor.history.losses.all.extend([0.5 + 0.05 * i for i in range(60)])
    assert second is not None
    assert alarms(doctor) == []


def test_a_loss_that_takes_from_an_iterator_is_not_tried() -> None:
    for made in (iter(range(100)), itertools.count(), iter([1.0] * 100), (float(i) for i in range(100))):

        def loss(model: nn.Module, given: Any, made: Any = made) -> Tensor:
            return squared(model, given) * (1 + next(made))

        model = net(6, 16, 1)
        doctor = limpid.watch(model, torch.optim.SGD(model.parameters(), 1e-3), say=False)
        doctor.preflight(table(), loss=loss)
        doctor.close()
        assert next(made) in (0, 0.0, 1.0)


@pytest.mark.parametrize("rows", [12, 16])
def test_rows_of_measured_numbers_that_come_again(rows: int) -> None:
    """A dozen rows are all the data; sixteen are a batch, and the same each time."""
    x, y = table(rows)
    found = watched(net(6, 16, 1), lambda: (x.clone(), y.clone()), squared, 6)
    assert found == (["batch-repeats"] if rows == 16 else [])
    assert watched(net(6, 16, 1), lambda: table(rows), squared, 6) == []


def test_few_rows_are_a_small_set_and_fewer_than_two_batches_a_mistake() -> None:
    x, y = table(48)

    def drawn(of: int) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(of)[:16]
        return x[rows], y[rows]

    assert watched(net(6, 16, 1), lambda: drawn(48), squared, 30) == []
    assert watched(net(6, 16, 1), lambda: drawn(20), squared, 30) == ["batch-repeats"]


@pytest.fixture
def alone() -> Iterator[None]:
    """No loop that another test left is watched: a scaler is the one loop's own where one alone is."""
    others = list(LISTENERS)
    LISTENERS.clear()
    yield
    LISTENERS.extend(others)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("scaled", ["not", "and used", "and unscaled"])
def test_a_scaler_that_nobody_gave(scaled: str) -> None:
    model = net(6, 16, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-6), torch.amp.GradScaler("cpu", init_scale=256.0)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(4):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            (loss if scaled == "not" else scaler.scale(loss)).backward()
            if scaled == "and unscaled":
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            doctor.step(loss, given)
    assert ("gradients-never-unscaled" in alarms(doctor)) == (scaled == "and used")


@pytest.mark.parametrize("back", [True, False])
def test_parameters_that_stop_on_the_way(back: bool) -> None:
    model = net(3, 16, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(1, 32):
            given = classes()
            loss = by_class(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
            if step == 5:
                model[0].requires_grad_(False)
                model[0].requires_grad_(back)
    assert alarms(doctor) == ([] if back else ["frozen-on-the-way"])


@pytest.mark.parametrize("loaded", [True, False])
def test_statistics_that_nobody_measured(loaded: bool) -> None:
    body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU())
    if loaded:
        body(torch.randn(64, 3))
    model = nn.Sequential(body.requires_grad_(False), nn.Linear(8, 3))
    body.eval()
    assert watched(model, classes, by_class) == ([] if loaded else ["statistics-never-measured"])


@pytest.mark.parametrize("kind", ["parameters alone", "buffers too", "torch's own", "a teacher that stays"])
def test_an_average_has_statistics_of_its_own(kind: str) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    average = copy.deepcopy(model).requires_grad_(False)
    own = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(42):
            given = classes()
            loss = by_class(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
            if kind == "torch's own":
                own.update_parameters(model)
            elif kind != "a teacher that stays":
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.data.lerp_(fast.data, 0.1)
            if kind == "buffers too":
                for slow, fast in zip(average.buffers(), model.buffers(), strict=True):
                    slow.copy_(fast)
    assert alarms(doctor) == (["average-without-statistics"] if kind == "parameters alone" else [])


@pytest.mark.parametrize("between", [nn.Identity, nn.Tanh])
def test_layers_that_are_one_matrix(between: type[nn.Module]) -> None:
    found = watched(net(6, 16, 16, 1, act=between), table, squared)
    assert found == (["one-linear-map"] if between is nn.Identity else [])
    assert watched(net(6, 1), table, squared) == []
    assert watched(net(6, 2, 6, act=nn.Identity), lambda: table()[:1], lambda m, b: F.mse_loss(m(b[0]), b[0])) == []


@pytest.mark.parametrize(
    ("size", "normed", "named"), [(1.0, False, 0), (1 / 255, False, 1), (255.0, False, 1), (255.0, True, 0)]
)
def test_the_scale_of_pictures(size: float, normed: bool, named: int) -> None:
    first = [nn.BatchNorm2d(1)] if normed else []
    model = nn.Sequential(*first, nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    found = watched(model, lambda: (size * torch.rand(8, 1, 8, 8), torch.randint(0, 3, (8,))), by_class, 2)
    assert found.count("input-scale") == named


@pytest.mark.parametrize(("counted", "named"), [(5, ["schedule-rises-again"]), (40, [])])
def test_a_cosine_beyond_its_end(counted: int, named: list[str]) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, counted)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        for _ in range(30):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
            schedule.step()
    assert alarms(doctor) == named


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_measure_that_grows_as_the_model_gets_better(mode: Any) -> None:
    model = net(3, 16, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, patience=1, factor=0.5)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        for step in range(1, 61):
            given = classes()
            loss = by_class(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
            if step % 8 == 0:
                schedule.step(0.4 + step / 100)
    assert alarms(doctor) == (["plateau-the-wrong-way"] if mode == "min" else [])


def test_units_that_are_dead_are_not_cut_off() -> None:
    model = net(6, 16, 16, 1)
    nn.init.constant_(model[0].bias, -9.0)
    nn.init.constant_(model[2].bias, -9.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    first = doctor.findings[0]
    assert (first.rule, first.where) == ("gradient-cut", "1")
    assert "dead" in first.says


def test_nesterov_takes_the_gradient_itself() -> None:
    """NAdam moves by a part of the gradient besides its mean, and among noise the mean is small."""
    torch.manual_seed(0)
    model = net(8, 16, 4)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, betas=(0.99, 0.999))
    with limpid.watch(model, optimizer, say=False, every=1) as doctor:
        for _ in range(150):
            x, y = torch.randn(8, 8), torch.randint(4, (8,))
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert "update-not-as-predicted" not in {one.rule for one in doctor.findings}
