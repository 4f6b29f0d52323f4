"""Established practice that looks odd: each was accused once, and each is cleared by what the measurement proves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import LENGTH, WIDTH, Decoder, Loop, batch, groups, mean_loss, preflight, rules
from limpid.doctor.calls import Call
from limpid.doctor.history import History
from limpid.doctor.loss_gradient import read
from limpid.doctor.row_history import RowHistory
from limpid.doctor.rules.mixture import border
from limpid.doctor.step_record import StepRecord


class LowRank(nn.Module):
    """W x + (α/r) B A x."""

    def __init__(self, base: nn.Linear, ratio: float) -> None:
        super().__init__()
        self.base, self.ratio = base, ratio
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * self.ratio


def test_an_adapter_that_is_multiplied_is_no_factor_of_the_scores() -> None:
    model = Decoder()
    for block in model.blocks:
        block.qkv = LowRank(block.qkv, 4.0)
    assert preflight(model) == []


def log_likelihood(model: nn.Module, given: Any) -> Tensor:
    logits = model(given[0]).log_softmax(-1)
    return logits.gather(-1, given[1][..., None])[..., 0].sum(-1)


def preferred(model: nn.Module, given: Any) -> Tensor:
    chosen, rejected = log_likelihood(model, given).chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def by_policy(model: nn.Module, given: Any) -> Tensor:
    rewards = torch.tensor([5.0, 0.1, 0.0, 0.2, 0.0, 0.1])
    advantages = (rewards - rewards.mean()) / rewards.std()
    return -(advantages * log_likelihood(model, given)).mean() / LENGTH


def spread_over_few(model: nn.Module, given: Any) -> Tensor:
    """A little off cross-entropy: one part in a hundred is another's."""
    logits = model(given[0]).flatten(0, 1)
    return F.cross_entropy(logits, given[1].flatten(), label_smoothing=0.01) + 1e-4 * logits.pow(2).mean()


def of_normalised(model: nn.Module, given: Any) -> Tensor:
    return F.nll_loss(model(given[0]).log_softmax(-1).flatten(0, 1), given[1].flatten())


@pytest.mark.parametrize("loss", [preferred, by_policy, spread_over_few, of_normalised])
def test_objectives_that_are_no_cross_entropy_are_not_taken_for_a_slip_of_one(loss: Callable[..., Tensor]) -> None:
    assert preflight(Decoder(), loss=loss) == []


def test_one_answer_that_is_made_less_likely_in_a_step_of_several_is_no_negated_loss() -> None:
    """Two micro-batches with advantages -1 and 1, as of a group of two."""
    loop = Loop(k=2)
    signs = [1.0, -1.0]
    loop.loss = lambda given: signs.pop() * mean_loss(loop.model, given) if signs else mean_loss(loop.model, given)  # type: ignore[method-assign]
    _, doctor = loop.run(2)
    assert "gradient-ascent" not in rules(doctor.findings)


def test_a_tensor_is_judged_by_the_rate_of_its_own_group() -> None:
    model = Decoder()
    rest = [p for p in model.parameters() if p is not model.tokens.weight]
    optimizer = torch.optim.AdamW(
        [{"params": [model.tokens.weight], "lr": 0.3}, {"params": rest}], lr=1e-3, weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        assert rules(doctor.preflight(batch(0), loss=mean_loss, total_steps=100)) == []


def test_gains_are_decayed_by_the_rate_of_their_own_group() -> None:
    model = Decoder()
    held = groups(model)
    held[0]["lr"] = 1.0  # matrices, under an update that is scaled by them
    held[1] |= {"lr": 1e-4, "weight_decay": 0.1}
    optimizer = torch.optim.SGD(held, lr=1e-4)
    with limpid.watch(model, optimizer, say=False, rules=["decay-on-gains"]) as doctor:
        assert rules(doctor.preflight(batch(0), loss=mean_loss, total_steps=1000)) == []


class Narrow(torch.optim.Optimizer):
    """Adam on bfloat16 weights, which rounds at random or remembers what rounding took."""

    def __init__(self, parameters: Any, lr: float, *, at_random: bool) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})
        self.at_random = at_random

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad.float()
                count = state["step"] = state.get("step", 0) + 1
                m = state.setdefault("exp_avg", torch.zeros_like(g)).lerp_(g, 0.1) / (1 - 0.9**count)
                v = state.setdefault("exp_avg_sq", torch.zeros_like(g)).lerp_(g * g, 0.05) / (1 - 0.95**count)
                wanted = p.float() + state.get("taken", 0.0) - group["lr"] * m / (v.sqrt() + group["eps"])
                if self.at_random:
                    bits = wanted.view(torch.int32) + torch.randint(0, 2**16, wanted.shape, dtype=torch.int32)
                    p.copy_((bits & -(2**16)).view(torch.float32))
                else:
                    p.copy_(wanted)
                    state["taken"] = wanted - p.float()


@pytest.mark.parametrize("rate", [1e-3, 1e-5])
@pytest.mark.parametrize("at_random", [True, False])
def test_narrow_weights_that_lose_nothing(rate: float, at_random: bool) -> None:
    loop = Loop(Decoder().to(torch.bfloat16))
    loop.optimizer = Narrow(loop.model.parameters(), rate, at_random=at_random)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1.0)
    _, doctor = loop.run(12)
    assert rules(doctor.findings) == []


def test_narrow_weights_of_somebody_elses_optimizer_that_lose_much_are_found() -> None:
    loop = Loop(Decoder().to(torch.bfloat16))
    loop.optimizer = Narrow(loop.model.parameters(), 1e-3, at_random=False)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1.0)
    forgetful = loop.optimizer.step

    def step(closure: None = None) -> None:
        forgetful()
        for state in loop.optimizer.state.values():
            state["taken"] = 0.0

    loop.optimizer.step = step  # type: ignore[method-assign]
    _, doctor = loop.run(21)
    assert rules(doctor.findings) == ["updates-lost-to-rounding"]


def test_blocks_that_are_thawed_one_by_one() -> None:
    loop = Loop(Decoder(blocks=3))
    for block in loop.model.blocks[:2]:
        block.requires_grad_(False)

    def at(number: int) -> Any:
        if number in (4, 8):
            loop.model.blocks[2 - number // 4].requires_grad_(True)
        return batch(number)

    loop.batch = at  # type: ignore[method-assign]
    _, doctor = loop.run(14)
    assert rules(doctor.findings) == []


class Packed(Decoder):
    """Rotary positions and documents as they are given."""

    def __init__(self) -> None:
        super().__init__(rotary=True)
        self.seen: Tensor | None = None

    def forward(self, ids: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        document = (position_ids == 0).cumsum(1)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        visible = ((document[:, :, None] == document[:, None]) & causal)[:, None]
        x = self.tokens(ids)
        for block in self.blocks:
            heads = (*x.shape[:2], 2, -1)
            query, key, value = (p.view(heads).transpose(1, 2) for p in block.qkv(block.norm1(x)).chunk(3, -1))
            query, key = (turned(part, position_ids) for part in (query, key))
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
            x = x + block.out(mixed.transpose(1, 2).flatten(-2))
            x = x + block.down(F.gelu(block.up(block.norm2(x))))
        return self.head(self.norm(x))


def turned(x: Tensor, positions: Tensor) -> Tensor:
    angle = positions[:, None, :, None] * 100.0 ** (-torch.arange(x.shape[-1] // 2) / (x.shape[-1] // 2))
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def test_documents_that_end_at_another_place_in_each_row() -> None:
    ids, targets = batch(0)
    places = torch.arange(LENGTH)
    borders = torch.tensor([5, 17, 9, 30, 12, 7])[:, None]  # the fourth row is one document
    positions = torch.where(places >= borders, places - borders, places)

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given[0], position_ids=positions).flatten(0, 1), given[1].flatten())

    assert preflight(Packed(), (ids, targets), loss=loss) == []


def test_padding_whose_vector_is_nothing_says_nothing_of_rotation() -> None:
    model = Decoder(rotary=True)
    for block in model.blocks:
        nn.init.zeros_(block.qkv.bias)
    with torch.no_grad():
        model.tokens.weight[0] = 0
    ids, targets = batch(0)
    ids, targets = ids.clamp(min=1), targets.clamp(min=1)
    ids[0], targets[0] = 0, -100
    assert preflight(model, (ids, targets)) == []


def test_zeros_of_a_float32_gradient_are_not_the_doing_of_float16() -> None:
    """Cross-entropy among the label and a few words, of weight 1e-7: the other logits get exact zeros."""
    torch.manual_seed(0)
    logits = torch.randn(4, 8, 1000, requires_grad=True)
    few = torch.stack([torch.randperm(1000)[:40] for _ in range(32)]).view(4, 8, 40)
    loss = F.cross_entropy(logits.gather(-1, few).flatten(0, 1), torch.zeros(32, dtype=torch.long)) * 1e-6
    (gradient,) = torch.autograd.grad(loss, logits)
    found = read(logits, gradient, few[..., 0])
    assert found is not None
    assert found.zeros > 0.9
    assert not found.of_half
    half = read(logits, gradient.half().float(), few[..., 0])
    assert half is not None
    assert half.of_half


def borders(batches: list[np.ndarray]) -> list[int | None]:
    """At which steps the order of these rows is spoken of."""
    history = History(rows=RowHistory())
    found: list[int | None] = []
    for number, rows in enumerate(batches, 1):
        history.rows.take([torch.from_numpy(rows)], [])
        found += [finding.step for finding in border(SimpleNamespace(), StepRecord(number), history)]  # type: ignore[arg-type]
    return found


def test_a_book_is_read_in_order_and_a_change_of_source_is_not() -> None:
    """Words come and go with the page; then the whole vocabulary changes at once."""
    random = np.random.default_rng(0)
    topic, pages = np.zeros(60), []
    for _ in range(80):
        topic = 0.9 * topic + 0.3 * random.standard_normal(60)
        p = np.exp(topic) / np.exp(topic).sum()
        pages.append(random.choice(60, (8, 64), p=p))
    assert borders(pages) == []
    others = [random.choice(np.arange(40, 100), (8, 64)) for _ in range(24)]
    assert borders(pages[:40] + others) == [56]


def test_a_schedule_that_ends_at_nothing_is_not_a_rate_that_is_too_low() -> None:
    loop = Loop()
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1.0 if step < 15 else 1e-6)
    _, doctor = loop.run(40, total_steps=40, rules=["learning-rate-too-low"])
    assert rules(doctor.findings) == []


def test_positions_that_are_given_by_place_are_no_labels() -> None:
    """A model called as model(ids, mask, positions): only what forward names a label is one."""

    class Packed(nn.Module):
        def forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor: ...

    class Taught(nn.Module):
        def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor: ...

    ids, positions = torch.zeros(2, 5, dtype=torch.long), torch.arange(5).expand(2, 5)
    assert Call.to(Packed(), (ids, torch.ones(2, 5, 5), positions), {}).labels is None
    assert Call.to(Taught(), (ids, positions), {}).labels is positions
