"""Muon's update beside PyTorch's: exact where PyTorch multiplies in float64, within the stated spread where in bf16."""

import numpy as np
import pytest
import torch

from limpid import maths
from limpid.config import ModelConfig, UpdateConfig
from limpid.maths import UpdateInput, foundations
from limpid.maths.muon import orthogonal_spread
from limpid.quantities import parameters

SHAPES = [(13, 7), (7, 13), (11, 11), (1, 5), (64, 48)]


def theirs(theta: np.ndarray, gradients: list[np.ndarray], rate: float, decay: float) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.tensor(theta))
    optimizer = torch.optim.Muon([parameter], lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.detach().numpy()


def ours(rule: maths.Muon, theta: np.ndarray, gradients: list[np.ndarray], rate: float) -> np.ndarray:
    memory = {"m": np.zeros(theta.shape)}
    for number, gradient in enumerate(gradients, 1):
        theta, memory = rule.apply(UpdateInput(theta, gradient, memory, rate, number, True))
    return theta


def drawn(shape: tuple[int, int]) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(4)
    return rng.standard_normal(shape), [rng.standard_normal(shape) for _ in range(4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_four_updates_are_pytorchs_with_products_in_float64(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    theta, gradients = drawn(shape)
    expected = theirs(theta, gradients, 0.1, 0.3)
    np.testing.assert_allclose(ours(maths.Muon(0.3), theta, gradients, 0.1), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_pytorchs_bf16_products_stay_within_the_spread(shape: tuple[int, int]) -> None:
    theta, gradients = drawn(shape)
    rule, zero = maths.Muon(0.3), {"m": np.zeros(shape)}
    rounding = rule.rounding(UpdateInput(theta, gradients[0], zero, 0.1, 1, True))
    exact = ours(rule, theta, gradients[:1], 0.1)
    gap = np.abs(theirs(theta, gradients[:1], 0.1, 0.3) - exact)
    assert (gap <= rounding["absolute"] + 2**-50 * rounding["parameter"]).all()
    assert gap.max() > 0


def test_the_spread_is_small_beside_the_step_where_the_gradient_has_full_rank() -> None:
    """Else the bound would excuse everything."""
    _, gradients = drawn((48, 64))
    step = maths.newton_schulz(gradients[0])
    assert orthogonal_spread(gradients[0]).max() < 0.7 * np.sqrt(np.mean(step**2))


def test_what_is_left_out_of_the_rule_leaves_the_bound() -> None:
    """Decay, the look ahead, the scale, the transpose: each forgotten in turn."""
    theta, gradients = drawn((48, 64))
    gradients[0] *= 10  # so that it weighs in beside what is remembered
    memory = {"m": gradients[1]}
    rule = maths.Muon(2.0)
    given = UpdateInput(theta, gradients[0], memory, 0.1, 1, True)
    new, after = rule.apply(given)
    allowed = rule.rounding(given)["absolute"]
    rate, m = rule.rate(0.1, theta.shape), after["m"]
    ahead = rule.ahead(m, gradients[0])
    wrong = {
        "no decay": new + 0.2 * theta,
        "no look ahead": 0.8 * theta - rate * maths.newton_schulz(m),
        "no scale": 0.8 * theta - 0.1 * maths.newton_schulz(ahead),
        "four products": 0.8 * theta - rate * maths.newton_schulz(ahead, 4),
        "the exact polar factor": 0.8 * theta - rate * foundations.polar_factor(ahead),
    }
    assert {name for name, theta in wrong.items() if (np.abs(theta - new) <= allowed).all()} == set()


def test_a_gradient_of_zeros_only_decays() -> None:
    theta, _ = drawn((5, 3))
    new, memory = maths.Muon(0.5).apply(UpdateInput(theta, np.zeros((5, 3)), {"m": np.zeros((5, 3))}, 0.1, 1, True))
    np.testing.assert_allclose(new, 0.95 * theta)
    assert not memory["m"].any()


def test_entries_move_about_as_far_as_adamws() -> None:
    """A root mean square of 0.2 learning rates, whatever the shape."""
    for shape in ((64, 256), (256, 64), (96, 96)):
        gradient = np.random.default_rng(0).standard_normal(shape)
        moved, _ = maths.Muon().apply(UpdateInput(np.zeros(shape), gradient, {"m": np.zeros(shape)}, 1.0, 1, False))
        assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.2, rel=0.2)


def test_muon_moves_matrices_inside_blocks_and_adamw_the_rest() -> None:
    config = ModelConfig(vocab_size=11, d_model=8, num_layers=1, num_heads=2, tied=False, positions="learned")
    rules = {p.name: type(maths.rule(UpdateConfig(optimizer="muon"), p)) for p in parameters(config)}
    muon = {name for name, rule in rules.items() if rule is maths.Muon}
    assert muon == {name for name in rules if name.startswith("blocks.0.") and name.endswith(".weight")} - {
        "blocks.0.norm1.weight",
        "blocks.0.norm2.weight",
    }
    assert set(rules.values()) == {maths.Muon, maths.AdamW}


def test_the_derivation_of_an_entry_ends_at_its_new_value() -> None:
    theta, gradients = drawn((6, 9))
    memory = {"m": gradients[1]}
    rule = maths.Muon(0.1)
    given = UpdateInput(theta, gradients[0], memory, 0.02, 3, True)
    new, _ = rule.apply(given)
    lines = rule.derivation(given, (4, 7))
    assert float(lines[-1].rsplit("=", 1)[1]) == pytest.approx(new[4, 7], rel=1e-7)
