"""Worked numbers that a reader can check with pencil and paper."""

import math
from itertools import pairwise

import numpy as np
import pytest

from limpid import maths
from limpid.config import UpdateConfig
from limpid.errors import ShapeError
from limpid.maths import UpdateInput, foundations
from limpid.maths.attention import Scores
from limpid.maths.operation import Operation
from limpid.maths.update import Adam
from limpid.schedule import learning_rate


def near(expected, **options):
    return pytest.approx(np.array(expected) if isinstance(expected, list) else expected, **({"abs": 5e-4} | options))


def test_lengths_and_angles() -> None:
    assert foundations.norm([3, 4]) == 5
    assert foundations.norm([6, 2, 3]) == 7
    cat, dog = [2, 5, 1], [3, 4, 2]
    assert foundations.dot(cat, dog) == 28
    assert (foundations.norm(cat), foundations.norm(dog)) == near((math.sqrt(30), math.sqrt(29)), abs=1e-14)
    assert foundations.cosine_similarity(cat, dog) == near(0.949)
    assert foundations.dot([2, 5, 1], [3, 1, 4]) == 15
    assert foundations.dot([1, 3, 5], [2, 0, 4]) == 22
    assert foundations.cosine_similarity([1, 2], [2, -1]) == 0
    assert foundations.cosine_similarity([3, 4], [4, 3]) == near(0.96, abs=1e-15)


@pytest.mark.usefixtures("unchecked")
def test_products_of_matrices() -> None:
    assert foundations.matmul([[2, 0], [0, 3], [1, 1]], [4, 2]).tolist() == [8, 6, 6]
    assert foundations.matmul([[1, 0, 2], [0, 3, 1]], [3, 1, 4]).tolist() == [11, 7]
    assert foundations.matmul([[2, 1], [0, 3]], [4, 2]).tolist() == [10, 6]
    assert foundations.matmul(np.ones((512, 768)), np.ones(768)).shape == (512,)
    assert foundations.matmul(np.ones((3, 4)), np.ones((4, 2))).shape == (3, 2)
    with pytest.raises(ShapeError, match=r"\(4, 2\).*\(3, 4\)"):
        foundations.matmul(np.ones((4, 2)), np.ones((3, 4)))
    assert np.empty((3072, 768)).size == 2_359_296
    assert foundations.matmul_flops(2048, 4096, 4096) == near(68.7e9, rel=1e-3)


@pytest.mark.usefixtures("unchecked")
def test_unequal_lengths_are_named_both() -> None:
    for function in (foundations.dot, foundations.cosine_similarity):
        with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
            function([1, 2], [1, 2, 3])


def test_frobenius_norm_is_the_trace_of_the_square() -> None:
    w = np.random.default_rng(0).standard_normal((5, 3))
    assert foundations.frobenius_norm(w) == pytest.approx(math.sqrt(np.trace(w.T @ w)), rel=1e-14)


@pytest.mark.parametrize(
    ("steps", "product", "logarithm"),
    [
        ([0.8, 0.6, 0.9], 0.432, -0.839),
        ([0.05, 0.12, 0.08, 0.70], 0.000336, -8.00),
        ([0.3, 0.5, 0.9], 0.135, -2.002),
    ],
)
def test_joint_probabilities(steps: list[float], product: float, logarithm: float) -> None:
    y = foundations.joint_log_probability(steps)
    assert math.exp(y) == pytest.approx(product, rel=1e-12)
    assert y == near(logarithm, abs=2e-3)


def test_exponentials_and_distributions() -> None:
    assert math.exp(3) == near(20.09, abs=5e-3)
    assert foundations.is_distribution([0.4, 0.35, 0.2, 0.05])
    assert not foundations.is_distribution([0.4, 0.35, 0.2, 0.1])
    assert not foundations.is_distribution([1.2, -0.2])


def test_softmax() -> None:
    assert foundations.softmax([2, 1, 0.5]) == near([0.629, 0.231, 0.140])
    assert foundations.softmax([0, 0, 0]) == near([1 / 3] * 3, abs=1e-15)
    assert foundations.softmax([10, 0, 0])[0] == near(0.9999, abs=1e-4)
    assert foundations.softmax([2, 1, 0.5], temperature=0).tolist() == [1, 0, 0]
    assert foundations.softmax([2, 1, 0.5], temperature=1e-3).tolist() == [1, 0, 0]
    assert foundations.softmax([2, 1, 0.5], temperature=1e9) == near([1 / 3] * 3, abs=1e-8)
    assert foundations.softmax([2, 1, 0.5], temperature=math.inf) == near([1 / 3] * 3, abs=1e-15)


def test_bayes_and_the_two_estimates() -> None:
    posterior = foundations.bayes([0.01, 0.99], [0.9, 0.05])
    assert posterior[0] == pytest.approx(0.009 / (0.009 + 0.0495), rel=1e-14)
    assert foundations.maximum_likelihood([3, 1, 0]).tolist() == [0.75, 0.25, 0]
    counts = np.array([3.0, 1.0, 2.0])
    best = foundations.maximum_likelihood(counts)
    others = np.random.default_rng(0).dirichlet(np.ones(3), 200)
    assert all(foundations.cross_entropy(best, best) <= foundations.cross_entropy(best, other) for other in others)


def test_a_gaussian_prior_is_l2_decay() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((20, 3)), rng.standard_normal(20)
    std, prior = 0.7, 1.3
    theta = foundations.maximum_a_posteriori(x, y, std, prior)
    closed = np.linalg.solve(x.T @ x + (std / prior) ** 2 * np.eye(3), x.T @ y)
    assert theta == pytest.approx(closed, rel=1e-12)
    plain = foundations.maximum_a_posteriori(x, y)
    assert plain == pytest.approx(np.linalg.lstsq(x, y, rcond=None)[0], rel=1e-12)
    assert foundations.norm(theta) < foundations.norm(plain)


def test_entropies() -> None:
    assert foundations.entropy([0.5, 0.5], 2) == 1
    assert foundations.entropy([1 / 6] * 6, 2) == near(2.585)
    assert foundations.surprise(0.7) == near(0.357)
    assert foundations.surprise(0.3) == near(1.204)
    assert maths.perplexity(float(foundations.surprise(0.3))) == near(3.33, abs=5e-3)
    assert maths.perplexity(2) == near(7.39, abs=1e-3)


@pytest.mark.parametrize(
    ("p", "loss", "perplexity"),
    [(0.95, 0.05, 1.05), (0.5, 0.69, 2), (0.1, 2.30, 10), (0.01, 4.61, 100), (0.001, 6.91, 1000)],
)
def test_loss_and_perplexity(p: float, loss: float, perplexity: float) -> None:
    assert foundations.surprise(p) == near(loss, abs=5e-3)
    assert maths.perplexity(float(foundations.surprise(p))) == pytest.approx(perplexity, rel=5e-3)


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (lambda x: x[0] ** 2 + 3 * x[0] * x[1], [2, 1], [7, 6]),
        (lambda x: x**3, 2.0, 12),
        (lambda x: 2 * x[0] ** 2 - x[1] ** 2 + x[0] * x[1], [1, 3], [7, -5]),
    ],
)
def test_gradients(f, x, expected) -> None:
    assert foundations.gradient(f, x).tolist() == expected
    assert foundations.finite_difference(f, x) == pytest.approx(np.array(expected), rel=1e-9)


def test_what_a_stationary_point_is() -> None:
    at = np.zeros(2)
    for f, kind in (
        (lambda x: x[0] ** 2 + 3 * x[1] ** 2, "minimum"),
        (lambda x: -(x[0] ** 2) - x[1] ** 2 + x[0] * x[1], "maximum"),
        (lambda x: x[0] ** 2 - x[1] ** 2, "saddle"),
        (lambda x: x[0] ** 2 + x[1] ** 4, "undecided"),
    ):
        assert foundations.definiteness(foundations.hessian(f, at)) == kind


def test_one_step_of_gradient_descent() -> None:
    assert foundations.gradient_step(3.0, 4.0, 0.1) == pytest.approx(2.6, abs=1e-15)
    assert foundations.gradient_step(5.0, -2.0, 0.05) == pytest.approx(5.1, abs=1e-15)
    assert foundations.momentum_window(0.9) == pytest.approx(10)
    assert foundations.momentum_window(0.99) == pytest.approx(100)


def test_adam_with_epsilon_hat_is_adam_with_another_epsilon() -> None:
    """Kingma & Ba 2015, end of section 2, written out beside the rule."""
    rng = np.random.default_rng(0)
    theta, m, v = rng.standard_normal(5), np.zeros(5), np.zeros(5)
    ours, moments = theta, {"m": m, "v": v}
    for t in range(1, 4):
        gradient = rng.standard_normal(5) * 1e-6
        rule = Adam(eps=foundations.adam_epsilon(1e-7, 0.999, t))
        ours, moments = rule.apply(UpdateInput(ours, gradient, moments, 0.1, t, False))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        theta = theta - 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
        assert ours == pytest.approx(theta, rel=1e-12)


def test_momentum_is_a_weighted_mean_of_the_past() -> None:
    gradients = np.random.default_rng(0).standard_normal(40)
    rule, m, theta = maths.Momentum(beta1=0.9), np.zeros(1), np.zeros(1)
    for number, g in enumerate(gradients, 1):
        theta, moments = rule.apply(UpdateInput(theta, np.array([g]), {"m": m}, 0.1, number, False))
        m = moments["m"]
    weights = 0.1 * 0.9 ** np.arange(40)[::-1]
    assert m[0] == pytest.approx(float(weights @ gradients), rel=1e-12)


def test_adamw_digit_by_digit() -> None:
    theta, g, zero = np.array([0.024634]), np.array([-0.352893]), {"m": np.zeros(1), "v": np.zeros(1)}
    rule = maths.AdamW(weight_decay=0.01)
    moved, moments = rule.apply(given := UpdateInput(theta, g, zero, 0.001, 1, True))
    assert moments["m"][0] == near(-0.035289, abs=5e-7)
    assert moments["v"][0] == near(0.000124533, abs=5e-10)
    assert moved[0] == near(0.025634, abs=5e-7)
    text = "\n".join(rule.derivation(given, (0,)))
    for written in (
        "0.024633754",
        "-0.0352893",
        "0.00012453347",
        "= -0.352893",
        "0.12453347",
        "0.00283372",
        "2.83372 ×",
    ):
        assert written in text
    assert "= 0.025633754" in text


@pytest.mark.parametrize(("g", "multiplier"), [(0.001, 999.99), (0.01, 100), (0.1, 10), (0.5, 2), (1, 1), (5, 0.2)])
def test_the_first_step_of_adam_divides_by_the_gradient(g: float, multiplier: float) -> None:
    """Every entry moves by the learning rate, however large its gradient: the multiplier is 1/|g|, but for ε."""
    rule, zero = maths.AdamW(), {"m": np.zeros(1), "v": np.zeros(1)}
    for sign in (1, -1):
        moved, _ = rule.apply(UpdateInput(np.zeros(1), np.array([float(sign * g)]), zero, 0.001, 1, False))
        assert -sign * float(moved[0]) / (0.001 * g) == pytest.approx(multiplier, rel=1e-5)


def test_decay_joins_the_gradient_or_stands_apart() -> None:
    zero = {"m": np.zeros(1), "v": np.zeros(1)}
    theta, g = np.array([2.0]), np.array([1e-3])
    coupled, _ = maths.Adam(0.1).apply(UpdateInput(theta, g, zero, 0.01, 1, True))
    apart, _ = maths.AdamW(0.1).apply(UpdateInput(theta, g, zero, 0.01, 1, True))
    assert 2.0 - coupled[0] == pytest.approx(0.01, rel=1e-6)  # rescaled like a gradient: the same step as without
    assert 2.0 - apart[0] == pytest.approx(0.01 + 0.01 * 0.1 * 2.0, rel=1e-4)


def test_muon_moves_all_directions_alike() -> None:
    rng = np.random.default_rng(0)
    g = rng.standard_normal((6, 4)) @ np.diag([100, 10, 1, 0.1])
    exact, _ = foundations.muon_step(np.zeros((6, 4)), g, np.zeros((6, 4)), 0.1, steps=None)
    assert foundations.svd(exact).singular_values == pytest.approx([0.1 * math.sqrt(1.5)] * 4, rel=1e-10)
    assert foundations.polar_factor(g) == pytest.approx(foundations.svd(g).u @ foundations.svd(g).vt, rel=1e-9)
    cubic = maths.newton_schulz(g, 60, (1.5, -0.5, 0.0))
    assert cubic == pytest.approx(foundations.polar_factor(g), abs=1e-9)
    five = foundations.svd(maths.newton_schulz(rng.standard_normal((8, 5)))).singular_values
    assert 0.6 < five.min() <= five.max() < 1.3


@pytest.mark.parametrize(
    "schedule", ["constant", "linear", "polynomial", "cosine", "cosine_restarts", "warmup_stable_decay"]
)
def test_schedules_begin_at_the_peak_and_end_where_they_should(schedule: str) -> None:
    update = UpdateConfig(
        schedule=schedule, learning_rate=0.4, warmup_steps=10, min_learning_rate_ratio=0.0, schedule_cycles=3
    )
    assert [learning_rate(step, 110, update) for step in (1, 5, 10)] == pytest.approx([0.04, 0.2, 0.4])
    assert learning_rate(110, 110, update) == pytest.approx(0.4 if schedule == "constant" else 0.0, abs=1e-15)


def test_attention_by_hand() -> None:
    query, key = [[1, 0], [0, 1], [1, 1]], [[1, 1], [0, 1], [1, 0]]
    value = [[10, 0], [0, 10], [5, 5]]
    weights = foundations.attention_weights(query, key)
    assert weights == near([[0.40, 0.20, 0.40], [0.40, 0.40, 0.20], [0.50, 0.25, 0.25]], abs=5e-3)
    assert foundations.attention(query, key, value)[0] == near([6, 4], abs=2e-2)
    one = np.ones((1, 100, 8, 64))
    assert Scores(1 / 8).forward(one, one)[0].size == 80_000
    assert 768 // 12 == 64
    assert 768 * 768 == 589_824


def test_why_scores_are_divided_by_the_root_of_their_width() -> None:
    rng = np.random.default_rng(0)
    for d in (4, 64, 1024):
        products = (rng.standard_normal((4000, d)) * rng.standard_normal((4000, d))).sum(-1)
        assert products.var() == pytest.approx(d, rel=0.1)
        assert (products / math.sqrt(d)).var() == pytest.approx(1, rel=0.1)


def test_an_embedding_is_a_one_hot_row_times_a_table() -> None:
    table, tokens = np.random.default_rng(0).standard_normal((7, 3)), np.array([[2, 0, 6]])
    assert np.array_equal(maths.Embedding().forward(tokens, table)[0], np.eye(7)[tokens] @ table)


def test_dead_relus_and_saturation() -> None:
    x = np.array([-30.0, -1.0, 30.0])
    assert maths.ReLU().slope(x).tolist() == [0, 0, 1]
    assert maths.Sigmoid().slope(x)[[0, 2]] == pytest.approx([9.4e-14] * 2, rel=0.01)
    assert maths.Tanh().slope(x)[[0, 2]] == pytest.approx([0, 0], abs=1e-25)


def test_an_mlp_can_fit_a_curve() -> None:
    """One hidden layer of 24 tanh units, trained by the δ recurrence and Adam alone, learns a sine."""
    rng = np.random.default_rng(0)
    x = np.linspace(-3, 3, 60)[:, None]
    y = np.sin(2 * x)
    parameters = [
        rng.standard_normal((24, 1)),
        rng.standard_normal(24),
        0.3 * rng.standard_normal((1, 24)),
        np.zeros(1),
    ]
    moments = [{"m": np.zeros_like(p), "v": np.zeros_like(p)} for p in parameters]
    rule = maths.Adam()
    for number in range(1, 1501):
        layers = foundations.perceptron(x, parameters[0::2], parameters[1::2])
        error = layers.z[-1] - y
        weights, biases, _ = foundations.back_propagate(2 * error / len(x), layers, parameters[0::2])
        for i, bar in enumerate((weights[0], biases[0], weights[1], biases[1])):
            parameters[i], moments[i] = rule.apply(UpdateInput(parameters[i], bar, moments[i], 0.02, number, False))
    assert float(np.square(error).mean()) < 1e-3


def test_the_delta_recurrence_is_the_chain_rule() -> None:
    import torch

    rng = np.random.default_rng(3)
    sizes = (5, 7, 3, 2)
    weights = [rng.standard_normal((b, a)) for a, b in pairwise(sizes)]
    biases = [rng.standard_normal(b) for b in sizes[1:]]
    x, targets = rng.standard_normal((11, 5)), rng.integers(0, 2, 11)
    layers = foundations.perceptron(x, weights, biases)
    logits_bar, _ = foundations.softmax_cross_entropy.backward(1.0, layers.z[-1], targets)
    found = foundations.back_propagate(logits_bar, layers, weights)
    learned = [torch.tensor(p, requires_grad=True) for p in (*weights, *biases, x)]
    h = learned[-1]
    for layer in range(3):
        z = h @ learned[layer].T + learned[3 + layer]
        h = z.tanh()
    torch.nn.functional.cross_entropy(z, torch.tensor(targets)).backward()
    for ours, theirs in zip((*found[0], *found[1], found[2]), learned, strict=True):
        assert ours == pytest.approx(theirs.grad.numpy(), rel=1e-11, abs=1e-15)


def test_gradients_vanish_or_explode_as_products_of_jacobians() -> None:
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    for scale, fate in ((0.9, 0.9**50), (1.1, 1.1**50)):
        assert foundations.spectral_radius(scale * rotation) == pytest.approx(scale, rel=1e-10)
        product = foundations.chain_rule(*[scale * rotation] * 50)
        assert foundations.spectral_norm(product) == pytest.approx(fate, rel=1e-9)
    small = 0.1 / 8 * rng.standard_normal((8, 8))
    residual = foundations.chain_rule(*[np.eye(8) + small] * 50)  # the identity path keeps the gradient alive
    assert 0.2 < foundations.spectral_norm(residual) < 20
    assert foundations.spectral_norm(foundations.chain_rule(*[small] * 50)) < 1e-40


@pytest.mark.parametrize(("kind", "activation"), [("he", maths.ReLU()), ("xavier", maths.Tanh())])
def test_initialisations_keep_the_scale_from_layer_to_layer(kind: str, activation: Operation) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 256))
    for _ in range(10):
        x = activation(x @ rng.standard_normal((256, 256)) * foundations.initial_std(kind, 256, 256))
    assert 0.1 < np.sqrt(np.square(x).mean()) < 2
    assert foundations.initial_std("scaled_residual", 1, std=0.02, num_layers=8) == pytest.approx(0.02 / 4)


def test_words_near_and_analogous() -> None:
    words = ["king", "man", "woman", "queen", "car"]
    table = np.array([[5, 1, 0.2], [0.2, 1, 0.1], [0.2, -1, 0.1], [5, -1, 0.2], [0, 0.1, 7]])
    (best, cosine), *_ = foundations.analogy(table, words.index("man"), words.index("king"), words.index("woman"))
    assert words[best] == "queen"
    assert cosine > 0.5
    assert words[foundations.neighbours(table[0], table, 1, without=(0,))[0][0]] == "queen"
