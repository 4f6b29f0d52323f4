"""Around the weights: products with the Hessian, its ends, curves, noise, and gradient flow through the blocks."""

import numpy as np
import pytest
import torch
from tests.inspection.small_runs import VARIANTS, model, tokens
from torch.func import functional_call

from limpid.inspection.gradient_flow import GradientFlow, flow_variants, forward, fresh_flows, loss_flow, random_flow
from limpid.inspection.gradient_noise import gradient_noise, variance_of_means, within_span
from limpid.inspection.hessian import DifferentiableLoss, sharpness
from limpid.inspection.loss_curves import direction, loss_curves
from limpid.objectives.losses import log_probabilities, next_token_loss

TINY = {"d_model": 4, "num_heads": 2, "d_ff": 3, "num_layers": 1, "vocab_size": 7}


def loss_of(variant: str = "llama", rows: int = 3, **sizes) -> DifferentiableLoss:
    looked = model(variant, **sizes)
    found = tokens(rows, 10, looked.config.vocab_size)
    return DifferentiableLoss(looked, found[:, :-1], found[:, 1:], torch.float64)


def moved(loss: DifferentiableLoss, point: torch.Tensor) -> torch.Tensor:
    """The gradient at another point."""
    other = DifferentiableLoss(loss.model, loss.inputs, loss.targets, torch.float64)
    with torch.no_grad():
        for parameter, value in zip(other.parameters.values(), loss.split(point).values(), strict=True):
            parameter.copy_(value)
    return other.gradient()


def dense_hessian(loss: DifferentiableLoss) -> np.ndarray:
    return np.stack([loss.product(one).numpy() for one in torch.eye(loss.size, dtype=torch.float64)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_product_is_the_change_of_the_gradient(variant: str) -> None:
    """Central differences of the gradient agree to their own error, about step²."""
    loss = loss_of(variant)
    v = torch.randn(loss.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v, step = v / v.norm(), 1e-5
    differences = (moved(loss, loss.point + step * v) - moved(loss, loss.point - step * v)) / (2 * step)
    product = loss.product(v)
    assert float((product - differences).norm() / product.norm()) < 1e-6


def test_the_product_is_the_one_of_torch_s_own_function() -> None:
    loss = loss_of("gpt-2", **TINY)
    names = list(loss.parameters)

    def value(*parameters):
        logits = functional_call(
            loss.model, dict(zip(names, parameters, strict=True)), (loss.inputs,), {"path": "plain"}
        )
        return next_token_loss(log_probabilities(logits), loss.targets, loss.targets.numel())

    v = torch.randn(loss.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, theirs = torch.autograd.functional.hvp(value, tuple(loss.parameters.values()), tuple(loss.split(v).values()))
    assert torch.allclose(loss.product(v), torch.cat([part.flatten() for part in theirs]), rtol=1e-10, atol=1e-13)


def test_the_gradient_and_the_loss_are_those_of_the_engine() -> None:
    looked, found = model("qwen3"), tokens(5, 10)
    loss = DifferentiableLoss(looked, found[:, :-1], found[:, 1:], torch.float64)
    value = next_token_loss(log_probabilities(looked(found[:, :-1])), found[:, 1:], 45)
    value.backward()
    theirs = torch.cat([parameter.grad.flatten() for parameter in looked.parameters()])
    assert loss.value() == pytest.approx(value.item(), rel=1e-12)
    assert torch.allclose(loss.gradient(), theirs, rtol=1e-9, atol=1e-12)


def test_the_ends_of_the_spectrum_are_those_of_the_dense_hessian() -> None:
    loss = loss_of("llama", **TINY)
    hessian = dense_hessian(loss)
    assert hessian == pytest.approx(hessian.T, abs=1e-12)
    values = np.linalg.eigvalsh(hessian)
    found = sharpness(loss, steps=60, starts=2)
    assert found.largest == pytest.approx(values[-1], rel=1e-8)
    assert found.smallest == pytest.approx(values[0], rel=1e-6)
    assert found.stable_rate == pytest.approx(2 / values[-1], rel=1e-8)
    early = sharpness(loss, steps=6, starts=1)
    assert np.abs(values - early.largest).min() <= early.largest_within + 1e-12


def test_the_density_integrates_to_one() -> None:
    found = sharpness(loss_of("llama", **TINY), steps=10, starts=3)
    at, density = found.density(4000)
    assert np.trapezoid(density, at) == pytest.approx(1, abs=1e-3)


def test_rows_of_a_direction_are_as_long_as_the_weights_rows() -> None:
    loss = loss_of("gpt-2")
    for (name, part), weight in zip(loss.split(direction(loss, 0)).items(), loss.parameters.values(), strict=True):
        if weight.ndim == 1:
            assert not part.any(), name
        else:
            assert torch.allclose(part.norm(dim=-1), weight.norm(dim=-1)), name


def test_every_curve_passes_through_the_loss_and_the_weights_stay() -> None:
    loss = loss_of("llama", **TINY)
    before = loss.point.clone()
    found = loss_curves(loss)
    assert found.along[:, 10] == pytest.approx(loss.value(), rel=1e-12)
    assert found.surface[5, 5] == pytest.approx(loss.value(rows=slice(4)), rel=1e-12)
    assert found.surface[5, ::5] == pytest.approx(found.along[0, ::10])  # as few rows as the surface has
    assert torch.equal(loss.point, before)


def test_noise_comes_from_the_gradients_of_single_rows() -> None:
    loss = loss_of("llama", rows=24, **TINY)
    found = gradient_noise(loss)
    rows = np.stack([loss.gradient(slice(row, row + 1)).numpy() for row in range(24)])
    assert rows.mean(0) == pytest.approx(loss.gradient().numpy(), abs=1e-12)
    assert found.variance == pytest.approx(rows.var(0, ddof=1).sum(), rel=1e-8)
    assert [row.batch_size for row in found.averaged] == [1, 2, 4, 8]
    assert found.tokens == found.scale * 9
    for row in found.averaged:
        assert row.shuffled == pytest.approx(row.predicted, rel=0.2)


def test_coordinates_keep_every_angle(rng: np.random.Generator) -> None:
    vectors = rng.standard_normal((5, 40))
    short = within_span(torch.from_numpy(vectors))
    assert short.shape == (5, 5)
    assert short @ short.T == pytest.approx(vectors @ vectors.T)


def test_neighbours_that_repeat_each_other_average_nothing_away(rng: np.random.Generator) -> None:
    twins = np.repeat(rng.standard_normal((8, 3)), 2, axis=0)
    alone = variance_of_means(twins[::2], 1)
    assert variance_of_means(twins, 2) == pytest.approx(alone)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_stack_as_it_is_is_the_model(variant: str) -> None:
    looked = model(variant)
    seen = {}

    def keep(name, value):
        seen[name] = value
        return value

    looked(tokens(2), observe=keep)
    end = "residual2" if looked.config.norm_placement == "pre" else "norm2"
    for block, value in enumerate(forward(looked, tokens(2))[1:]):
        assert torch.allclose(value, seen[f"blocks.{block}.{end}"], rtol=1e-12, atol=1e-13)


def test_gains_multiply_to_the_length_of_the_whole_way_back() -> None:
    """The loss's gradient at both ends of the stack, from the engine's own backward pass."""
    looked, found = model("gpt-2", num_layers=4), tokens(2, 10)
    ends = {}

    def keep(name, value):
        if name in ("embed.sum", "blocks.3.residual2"):
            value.retain_grad()
            ends[name] = value
        return value

    logits = looked(found[:, :-1], observe=keep)
    next_token_loss(log_probabilities(logits), found[:, 1:], 18).backward()
    before, after = (float(ends[name].grad.norm()) for name in ("embed.sum", "blocks.3.residual2"))
    way = loss_flow(looked, found[:, :-1], found[:, 1:])
    assert len(way.gains) == 4
    assert np.prod(way.gains) == pytest.approx(before / after, rel=1e-10)
    assert way.mean == pytest.approx((before / after) ** (1 / 4))
    assert way.later == pytest.approx(np.prod(way.gains[1:]) ** (1 / 3))


def test_residuals_carry_a_gradient_that_a_plain_stack_loses() -> None:
    both, residuals, _, neither = flow_variants(model("llama", num_layers=4, init_std=0.1), tokens(2))
    assert both.verdict == residuals.verdict == "is carried"
    assert neither.verdict.startswith("vanishes")
    assert min(both.mean, residuals.mean) > neither.mean
    assert min(both.later, residuals.later) > neither.later


def test_weights_drawn_wider_pass_more_of_a_gradient_through_a_plain_stack() -> None:
    ways = fresh_flows(model("gpt-2", num_layers=3), tokens(2), 0)
    plain = [way.mean for way in ways if way.name.startswith("plain")]
    assert plain == sorted(plain)
    assert plain[0] < plain[-1]


def test_one_block_of_known_gain() -> None:
    """Without attention and with an MLP that writes nothing, the residual alone passes a vector on unchanged."""
    looked = model("squared relu, nowhere", num_layers=3)
    with torch.no_grad():
        for block in looked.blocks:
            block.attention.output.weight.zero_()
            block.mlp.output.weight.zero_()
    assert random_flow("", looked, tokens(), residual=True, norms=True).gains == (1, 1, 1)
    lost = random_flow("", looked, tokens(), residual=False, norms=True)
    assert lost.mean == 0
    assert lost.verdict == "vanishes at once"


def test_words_for_gains() -> None:
    assert GradientFlow("", (9.0, 1.1, 0.9)).verdict == "is carried"
    assert GradientFlow("", (1.0, 0.5, 0.5)).verdict == "halves every 1 blocks"
    assert GradientFlow("", (1.0, 0.1)).verdict == "vanishes"
    assert GradientFlow("", (1.0, 4.0)).verdict == "explodes"
