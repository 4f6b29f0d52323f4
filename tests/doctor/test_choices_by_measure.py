"""Where one measure tells a choice from a mistake: the mistake accuses at once, the choice is told as a notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import LENGTH, VOCAB, WIDTH, Decoder, batch, mean_loss
from doctor.small_loops import net


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


def by_class(model: nn.Module, given: Any) -> Tensor:
    return F.cross_entropy(model(given[0]), given[1])


def severity(
    rule: str,
    model: nn.Module,
    given: Callable[[], Any],
    loss: Callable[[nn.Module, Any], Tensor] = mean_loss,
    steps: int = 3,
    optimizer: Any = None,
) -> str | None:
    """How severe what a rule says of a plain loop is, by itself; "choice" where it may be meant."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False, rules=[rule]) as doctor:
        for _ in range(steps):
            held = given()
            optimizer.zero_grad()
            value = loss(model, held)
            value.backward()
            optimizer.step()
            doctor.step(value, held)
    assert dict(doctor.skipped) == {}
    found = next((one for one in doctor.findings if one.rule == rule), None)
    return None if found is None else "choice" if found.meant else found.severity


class EachAlone(nn.Module):
    """Every token through a few numbers and back, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.read = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.read(self.tokens(ids).tanh())
        return out


@pytest.mark.parametrize(("model", "expected"), [(Decoder, "fault"), (EachAlone, "choice")])
def test_own_tokens_are_copied_by_a_model_of_what_comes_or_coded_one_by_one(
    model: type[nn.Module], expected: str
) -> None:
    ids, _ = batch(0)
    assert severity("labels-not-shifted", model(), lambda: (ids, ids), steps=1) == expected


@pytest.mark.parametrize(("asked", "expected"), [(0.2, "fault"), (1.0, "choice")])
def test_words_that_are_asked_for_and_not_hidden_or_all_of_them_coded(asked: float, expected: str) -> None:
    ids, _ = batch(0)
    labels = ids.masked_fill(torch.rand(ids.shape) > asked, -100)
    assert severity("labels-not-shifted", EachAlone(), lambda: (ids, labels), steps=1) == expected


@pytest.mark.parametrize(("given", "expected"), [(1, "fault"), (2, "choice")])
def test_labels_shifted_again_in_the_loss_or_two_ahead(given: int, expected: str) -> None:
    """The batch's labels are the next tokens, and the loss shifts once more; or the batch asks for the second next."""
    ids = torch.randint(0, VOCAB, (6, LENGTH + 2))
    pair = ids[:, :LENGTH], ids[:, given : given + LENGTH]

    def loss(model: nn.Module, held: Any) -> Tensor:
        logits, labels = model(held[0]), held[1]
        if given == 1:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    assert severity("labels-misaligned", Decoder(), lambda: pair, loss, steps=1) == expected


class Cloze(nn.Module):
    """An output sees the tokens on both sides, but not the one that it is taught."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.read = nn.Embedding(VOCAB, WIDTH), nn.Linear(2 * WIDTH, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        before, behind = x.cumsum(1), x.flip(1).cumsum(1).flip(1)
        out: Tensor = self.read(torch.cat([before, F.pad(behind[:, 2:], (0, 0, 0, 2))], -1))
        return out


def test_outputs_that_see_their_answer_or_what_stands_around_it() -> None:
    seeing = Decoder()
    for block in seeing.blocks:
        block.causal = False
    assert severity("not-causal", seeing, lambda: batch(0), steps=1) == "fault"
    assert severity("not-causal", Cloze(), lambda: batch(0), steps=1) == "choice"


class Among(nn.Module):
    """Rows of (step, number): each sees the others, in any order or by a wrong view."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view, self.head = view, nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.view:
            x = x.reshape(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)
        out: Tensor = self.head((x if self.view else x + x.mean(0)).flatten(1).tanh())
        return out


@pytest.mark.parametrize(("view", "expected"), [(True, "fault"), (False, "choice")])
def test_rows_that_meet_in_any_order_or_by_a_wrong_view(view: bool, expected: str) -> None:
    held = torch.randn(5, 3, 4), torch.randint(0, 3, (5,))
    assert severity("batch-leaks", Among(view), lambda: held, by_class, steps=1) == expected


class Biased(nn.Module):
    """Attention with a mask of 0 and 1 that is added."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x)[:, None].chunk(3, -1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)
        out: Tensor = self.head(mixed[:, 0].mean(1))
        return out


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(torch.ones(6, 6).tril(), "fault"), ((torch.eye(6) + torch.eye(6).roll(1, 0)).clamp(max=1), "choice")],
)
def test_a_mask_is_added_or_the_edges_of_a_graph(mask: Tensor, expected: str) -> None:
    held = torch.randn(8, 6, 8), torch.randint(0, 3, (8,))
    assert severity("mask-is-added", Biased(mask), lambda: held, by_class, steps=1) == expected


@pytest.mark.parametrize("rolled", [True, False])
def test_targets_of_a_neighbour_or_of_the_next_time(rolled: bool) -> None:
    """Rows of a table whose targets moved on by one; or a series whose own past tells nothing of what comes next."""
    values = torch.randn(4096, 6)
    state = [0.3]
    for _ in range(4096):
        state.append(3.99 * state[-1] * (1 - state[-1]))
    if not rolled:  # a chaotic series: its next value is no straight line of the one before
        values[:, 0] = torch.tensor(state[:4096])
    start = iter(range(0, 4096, 64))

    def given() -> tuple[Tensor, Tensor]:
        at = next(start)
        x = values[at : at + 64]
        y = (x[:, 0] + 0.1 * x[:, 1]).roll(1) if rolled else torch.tensor(state[at + 1 : at + 65])
        return x, y

    found = severity("targets-of-other-rows", net(6, 16, 1), given, squared, steps=20)
    assert found == ("fault" if rolled else "choice")


@pytest.mark.parametrize("dropped", [True, False])
def test_a_target_among_the_columns_that_the_model_is_given_or_that_the_loop_takes_out(dropped: bool) -> None:
    def given() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 6)
        return x, x[:, 0]

    def loss(model: nn.Module, held: Any) -> Tensor:
        return F.mse_loss(model(held[0][:, 1:] if dropped else 2 * held[0]).flatten(), held[1])

    found = severity("target-in-inputs", net(5 if dropped else 6, 16, 1), given, loss)
    assert found == (None if dropped else "fault")


class Listed(nn.Module):
    """Layers that stand in a list of Python's: several that were forgotten, or one that is hidden."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.hidden = [nn.Linear(6, 6) for _ in range(count)]
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x).tanh()
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize(("count", "expected"), [(2, "fault"), (1, "choice")])
def test_layers_in_a_list_or_one_that_is_hidden_in_it(count: int, expected: str) -> None:
    held = torch.randn(16, 6), torch.randn(16)
    assert severity("parameters-not-registered", Listed(count), lambda: held, squared, steps=4) == expected


@pytest.mark.parametrize(("momentum", "expected"), [(1.1, "fault"), (1.0, "choice"), (0.9, None)])
def test_a_momentum_that_grows_or_sums(momentum: float, expected: str | None) -> None:
    model = net(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=momentum)
    held = torch.randn(16, 6), torch.randn(16)
    assert severity("momentum-without-end", model, lambda: held, squared, 1, optimizer) == expected


@pytest.mark.parametrize(("wrong", "expected"), [(True, "fault"), (False, None)])
def test_rewards_that_are_lowered_or_known_actions_that_are_imitated(wrong: bool, expected: str | None) -> None:
    """Of actions that are imitated the rewarded ones may be sure already: their push is the least, and upwards."""
    model, states = net(4, 8), torch.randn(64, 4)
    actions = torch.randint(0, 8, (64,))
    rewards = (states[:, 0] > 0).float() + 0.01 * torch.randn(64)

    def given() -> dict[str, Tensor]:
        return {"states": states, "actions": actions, "rewards": rewards}

    def loss(model: nn.Module, held: Any) -> Tensor:
        known = F.one_hot(held["actions"], 8) * 4.0 * (held["rewards"] > 0.5)[:, None]
        logs = (model(held["states"]) + (0 if wrong else known)).log_softmax(-1)
        chosen = logs.gather(1, held["actions"][:, None])[:, 0]
        return (chosen * (held["rewards"] - held["rewards"].mean())).mean() if wrong else -chosen.mean()

    assert severity("reward-descended", model, given, loss) == expected


@pytest.mark.parametrize(("moved", "expected"), [(False, "fault"), (True, "choice")])
def test_an_optimizer_of_a_stale_copy_or_of_what_weights_are_made_from(moved: bool, expected: str) -> None:
    """Weights that are the signs of those that the optimizer holds, as of binary nets; or a copy that nobody reads."""
    model, held = net(6, 8, 1), (torch.randn(16, 6), torch.randn(16))
    beside = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(beside, lr=0.1)

    def loss(model: nn.Module, given: Any) -> Tensor:
        with torch.no_grad():
            for own, other in zip(model.parameters(), beside, strict=True):
                other.grad = None if own.grad is None else own.grad.clone()
                own.copy_(other.sign() * other.abs().mean() if moved else own)
        model.zero_grad()
        return squared(model, given)

    assert severity("optimizer-holds-strangers", model, lambda: held, loss, 11, optimizer) == expected


@pytest.mark.parametrize(("lost", "expected"), [(0.9, "fault"), (0.2, "choice")])
def test_a_loss_that_rises_by_most_of_what_was_learned_or_by_a_harder_task(lost: float, expected: str) -> None:
    from limpid.doctor.rules.loss_curve import LOSS_DIVERGES, Stream, _judged

    draw, stream = torch.Generator().manual_seed(0), Stream()
    noise = (0.02 * torch.randn(200, generator=draw)).tolist()
    falls = [1 + 3 * 0.9**step + noise[step] for step in range(160)]
    found = []
    for step, value in enumerate([*falls, *(1 + 3 * lost + x for x in noise[:40])]):
        stream.add(value, 6)
        found += [one for one in _judged(stream, step, False) if one.rule == LOSS_DIVERGES.slug]
    assert ("choice" if found[0].meant else "fault") == expected


@pytest.mark.parametrize(("same", "expected"), [(True, "fault"), (False, "choice")])
def test_a_schedule_of_an_optimizer_that_was_made_anew_or_of_another_model(same: bool, expected: str) -> None:
    model = net(6, 1)
    other = torch.optim.Adam((model if same else net(6, 1)).parameters())
    schedule = torch.optim.lr_scheduler.StepLR(other, 10)
    optimizer, rule = torch.optim.Adam(model.parameters()), "schedule-of-another-optimizer"
    with limpid.watch(model, optimizer, scheduler=schedule, say=False, rules=[rule]) as doctor:
        found = doctor.preflight((torch.randn(8, 6), torch.randn(8)))
    assert ["choice" if one.meant else one.severity for one in found] == [expected]
