"""AdamW and the norm of gradients in limpid's own kernel are PyTorch's, where it is there."""

import math

import pytest
import torch
from torch import nn

from limpid.native import build
from limpid.training import native_adamw, optimizers
from limpid.training.update import clip, update

HERE = build.library() is not None
SHAPES = [(3,), (1,), (32,), (130, 77), (64, 160), (1, 9), (4, 4096 * 3)]


def optimizer(kind: type[torch.optim.Optimizer], **options: object) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    groups = [
        {"params": parameters[3:], "weight_decay": 0.3},
        {"params": parameters[:3], "weight_decay": 0.0},
    ]
    return parameters, kind(groups, lr=0.01, betas=(0.9, 0.95), **options)


def gradients(parameters: list[nn.Parameter], number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


SCALER = torch.amp.GradScaler("cpu", enabled=False)


@pytest.mark.parametrize("looked_at", [True, False])
@pytest.mark.parametrize("limit", [None, 1e9, 1.0])
def test_clipped_updates_are_pytorchs_to_the_bit(limit: float | None, looked_at: bool) -> None:
    """But for entries beyond the last 16, which PyTorch rounds one by one, and in another order; whether somebody looks
    at the gradients before the update or the kernel clips them itself."""
    (ours, own), (theirs, pytorch) = optimizer(optimizers.AdamW, fused=True), optimizer(torch.optim.AdamW, fused=True)
    for number in range(1, 6):
        gradients(ours, number)
        gradients(theirs, number)
        module = nn.ParameterList(ours)
        norm = clip(module, own, SCALER, limit)
        scale = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        if HERE:
            for parameter in theirs[:-1]:
                parameter.grad.mul_(scale)
        elif limit is not None:  # without the kernel PyTorch clips, by a factor in float32
            nn.utils.clip_grad_norm_(theirs, limit)
        if looked_at:
            own.scale_gradients()
            assert all(torch.equal(one.grad, other.grad) for one, other in zip(ours[:-1], theirs[:-1], strict=True))
        update(own, SCALER, 0.01 / number, finite=True)
        update(pytorch, SCALER, 0.01 / number, finite=True)
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):
            exact = {} if one.numel() % 32 == 0 else {"rtol": 3e-7, "atol": 3e-7}
            pairs = [(one, other)]
            pairs += [(own.state[one][name], theirs) for name, theirs in pytorch.state[other].items()]
            for found, expected in pairs:
                torch.testing.assert_close(found.detach(), expected.detach(), **(exact or {"rtol": 0, "atol": 0}))
    assert ours[-1] not in own.state  # it never had a gradient


def test_the_norm_is_that_of_float64_and_of_any_number_of_threads() -> None:
    parameters, own = optimizer(optimizers.AdamW, fused=True)
    gradients(parameters, 1)
    exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters[:-1]))
    found, threads = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(own.norm())
    torch.set_num_threads(threads)
    assert len(set(found)) == 1
    assert found[0] == (pytest.approx(exact, rel=1e-6) if HERE else None)


def test_what_was_to_be_clipped_is_forgotten_with_the_gradients() -> None:
    parameters, own = optimizer(optimizers.AdamW, fused=True)
    gradients(parameters, 1)
    clip(nn.ParameterList(parameters), own, SCALER, 1e-3)
    assert (own.factor < 1) == HERE
    own.zero_grad()
    assert own.factor == 1


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    parameters, own = optimizer(optimizers.AdamW, fused=True)
    gradients(parameters, 1)
    parameters[0].grad[0] = math.inf
    before = [p.detach().clone() for p in parameters]
    norm = clip(nn.ParameterList(parameters), own, SCALER, 1.0)
    assert not update(own, SCALER, 0.01, finite=math.isfinite(norm))
    assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


def test_it_serves_plain_float32_numbers_alone() -> None:
    def served(**changes: object) -> bool:
        one = nn.Parameter(torch.ones(4, 6, dtype=changes.get("dtype", torch.float32)))
        one.grad = torch.ones(6, 4, dtype=one.dtype).T if "turned" in changes else torch.ones_like(one)
        settings = {name: name in changes for name in ("amsgrad", "maximize", "capturable", "differentiable")}
        return native_adamw.serves([{"params": [one], "lr": changes.get("lr", 0.1), **settings}])

    assert served() == HERE
    others: list[dict[str, object]] = [
        {"turned": 1}, {"amsgrad": 1}, {"maximize": 1}, {"dtype": torch.float64}, {"lr": torch.tensor(0.1)},
    ]  # fmt: skip
    assert not any(served(**other) for other in others)
