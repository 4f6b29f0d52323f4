"""More honest choices that look like mistakes, each beside the mistake: places left out, votes, masters, restarts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder, batch, mean_loss
from doctor.small_loops import alarms, classes, net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


@pytest.mark.parametrize("by_place", [True, False])
def test_labels_that_are_left_out_by_their_place(by_place: bool) -> None:
    """Every other position is no target; or one token is never a target, wherever it stands."""
    ids = torch.randint(1, 6, (16, 24))
    ids[:, 1::2][torch.rand(16, 12) < 0.4] = 0
    labels = ids.roll(-1, 1)
    if by_place:
        labels[:, ::2] = -100
    labels[labels == 0] = -100
    labels[:, -1] = -100

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten())

    found = watched(Decoder(), lambda: (ids, labels), loss, steps=1)
    assert ("token-never-a-label" in found) != by_place


class AnyOrder(nn.Module):
    """A decoder that reads each row behind a start of its own: the output at a token has not seen it."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.decoder(F.pad(ids[:, :-1], (1, 0), value=VOCAB - 1))
        return out


class Rebuilt(nn.Module):
    """A row through a few numbers and back."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.write = nn.Embedding(VOCAB, 8), nn.Linear(24 * 8, 32)
        self.read = nn.Linear(32, 24 * VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.read(self.write(self.tokens(ids).flatten(1)).tanh()).unflatten(1, (24, VOCAB))
        return out


@pytest.mark.parametrize(("model", "severity"), [(AnyOrder, None), (Rebuilt, "notice"), (Decoder, "fault")])
@pytest.mark.parametrize("before", [True, False])
def test_a_target_that_is_the_own_token(model: type[nn.Module], severity: str | None, before: bool) -> None:
    made, (ids, _) = model(), batch(0)
    optimizer = torch.optim.Adam(made.parameters())
    with limpid.watch(made, optimizer, say=False) as doctor:
        if before:
            doctor.preflight((ids, ids), loss=mean_loss)
        else:
            loss = mean_loss(made, (ids, ids))
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    found = [finding.severity for finding in doctor.findings if finding.rule == "labels-not-shifted"]
    assert found == ([] if severity is None else [severity])


class Layers(nn.Module):
    """Three layers, whose gains, or whose own weights, begin as one number."""

    def __init__(self, gains: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.sizes = nn.Parameter(torch.full((3, 8), 0.3))
        if not gains:
            nn.init.constant_(self.parts[0].weight, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        for part, size in zip(self.parts, self.sizes, strict=True):
            x = x + size * part(x).tanh()
        return x[:, :1]


@pytest.mark.parametrize("gains", [True, False])
def test_gains_of_many_layers_in_one_matrix(gains: bool) -> None:
    found = watched(Layers(gains), lambda: table(width=8), lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1]))
    assert ("initialisation-degenerate" in found) != gains


@pytest.mark.parametrize("kept", [True, False])
def test_masters_of_half_precision_weights(kept: bool) -> None:
    """The optimizer has copies in float32, from which weights are rounded; or copies of nothing that is used."""
    model = Decoder().bfloat16()
    masters = [p.detach().float() + (0 if kept else 0.1) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.0)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(4):
            given = batch(step)
            model.zero_grad()
            loss = F.cross_entropy(model(given[0]).float().flatten(0, 1), given[1].flatten())
            loss.backward()
            for weight, master in zip(model.parameters(), masters, strict=True):
                master.grad = weight.grad.float()
            optimizer.step()
            with torch.no_grad():
                for weight, master in zip(model.parameters(), masters, strict=True):
                    weight.copy_(master)
            doctor.step(loss, given)
    strangers = {"optimizer-holds-strangers", "gradients-not-cleared"} & set(alarms(doctor))
    assert bool(strangers) != kept


@pytest.mark.parametrize("distances", [True, False])
def test_distances_are_negated_before_their_softmax(distances: bool) -> None:
    corners = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(model: nn.Module, given: Any) -> Tensor:
        out = model(given[0])
        return F.cross_entropy(-out, given[1]) if distances else -F.cross_entropy(out, given[1])

    found = watched(corners, classes, loss)
    assert ("gradient-ascent" in found) != distances


@pytest.mark.parametrize(("whole", "limit"), [(True, None), (True, 1.0), (False, None)])
def test_the_likelihood_of_a_row_is_a_sum_over_its_tokens(whole: bool, limit: float | None) -> None:
    """Meant, or not: its size is felt where gradients are clipped. A sum over all rows is one over the batch's size."""

    def loss(model: nn.Module, given: Any) -> Tensor:
        each = F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten(), reduction="none")
        return each.view_as(given[1]).sum(1).mean() if whole else each.sum()

    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        value = loss(model, batch(0))
        value.backward()
        if limit is not None:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        doctor.step(value, batch(0))
    assert ("loss-summed" in alarms(doctor)) == (not whole or limit is not None)
    assert "loss-summed" in [finding.rule for finding in doctor.findings]


@pytest.mark.parametrize("votes", [8, 1])
def test_passes_with_dropout_that_are_averaged(votes: int) -> None:
    """Eight passes over the same rows in training mode; or one over each of the rows that the model is judged by."""
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 3))
    optimizer, check = torch.optim.Adam(model.parameters(), 1e-2), [classes(16) for _ in range(8)]
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(30):
            x, y = classes()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
            if step % 10 == 9:
                with torch.no_grad():
                    for rows, _ in check:
                        torch.stack([model(rows) for _ in range(votes)]).mean(0)
    assert ("dropout-in-evaluation" in alarms(doctor)) == (votes == 1)


@pytest.mark.parametrize("norm", [True, False])
def test_norms_that_keep_no_statistics(norm: bool) -> None:
    """Batch norm by the batch's own statistics in evaluation too; or rows less their mean, without a norm."""

    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    middle = nn.BatchNorm1d(16, track_running_stats=False) if norm else Centred()
    model = nn.Sequential(nn.Linear(3, 16), middle, nn.ReLU(), nn.Linear(16, 3))
    found = watched(model, classes, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    assert ("batch-leaks" in found) != norm


@pytest.mark.parametrize("echoed", [True, False])
def test_a_batch_that_is_learned_several_times_on_end(echoed: bool) -> None:
    """Each batch of labels comes four times in a row, with other noise; or another source begins half way."""
    model = net(3, 16, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(160):
            if not echoed or step % 4 == 0:
                late = step >= 80 and not echoed
                shares = torch.tensor([0.2, 0.3, 0.5] if late else [0.5, 0.3, 0.2])
                y = torch.multinomial(shares, 32, replacement=True, generator=generator)
            x = (2 * torch.eye(3) + late * torch.ones(3, 3))[y] + 0.3 * torch.randn(32, 3)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert ("data-sorted" in alarms(doctor)) != echoed


@pytest.mark.parametrize("warm", [True, False])
def test_moments_that_begin_anew_with_a_warmup(warm: bool) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(40):
            if step in (12, 24, 36):
                optimizer.state.clear()
            optimizer.param_groups[0]["lr"] = 1e-2 * (min(1.0, (step % 12 + 1) / 6) if warm else 1.0)
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert ("moments-do-not-fit" in alarms(doctor)) != warm
    assert "moments-do-not-fit" in [finding.rule for finding in doctor.findings]


@pytest.mark.parametrize("held_up", [True, False])
def test_gains_that_their_gradient_holds_up(held_up: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(50):
            given = table()
            loss = squared(model, given) if not held_up else -model[1].weight.sum()
            loss = loss + 0 * model(given[0]).sum() + (5 * model[0].weight.square().sum() if held_up else 0)
            optimizer.zero_grad()
            loss.backward()
            if not held_up:
                model[1].weight.grad.zero_()
            optimizer.step()
            doctor.step(loss, given)
    assert ("decay-on-gains" in alarms(doctor)) != held_up


def test_log_probabilities_do_not_drift() -> None:
    """Their mean falls as what is unlikely becomes more so; log Z is 0 to rounding."""
    model = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 12), nn.LogSoftmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), 5e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(120):
            ids = torch.randint(0, 8, (8, 6))
            loss = F.nll_loss(model(ids).flatten(0, 1), ids.flatten() // 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert "logits-drift" not in alarms(doctor)


@pytest.mark.parametrize("second", [True, False])
def test_a_body_that_is_frozen_for_a_second_head(second: bool) -> None:
    """A head that had no gradient so far learns once the body is frozen; or the body is frozen and nothing new."""
    model = nn.ModuleDict({"body": net(6, 16), "one": nn.Linear(16, 1), "two": nn.Linear(16, 1)})
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(60):
            late = step >= 25
            model["body"].requires_grad_(not late)
            given = table()
            head = model["two" if late and second else "one"]
            loss = F.mse_loss(head(model["body"](given[0])).flatten(), given[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert ("frozen-on-the-way" in alarms(doctor)) != second


@pytest.mark.parametrize("few", [True, False])
def test_rows_that_are_drawn_from_less_than_a_batch(few: bool) -> None:
    """Twelve rows, of which each step draws 32; or each step has other rows, all of them twice."""
    model, kinds = Decoder(), torch.randint(0, VOCAB, (12, 7))

    def rows() -> tuple[Tensor, Tensor]:
        ids = kinds[torch.randint(0, 12, (32,))] if few else torch.randint(0, VOCAB, (16, 7)).repeat(2, 1)
        return ids[:, :-1], ids[:, 1:]

    found = watched(model, rows, mean_loss, steps=24)
    assert ({"rows-duplicated", "batch-repeats"} & set(found) == set()) == few


def test_a_level_that_is_not_reached_yet() -> None:
    """Targets around 20, towards which predictions climb, that have nothing to do with the inputs."""
    model = net(6, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), 3e-3)
    step = iter(range(70))

    def noise() -> tuple[Tensor, Tensor]:
        return torch.randn(64, 6), torch.randn(64) + 20 + next(step)

    assert "nothing-learned" not in watched(model, noise, squared, 70, optimizer)


@pytest.mark.parametrize("trained", [True, False])
def test_weights_without_norms_that_know_their_text(trained: bool) -> None:
    """A head that has learned which word follows which; or one that favours every word but the right one."""
    words, after = nn.Embedding(12, 16), torch.randperm(12)
    model = nn.Sequential(words, nn.Linear(16, 12, bias=False))
    with torch.no_grad():
        model[1].weight[after] = (0.3 if trained else -0.3) * words.weight
    ids = torch.randint(0, 12, (16, 9))
    for place in range(1, 9):
        ids[:, place] = after[ids[:, place - 1]]
    doctor = limpid.watch(model, torch.optim.Adam(model.parameters(), 1e-3), say=False)
    doctor.preflight((ids[:, :-1], ids[:, 1:]), loss=mean_loss)
    doctor.close()
    assert ("initial-loss-off" in alarms(doctor)) != trained


class Distilled(nn.Module):
    """A net beside the one that it learns from."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.teacher = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 1)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x) + self.teacher(x)


@pytest.mark.parametrize("part", ["teacher", "student"])
def test_a_part_in_evaluation_mode_learns_or_does_not(part: str) -> None:
    """A frozen teacher drops nothing, as is meant; a student that drops nothing learns in the wrong mode."""
    model = Distilled()
    model.get_submodule(part).eval()
    assert ("trained-in-eval-mode" in watched(model, table, squared)) == (part == "student")


class InLists(nn.Module):
    """A decoder whose layers lie part by part in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        self.maps = nn.ModuleList(nn.Linear(32, 96) for _ in range(4))
        self.feed = nn.ModuleList(net(32, 128, 32) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for maps, feed in zip(self.maps, self.feed, strict=True):
            q, k, v = maps(F.layer_norm(x, (32,)))[:, None].chunk(3, -1)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
            x = x + feed(F.layer_norm(x, (32,)))
        out: Tensor = self.head(x)
        return out


def test_parts_of_layers_in_lists_have_their_shortcuts_around_them() -> None:
    with limpid.watch(InLists(), say=False) as doctor:
        doctor.preflight(batch(0), loss=mean_loss)
    assert "residual-missing" not in [finding.rule for finding in doctor.findings]
