"""Where the mathematics has an answer, it is given, also at the edges; where it has none, one line says so."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from limpid import maths, schedule
from limpid.errors import ConfigError, DomainError, LimpidError, ShapeError
from limpid.maths import alignment, foundations
from limpid.maths.embedding import Rotary, SinusoidalPositions
from limpid.maths.update import Adam, Momentum, UpdateInput, clip
from limpid.planning import critical_batch
from limpid.planning.laws.scaling import REFIT, kaplan_factor, kaplan_loss, power_law

NOWHERE = ([0.5, 0.5, 0.0], [0.4, 0.6, 0.0])
"""Two distributions without any support on the last outcome."""
INFINITY = math.inf


def test_an_outcome_outside_both_supports_has_no_gradient() -> None:
    for name, within in (
        ("kl_divergence", ([math.log(0.5 / 0.4) + 1, math.log(0.5 / 0.6) + 1, 0.0], [-1.25, -0.5 / 0.6, 0.0])),
        ("cross_entropy", ([-math.log(0.4), -math.log(0.6), 0.0], [-1.25, -0.5 / 0.6, 0.0])),
    ):
        for bar, expected in zip(getattr(foundations, name).backward(1.0, *NOWHERE), within, strict=True):
            assert bar == pytest.approx(expected), name
    assert foundations.entropy.backward(0.0, NOWHERE[0])[0].tolist() == [0, 0, 0]
    assert foundations.kl_divergence.backward(1.0, [1.0, 0.0], [0.5, 0.5])[1].tolist() == [-2, 0]


def test_the_divergence_from_logarithms_has_its_gradient() -> None:
    p, log_q = np.array([0.2, 0.3, 0.5]), np.log([0.3, 0.3, 0.4])
    bars = foundations.kl_divergence.backward(1.0, p, log_q, logarithmic=True)
    for position, (bar, at) in enumerate(zip(bars, (p, log_q), strict=True)):
        others = [p, log_q]

        def value(x: np.ndarray, position: int = position, others: list = others) -> float:
            moved = [*others]
            moved[position] = x
            return float(foundations.kl_divergence(*moved, logarithmic=True))

        assert bar == pytest.approx(foundations.finite_difference(value, at), rel=1e-8)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh"])
def test_activations_have_their_limits(name: str) -> None:
    activation, theirs = getattr(maths, name), {"gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    assert activation([-INFINITY, INFINITY]).tolist() == [-1.0 if name == "tanh" else 0.0,
                                                          1.0 if name in ("sigmoid", "tanh") else INFINITY]  # fmt: skip
    slope = activation.slope(np.array([-INFINITY, INFINITY]))
    assert slope.tolist() == [0.0, 0.0 if name in ("sigmoid", "tanh") else 1.0]
    near = torch.linspace(-30, 30, 61, dtype=torch.float64)
    their = theirs.get(name, getattr(torch, name, getattr(torch.nn.functional, name, None)))
    assert activation(near.numpy()) == pytest.approx(their(near).numpy(), abs=1e-13)


def test_values_at_the_edges() -> None:
    assert foundations.log_softmax([INFINITY, 0.0]).tolist() == [0.0, -INFINITY]
    assert foundations.log_softmax([INFINITY, INFINITY, 0.0])[:2] == pytest.approx(math.log(0.5))
    assert maths.perplexity(800.0) == INFINITY
    assert alignment.ppo([800.0], [-800.0], [0.0]).tolist() == [0.0]
    assert alignment.ppo.backward([1.0], [800.0], [-800.0], [0.0])[0].tolist() == [0.0]
    assert foundations.effective_rank(1e308 * np.eye(3)) == pytest.approx(3)
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((4, 3)) for _ in range(3))
    for causal in (False, True):  # φ(x - 800) = e⁻⁸⁰⁰ φ(x) where x is negative: only ratios count
        there = foundations.linear_attention(-abs(query) - 800, -abs(key) - 800, value, causal=causal)
        here = foundations.linear_attention(-abs(query) - 1, -abs(key) - 1, value, causal=causal)
        assert there == pytest.approx(here, rel=1e-9)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_answers_that_are_all_alike_have_advantage_0(unbiased: bool, eps: float) -> None:
    for reward in (0.1, 0.2, 0.7, 1e-300, -1e300, 1 / 3):
        for count in range(2, 12):
            assert not alignment.group_advantages([[reward] * count], unbiased=unbiased, eps=eps).any()
    assert alignment.group_advantages([[0.1, 0.1, 0.1], [0.0, 1.0, 0.5]], eps=eps)[1].std(ddof=1) == pytest.approx(1)


ONE = UpdateInput(np.ones(1), np.ones(1), {"m": np.zeros(1), "v": np.zeros(1)}, 0.1, 0, False)
REFUSED: list[tuple[Callable[[], object], type[LimpidError], str]] = [
    (lambda: maths.BatchNorm().running(np.zeros(2), np.ones(2), np.ones((1, 2))), DomainError, "needs at least 2"),
    (lambda: Adam().apply(ONE), DomainError, "counted from 1"),
    (lambda: foundations.repetition_penalty([2.0, 1.0], [-1], 2.0), ShapeError, "token -1 lies outside"),
    (lambda: foundations.repetition_penalty([2.0, 1.0], [5], 2.0), ShapeError, "token 5 lies outside"),
    (lambda: clip({"a": np.ones(2)}, -1.0), DomainError, "max_grad_norm is -1"),
    (lambda: alignment.dpo([0.0], [0.0], [0.0], [0.0], beta=-1), DomainError, "beta is -1"),
    (lambda: alignment.dpo([0.0], [0.0], [0.0], [0.0], label_smoothing=2), DomainError, "label_smoothing is 2"),
    (lambda: alignment.ppo([0.0], [0.0], [1.0], -0.5), DomainError, "epsilon is -0.5"),
    (lambda: alignment.kto([0.0], [0.0], [True], baseline=-3), DomainError, "baseline is -3"),
    (lambda: alignment.kto([0.0], [0.0], [True], desirable_weight=-1), DomainError, "desirable_weight is -1"),
    (lambda: alignment.implicit_reward([0.0], [0.0], 0.0), DomainError, "beta is 0"),
    (lambda: alignment.group_advantages([[0.0, 1.0]], eps=-1.0), DomainError, "eps is -1"),
    (lambda: alignment.generalised_advantages([1.0], [1.0], gamma=2.0), DomainError, "gamma is 2"),
    (lambda: alignment.generalised_advantages([1.0, 1.0], [1.0, 1.0], [1.0]), ShapeError, "values (2,), gamma (1,)"),
    (lambda: foundations.adam_epsilon(1e-7, 1.0), DomainError, "beta2 1.0"),
    (lambda: maths.rms_norm([2.0, 2.0], [1.0, 1.0], eps=-1), DomainError, "eps is -1"),
    (lambda: schedule.linear_schedule(-0.1), DomainError, "progress is -0.1"),
    (lambda: schedule.polynomial_schedule(1.3, 1.5), DomainError, "progress is 1.3"),
    (lambda: Rotary(scaling="yarn", factor=2.0), DomainError, "original_context is 0: yarn"),
    (lambda: Rotary(scaling="llama3", factor=2.0), DomainError, "original_context is 0: llama3"),
    (lambda: Rotary(scaling="foo"), DomainError, "choose one of none, linear"),
    (lambda: Rotary(layout="foo"), DomainError, "choose one of half"),
    (lambda: foundations.attention(*3 * [np.eye(2)], mask=np.eye(2, dtype=int)), DomainError, "truth values"),
    (lambda: foundations.attention(*3 * [np.eye(2)], mask=np.ones((3, 5), bool)), ShapeError, "one entry per score"),
    (lambda: maths.batch_norm(np.eye(2), np.ones(2), np.ones(2), mean=np.ones(2)), ShapeError, "belong together"),
    (lambda: SinusoidalPositions(4, 5), ShapeError, "must be even"),
    (lambda: maths.layer_norm(np.ones((2, 0)), np.ones(0), np.ones(0)), ShapeError, "without entries"),
    (lambda: alignment.lambda_returns([], [], [], 0.5), ShapeError, "at least one step"),
    (lambda: alignment.lambda_returns([1.0], [1.0], [1.0], 1.5), DomainError, "lam is 1.5"),
    (lambda: foundations.initial_std("he", 0), DomainError, "fan_in is 0"),
    (lambda: foundations.speculative_speedup(0.5, 2.5, 0), DomainError, "drafted is 2.5"),
    (lambda: REFIT.optimum(0), ConfigError, "compute is 0"),
    (lambda: power_law([0.0, 1.0], [1.0, 2.0]), ConfigError, "no logarithm"),
    (lambda: kaplan_factor(0), ConfigError, "factor is 0"),
    (lambda: kaplan_loss(0), ConfigError, "parameters is 0"),
    (lambda: critical_batch(1e12, 0, 2), ConfigError, "bytes_per_second is 0"),
    (lambda: foundations.tiled_attention(*3 * [np.ones((2, 3, 4))]), ShapeError, "expected query (query d)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
@pytest.mark.usefixtures("unchecked")
def test_what_has_no_answer_is_refused_in_one_line(call: Callable[[], object], kind: type, said: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_momentum_departs_from_pytorch_in_its_first_step_only() -> None:
    ours, m = np.ones(1), np.zeros(1)
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    theirs = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, dampening=0.9)
    moved, steps = [], []
    for number in (1, 2):
        before = ours, parameter.item()
        ours, moments = Momentum().apply(UpdateInput(ours, np.ones(1), {"m": m}, 0.1, number, False))
        m = moments["m"]
        parameter.grad = torch.ones(1, dtype=torch.float64)
        theirs.step()
        moved.append(float((before[0] - ours)[0]))
        steps.append(before[1] - parameter.item())
    assert moved[0] == pytest.approx(0.01)
    assert steps[0] == pytest.approx(0.1)  # the whole gradient
    assert moved[1] - 0.9 * moved[0] == pytest.approx(steps[1] - 0.9 * steps[0])


DIFFERENTIABLE = {
    "log_sum_exp": lambda z: foundations.log_sum_exp(z),
    "softmax": lambda z: foundations.softmax(z)[1] * 3.0,
    "cross entropy": lambda z: foundations.softmax_cross_entropy(z[None], np.array([2])),
    "RMS norm": lambda z: (maths.RMSNorm()(z, np.array([1.0, 2.0, 3.0])) ** 2).sum(),
    "dpo": lambda z: alignment.dpo(z, z[::-1], np.zeros(3), np.zeros(3)).sum(),
    "log1p": lambda z: np.log1p(np.exp(z)).sum(),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.usefixtures("unchecked")
def test_its_own_functions_can_be_differentiated_by_its_own_gradient(name: str) -> None:
    f, x = DIFFERENTIABLE[name], np.array([0.3, -1.2, 0.7])
    assert foundations.gradient(f, x) == pytest.approx(foundations.finite_difference(f, x), abs=1e-8)


@pytest.mark.usefixtures("unchecked")
def test_a_second_derivative_through_a_formula_says_what_it_takes() -> None:
    with pytest.raises(DomainError, match="log_sum_exp has a gradient of its own, not a second one"):
        foundations.hessian(lambda z: foundations.log_sum_exp(z), np.array([0.3, -1.2]))
