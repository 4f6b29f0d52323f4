"""The account of a gradient's error is the gradient's deviation from float64."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import limpid
from limpid.errors import ConfigError
from limpid.operations.account import Account
from operations.models import step_of

NEAR = 1e-5
"""The share of what is measured that float64 leaves over, where rounding is that of fp32."""


def accounted(
    model: nn.Module, loss: Callable[[], Tensor], of: Sequence[str] = ("grad",), form: str = "fp32", scale: float = 1.0
) -> list[Account]:
    """Of one step, with what is measured."""
    narrow = torch.float16 if form == "fp16" else torch.bfloat16

    def run() -> Tensor:
        with torch.autocast("cpu", narrow, enabled=form in ("autocast", "fp16")):
            return loss() * scale

    with limpid.recording(model, errors_of=of) as recorded:
        run().backward()
    return [recorded.verify().error_of(one, recorded.in_float64(run, one)) for one in of]


def assert_near(found: Account) -> None:
    assert found.measured
    assert found.remainder is not None
    assert found.unknown == 0
    assert abs(found.remainder) < NEAR * abs(found.measured), str(found)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *itertools.product(["Llama", "recurrent"], ["fp32", "bf16", "autocast", "fp16"]),
        ("BERT", "bf16"), ("BERT", "autocast"), ("T5", "autocast"), ("T5", "fp16"), ("Mamba", "fp32"),
        ("Mamba", "bf16"),
    ],
)  # fmt: skip
def test_the_account_of_a_gradient_is_its_deviation_from_float64(name: str, form: str) -> None:
    model, loss_of = step_of(name)
    model = model.eval().bfloat16() if form == "bf16" else model.eval()
    first, last = [name for name, _ in model.named_parameters()][:: len(list(model.parameters())) - 1]
    of = ["grad", f"grad({first})", f"grad({last})"]
    for found in accounted(model, lambda: loss_of(model), of, form, 2.0**10 if form == "fp16" else 1.0):
        assert_near(found)
        assert found.total == pytest.approx(sum(one.error for one in found.by_module))
        assert found.total == pytest.approx(sum(one.error for one in found.by_operation))


@pytest.mark.parametrize("name", ["Mixtral", "convolutions", "recurrent"])
def test_in_fp32_the_first_order_is_nearly_all_of_it(name: str) -> None:
    model, loss_of = step_of(name)
    (found,) = accounted(model, lambda: loss_of(model))
    assert_near(found)
    assert abs(found.beyond) < 1e-3 * abs(found.total)


def test_units_that_rounding_switches_are_beyond_the_first_order_and_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)).bfloat16()
    x = torch.randn(64, 16).bfloat16()
    (found,) = accounted(model, lambda: model(x).float().square().mean())
    assert_near(found)
    assert abs(found.beyond) > 0.01 * abs(found.measured or 0)
    assert max(found.bent, key=lambda one: abs(one.error)).name.startswith("aten.threshold_backward")
    assert found.beyond == pytest.approx(sum(one.error for one in found.bent))
    assert "beyond first order" in str(found)


class Routed(nn.Module):
    """Each row by the expert whose score is largest: two of them nearly alike."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        first = torch.randn(8, 1, generator=draw)
        self.router = nn.Parameter(torch.cat([first, first + 1e-3 * torch.randn(8, 1, generator=draw)], 1))
        self.experts = nn.Parameter(torch.randn(2, 8, 8, generator=draw))

    def forward(self, x: Tensor) -> Tensor:
        score, chosen = (x @ self.router).softmax(-1).topk(1)
        return torch.bmm(x[:, None], self.experts[chosen[:, 0]])[:, 0].tanh() * score


def test_an_expert_that_rounding_chose_is_accounted_for() -> None:
    model = Routed().bfloat16()
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    wide = x.double() @ model.router.detach().double()
    assert torch.any(wide.argmax(-1) != (x @ model.router).argmax(-1))
    (found,) = accounted(model, lambda: model(x).float().square().sum())
    assert_near(found)
    assert abs(found.beyond) > 0.01 * abs(found.measured or 0)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *itertools.product(["GPT-2"], ["bf16", "autocast", "fp16"]),
        ("Mixtral", "bf16"), ("convolutions", "autocast"), ("recurrent", "fp16"),
    ],
)  # fmt: skip
def test_what_is_asked_for_of_the_loss_is_all_of_its_deviation(name: str, form: str) -> None:
    model, loss_of = step_of(name)
    if form == "bf16":
        model = model.bfloat16()
    (found,) = accounted(model.eval(), lambda: loss_of(model), ["loss"], form)
    assert_near(found)


def small() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(16, 8)
    return model, lambda: model(x).square().mean()


def test_one_entry_is_accounted_for_as_the_engine_has_it() -> None:
    model, loss = small()
    (found,) = accounted(model, loss, ["grad(0.weight)[3, -2]"])
    assert found.engine == pytest.approx(model[0].weight.grad[3, -2].item())
    assert_near(found)


def test_a_direction_of_ones_own_is_accounted_for_beside_others() -> None:
    model, loss = small()
    draw = torch.Generator().manual_seed(5)
    along = {name: torch.randn(one.shape, generator=draw) for name, one in model[0].named_parameters(prefix="0")}
    with limpid.recording(model, errors_of={"grad(2.bias)": None, "drawn": along}) as recorded:
        loss().backward()
    report = recorded.verify()
    found = report.error_of("drawn", recorded.in_float64(loss, "drawn"))
    assert found.engine == pytest.approx(
        sum(float((v * model.get_parameter(name).grad).sum()) for name, v in along.items())
    )
    assert_near(found)
    assert_near(report.error_of("grad(2.bias)", recorded.in_float64(loss, "grad(2.bias)")))


def test_the_norm_of_all_is_what_clipping_takes() -> None:
    model, loss = small()
    (found,) = accounted(model, loss)
    assert found.engine == pytest.approx(nn.utils.get_total_norm([one.grad for one in model.parameters()]).item())


def test_what_is_done_to_a_gradient_behind_the_backward_pass_does_not_matter() -> None:
    (expected,) = accounted(*small())
    model, loss = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with limpid.recording(model, optimizer, errors_of=["grad"]) as recorded:
        _update(model, loss, optimizer)
        optimizer.zero_grad(set_to_none=False)
    found = recorded.verify().error_of("grad")
    assert (found.engine, found.total) == (pytest.approx(expected.engine), pytest.approx(expected.total))


def test_an_optimizer_that_the_recording_does_not_know_changes_nothing_of_it() -> None:
    (expected,) = accounted(*small())
    model, loss = small()
    with limpid.recording(model, errors_of=["grad"]) as recorded:
        _update(model, loss, torch.optim.AdamW(model.parameters(), lr=0.1))
    found = recorded.verify().error_of("grad")
    assert (found.engine, found.total) == (pytest.approx(expected.engine), pytest.approx(expected.total))


def _update(model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> None:
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def test_the_step_is_the_same_to_the_bit() -> None:
    model, loss = small()
    other, other_loss = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with limpid.recording(model, optimizer, errors_of=["grad", "grad(0.bias)"]):
        _update(model, loss, optimizer)
    _update(other, other_loss, torch.optim.AdamW(other.parameters(), lr=0.1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_micro_batches_add_up() -> None:
    model, _ = small()
    parts = torch.randn(2, 16, 8)

    def loss() -> Tensor:
        return (model(parts[0]).square().mean() + model(parts[1]).square().mean()) / 2

    with limpid.recording(model, errors_of=["grad", "loss"]) as recorded:
        for part in parts:
            (model(part).square().mean() / 2).backward()
    assert_near(recorded.verify().error_of("grad", recorded.in_float64(loss, "grad")))
    assert_near(recorded.verify().error_of("loss", recorded.in_float64(loss)))


class Written(nn.Module):
    """Memory that is filled in place, a part of it twice, and read through views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        held = torch.zeros(6, 12, dtype=x.dtype)
        held[:, :6] = x @ self.weight
        held[:, 3:9] += (x * self.weight).exp() / 7
        windows = held.unfold(1, 4, 2)
        held.mul_(1 / 3)
        return (windows.square().sum(-1) * held.t()[:5].t()).tanh()


def test_memory_that_is_written_in_place_is_followed() -> None:
    model = Written()
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    (found,) = accounted(model, lambda: model(x).square().sum(), ["grad(weight)"])
    assert_near(found)


class Curved(torch.autograd.Function):
    """1.1 exp(x / 3), with its backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        made = (x / 3).exp() * 1.1
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (made,) = ctx.saved_tensors
        return grads[0] * made / 3


class Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, generator=torch.Generator().manual_seed(2)).bfloat16())

    def forward(self) -> Tensor:
        return (Curved.apply(self.weight) * 1.1).float().square().sum()


def test_both_passes_of_a_custom_function_are_accounted_for() -> None:
    model = Bent()
    for found in accounted(model, model.forward, ["grad", "grad(weight)[5]", "loss"]):
        assert_near(found)


@torch.library.custom_op("limpid_tests::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    return x**3


@torch.library.custom_op("limpid_tests::slope", mutates_args=())
def slope(x: Tensor) -> Tensor:
    return 3 * x**2


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


cubed.register_autograd(lambda ctx, bar: slope(ctx.saved_tensors[0]) * bar, setup_context=_keep)


def test_what_goes_through_another_librarys_operation_is_said_to_be_missing_where_it_has_no_derivative() -> None:
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    with limpid.recording(model, errors_of=["grad"]) as recorded:
        cubed(model(x)).square().sum().backward()
    found = recorded.verify().error_of("grad")
    assert found.unknown == 1  # slope has none, cubed has
    assert "1 calls were not done again" in str(found)


def test_dropout_has_the_mask_that_was_drawn() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
    x = torch.randn(16, 8).bfloat16()
    (found,) = accounted(model, lambda: model(x).float().square().mean())
    assert_near(found)


def test_attention_without_a_mask_and_with_one_is_accounted_for() -> None:
    torch.manual_seed(1)
    model = nn.Linear(8, 24, bias=False)
    x, mask = torch.randn(2, 5, 8), torch.randn(2, 1, 5, 5)

    def loss(**given: Any) -> Tensor:
        query, key, value = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in model(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(query, key, value, **given).square().sum()

    for given in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask > -1}):
        model.zero_grad()
        (found,) = accounted(model, lambda given=given: loss(**given))
        assert_near(found)


def test_what_was_not_asked_for_is_said_in_one_line() -> None:
    model, loss = small()
    with limpid.recording(model, errors_of=["grad"]) as recorded:
        loss().backward()
    with pytest.raises(ConfigError, match=r"no error of 'grad\(0.weight\)' is known, there are loss, grad: limpid"):
        recorded.verify().error_of("grad(0.weight)")
    with limpid.recording(model, errors_of=["grad"]) as recorded, torch.no_grad():
        loss()
    with pytest.raises(ConfigError, match="a backward pass has to come to it"):
        recorded.verify().error_of("grad")
