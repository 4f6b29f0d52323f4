"""What holds of gradients between the loss and the update, whatever the loop is; and loops in which it looks odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.bench import HEADS, WIDTH, Decoder, Loop, batch, groups, mean_loss, rules, warm
from limpid.doctor import Finding
from limpid.doctor.idle_units import longest_run


def named(loop: Loop, rule: str, steps: int = 6) -> Finding:
    _, doctor = loop.run(steps)
    assert rules(doctor.findings)[0] == rule
    assert doctor.skipped == {}
    return doctor.findings[0]


def silent(loop: Loop, steps: int = 12) -> None:
    _, doctor = loop.run(steps)
    assert rules(doctor.findings) == []
    assert doctor.skipped == {}


# between backward passes


def test_of_micro_batches_that_are_cleared_only_the_last_is_learned_from() -> None:
    loop = Loop(k=3)

    def clear_first(loss: Tensor) -> None:
        loop.optimizer.zero_grad()
        loss.backward()

    loop.backward = clear_first  # type: ignore[method-assign]
    finding = named(loop, "passes-count-unequally")
    assert finding.severity == "fault"
    assert finding.evidence["least_share"] == 0


def test_clipping_between_passes_shrinks_the_first_ones_by_what_it_multiplies_them_with() -> None:
    """With a clip to c after each pass the first of two reaches the update by c / ‖c g₁/‖g₁‖ + g₂‖."""
    loop = Loop(k=2)

    def clip_each(loss: Tensor) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)

    loop.backward, loop.clip = clip_each, lambda: None  # type: ignore[method-assign]
    finding = named(loop, "passes-count-unequally")
    assert (finding.severity, finding.is_said) == ("notice", True)
    assert finding.evidence["least_share"] < 0.2
    assert "clipped" in finding.says


def test_what_is_cleared_in_one_part_alone_is_named() -> None:
    loop = Loop(k=2)

    def clear_the_head(loss: Tensor) -> None:
        loop.model.head.weight.grad = None
        loss.backward()

    loop.backward = clear_the_head  # type: ignore[method-assign]
    finding = named(loop, "passes-count-unequally")
    assert finding.where == "head.weight"


def towards_flat_places(loop: Loop) -> None:
    """Sharpness-aware: a pass, a step up, another pass there on the same rows."""

    def step() -> tuple[float, list[Any]]:
        given = loop.batch(loop.number)
        mean_loss(loop.model, given).backward()
        steps = [(p, 0.01 * p.grad / p.grad.norm()) for p in loop.model.parameters()]
        with torch.no_grad():
            for p, up in steps:
                p += up
        loop.optimizer.zero_grad()
        loss = mean_loss(loop.model, given)
        loss.backward()
        with torch.no_grad():
            for p, up in steps:
                p -= up
        loop.optimizer.step()
        loop.scheduler.step()
        loop.clear()
        return float(loss.detach()), [given]

    loop.step = step  # type: ignore[method-assign]


def looks_at_other_rows(loop: Loop) -> None:
    """A gradient of held-out rows is measured and thrown away before each step."""

    def step() -> tuple[float, list[Any]]:
        mean_loss(loop.model, batch(1000 + loop.number)).backward()
        loop.optimizer.zero_grad()
        return Loop.step(loop)

    loop.step = step  # type: ignore[method-assign]


def joins_two_losses(loop: Loop) -> None:
    """The gradient of each task alone, then both without what they disagree in."""

    def step() -> tuple[float, list[Any]]:
        batches, each = [loop.batch(2 * loop.number + j) for j in range(2)], []
        for given in batches:
            loop.optimizer.zero_grad()
            loss = mean_loss(loop.model, given)
            loss.backward()
            each.append([p.grad.clone() for p in loop.model.parameters()])
        for p, a, b in zip(loop.model.parameters(), *each, strict=True):
            p.grad = torch.where((a * b) > 0, a + b, 0.0)
        loop.optimizer.step()
        loop.scheduler.step()
        loop.clear()
        return float(loss.detach()), batches

    loop.step = step  # type: ignore[method-assign]


def each_keeps_its_own(loop: Loop) -> None:
    """The table's optimizer steps every third time, on the gradients of three steps."""
    table = torch.optim.SGD([loop.model.tokens.weight], lr=0.1)
    rest = torch.optim.AdamW([p for name, p in loop.model.named_parameters() if name != "tokens.weight"], lr=3e-3)

    def step() -> tuple[float, list[Any]]:
        given = loop.batch(loop.number)
        loss = mean_loss(loop.model, given)
        loss.backward()
        for optimizer in (rest, table)[: 1 + (loop.number % 3 == 2)]:
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach()), [given]

    loop.step, loop.optimizer, loop.scheduler = step, [rest, table], None  # type: ignore[method-assign,assignment]


def checkpointed(loop: Loop) -> None:
    """A backward pass inside another for each block."""
    from torch.utils.checkpoint import checkpoint

    for block in loop.model.blocks:
        block.forward = lambda x, call=block.forward: checkpoint(call, x, use_reentrant=True)


@pytest.mark.parametrize(
    "honest", [towards_flat_places, looks_at_other_rows, joins_two_losses, each_keeps_its_own, checkpointed]
)
def test_passes_that_count_unequally_by_intent(honest: Any) -> None:
    loop = Loop(k=2 if honest is checkpointed else 1)
    honest(loop)
    silent(loop)


def test_what_is_left_of_one_tensor_alone_is_named() -> None:
    loop = Loop()
    loop.clear = lambda: [setattr(p, "grad", None) for n, p in loop.model.named_parameters() if "head" not in n]  # type: ignore[method-assign,assignment,return-value]
    assert named(loop, "gradients-not-cleared").where == "head.weight"


# inside a matrix


def with_parts(block: Any, change: Any, act: Any = F.gelu) -> None:
    """A block whose query, key and value go through something."""

    def forward(x: Tensor) -> Tensor:
        heads = (*x.shape[:2], HEADS, -1)
        parts = change(*(part.view(heads).transpose(1, 2) for part in block.qkv(block.norm1(x)).chunk(3, -1)))
        x = x + block.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(-2))
        return x + block.down(act(block.up(block.norm2(x))))

    block.forward = forward


def only_first_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return query, key, value * torch.tensor([1.0, 0.0])[:, None, None]


@pytest.mark.parametrize(
    ("change", "where", "first", "last"),
    [
        (lambda q, k, v: (q, k.detach(), v), "blocks.1.qkv.weight", WIDTH, 2 * WIDTH - 1),
        (only_first_head, "blocks.1.out.weight", WIDTH // 2, WIDTH - 1),
    ],
)
def test_a_slice_that_the_loss_does_not_depend_on(change: Any, where: str, first: int, last: int) -> None:
    loop = Loop()
    with_parts(loop.model.blocks[1], change)
    finding = named(loop, "slice-without-gradient")
    assert (finding.where, finding.evidence["first"], finding.evidence["last"]) == (where, first, last)


def test_units_behind_a_relu_that_never_opens_are_dead() -> None:
    loop = Loop()
    for block in loop.model.blocks:
        with_parts(block, lambda *parts: parts, F.relu)
        with torch.no_grad():
            block.up.bias[: 4 * WIDTH - 4] = -9.0
            block.up.bias.copy_(block.up.bias[torch.randperm(4 * WIDTH, generator=torch.Generator().manual_seed(0))])
    _, doctor = loop.run(6)
    assert rules(doctor.findings) == ["units-dead"]


def squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def few_open(x: Tensor) -> Tensor:
    return torch.where(x >= x.topk(4, -1).values[..., -1:], x, 0.0)


@pytest.mark.parametrize("act", [F.relu, squared, few_open, F.hardswish])
def test_activations_that_are_often_0(act: Any) -> None:
    loop = Loop()
    for block in loop.model.blocks:
        with_parts(block, lambda *parts: parts, act)
    silent(loop, 25)


def test_units_that_were_taken_out_and_a_matrix_that_begins_at_0() -> None:
    loop = Loop()
    first, second = loop.model.blocks
    with torch.no_grad():
        first.up.weight[:64] = 0
        first.up.bias[:64] = 0
        first.down.weight[:, :64] = 0
        second.out.weight.zero_()
    silent(loop)


def test_an_expert_that_few_tokens_reach() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(WIDTH, 8)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

        def forward(self, x: Tensor) -> Tensor:
            weight, chosen = self.gate(x).softmax(-1).max(-1)
            return sum((chosen == i)[..., None] * weight[..., None] * e(x) for i, e in enumerate(self.experts))

    model = Decoder()
    for block in model.blocks:
        block.up, block.down = Mixture(), nn.Identity()
    loop = Loop(model)
    silent(loop, 25)


def test_where_idle_units_lie_side_by_side() -> None:
    idle = torch.tensor([True, False, True, True, True, False])
    assert longest_run(idle) == (2, 3)
    assert longest_run(~idle) == (1, 1)
    assert longest_run(idle & ~idle) == (0, 0)


# optimizers whose updates are not Adam's


@pytest.mark.parametrize("make", [torch.optim.RAdam, torch.optim.NAdam, torch.optim.Adamax, torch.optim.Adafactor])
def test_other_rules_of_torch(make: Any) -> None:
    loop = Loop()
    loop.optimizer = make(groups(loop.model), lr=3e-3)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, warm)
    silent(loop, 25)
