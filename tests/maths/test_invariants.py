"""What must hold whatever the numbers are; and what happens at the far ends."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from limpid import maths
from limpid.errors import DomainError
from limpid.maths import UpdateInput, alignment, foundations

numbers = st.floats(-50, 50)


logits = hnp.arrays(np.float64, st.integers(1, 12), elements=numbers)


vectors = hnp.arrays(np.float64, 5, elements=st.floats(-1e3, 1e3)).map(lambda x: np.where(np.abs(x) < 1e-100, 0.0, x))
"""Of sizes whose products are normal numbers."""


matrices = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-10, 10))


seeds = st.integers(0, 2**32 - 1)


def distributions(outcomes: int):
    raw = hnp.arrays(np.float64, outcomes, elements=st.floats(0, 1))
    return raw.filter(lambda x: x.sum() > 1e-3).map(lambda x: x / x.sum())


@given(logits, st.floats(-1e4, 1e4), st.floats(0.05, 20))
def test_softmax_sums_to_one_and_a_shift_changes_nothing(z, shift, temperature) -> None:
    p = foundations.softmax(z, temperature)
    assert p.sum() == pytest.approx(1, abs=1e-14)
    assert foundations.softmax(z + shift, temperature) == pytest.approx(p, rel=1e-9 / min(1, temperature), abs=1e-300)
    assert np.exp(foundations.log_softmax(z)) == pytest.approx(foundations.softmax(z), rel=1e-12)
    assert (np.argsort(p, kind="stable")[-1] == np.argsort(z, kind="stable")[-1]) or p.max() == p[np.argmax(z)]


@given(distributions(6), distributions(6), st.sampled_from([2.0, math.e, 10.0]))
def test_divergence_is_never_negative_and_is_what_cross_entropy_adds(p, q, base) -> None:
    divergence = foundations.kl_divergence(p, q, base)
    assert divergence >= 0
    assert foundations.kl_divergence(p, p, base) == pytest.approx(0, abs=1e-14)
    whole = foundations.cross_entropy(p, q, base)
    if math.isfinite(whole):
        assert whole == pytest.approx(foundations.entropy(p, base) + divergence, rel=1e-10, abs=1e-12)
    assert 0 <= foundations.entropy(p, base) <= math.log(6) / math.log(base) + 1e-12


@given(distributions(12))
def test_mutual_information_is_bounded_by_both_entropies(p) -> None:
    joint = p.reshape(3, 4)
    told = foundations.mutual_information(joint)
    assert -1e-12 <= told <= min(foundations.entropy(joint.sum(0)), foundations.entropy(joint.sum(1))) + 1e-9
    apart = np.outer(joint.sum(1), joint.sum(0))
    assert foundations.mutual_information(apart / apart.sum()) == pytest.approx(0, abs=1e-9)


@given(vectors, vectors)
def test_the_dot_product_is_lengths_times_cosine(x, y) -> None:
    if foundations.norm(x) == 0 or foundations.norm(y) == 0:
        with pytest.raises(DomainError):
            foundations.cosine_similarity(x, y)
        return
    cosine = foundations.cosine_similarity(x, y)
    assert -1 <= cosine <= 1
    assert foundations.dot(x, y) == pytest.approx(
        foundations.norm(x) * foundations.norm(y) * cosine, rel=1e-9, abs=1e-9 * foundations.norm(x)
    )
    assert foundations.cosine_similarity(3 * x, 1e-5 * y) == pytest.approx(cosine, abs=1e-12)


@given(matrices, st.integers(0, 6))
@example(np.diag([2.0, 3.97e-294, 0.0]) + 5e-324, 0)  # singular values whose share of the sum is no number
def test_the_best_approximation_is_as_far_as_the_singular_values_say(w, k) -> None:
    found = foundations.best_rank_k(w, k)
    assert foundations.frobenius_norm(w - found.matrix) == pytest.approx(found.error, abs=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(5):
        other = rng.standard_normal((w.shape[0], k)) @ rng.standard_normal((k, w.shape[1]))
        assert foundations.frobenius_norm(w - other) >= found.error - 1e-9
    rank = foundations.effective_rank(w)
    assert 0 <= rank <= min(w.shape) + 1e-9
    if np.abs(w).max() > 1e-6:
        assert rank >= 1 - 1e-9


@given(seeds)
def test_matrix_products_associate_and_transpose_but_do_not_commute(seed) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = (rng.standard_normal((4, 4)) for _ in range(3))
    assert foundations.matmul(foundations.matmul(a, b), c) == pytest.approx(
        foundations.matmul(a, foundations.matmul(b, c)), abs=1e-12
    )
    assert pytest.approx(foundations.matmul(b.T, a.T), abs=1e-13) == foundations.matmul(a, b).T
    assert np.abs(foundations.matmul(a, b) - foundations.matmul(b, a)).max() > 1e-6
    assert (np.linalg.eigvalsh(a @ a.T) >= -1e-12).all()
    symmetric = a + a.T
    values, vectors_ = foundations.eigen(symmetric)
    assert vectors_ @ np.diag(values) @ vectors_.T == pytest.approx(symmetric, abs=1e-11)
    assert foundations.spectral_radius(symmetric) == pytest.approx(foundations.spectral_norm(symmetric), rel=1e-12)


@given(seeds, st.integers(0, 400), st.integers(0, 400), st.sampled_from(["half", "interleaved"]))
def test_rotary_products_see_differences_of_positions_only(seed, i, j, layout) -> None:
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal(8), rng.standard_normal(8)
    rotary = maths.Rotary(layout=layout)

    def turned(x, position):
        return rotary.forward(np.broadcast_to(x, (1, position + 1, 1, 8)))[0][0, position, 0]

    here = turned(q, i) @ turned(k, j)
    later = turned(q, i + 37) @ turned(k, j + 37)
    assert here == pytest.approx(later, abs=1e-10)
    assert foundations.norm(turned(q, i)) == pytest.approx(foundations.norm(q), rel=1e-12)


@given(seeds, st.integers(1, 20), st.integers(1, 20), st.integers(1, 25), st.booleans())
def test_tiled_attention_is_attention(seed, queries, more, tile, causal) -> None:
    rng = np.random.default_rng(seed)
    keys = queries + more if causal else more
    q, k, v = 3 * rng.standard_normal((queries, 5)), rng.standard_normal((keys, 5)), rng.standard_normal((keys, 3))
    tiled = foundations.tiled_attention(q, k, v, causal=causal, tile=tile)
    assert tiled.output == pytest.approx(foundations.attention(q, k, v, causal=causal), abs=1e-12)
    o_bar = rng.standard_normal((queries, 3))
    found = foundations.tiled_attention_gradient(o_bar, q, k, v, tiled, causal=causal, tile=tile)
    for ours, plain in zip(found, foundations.attention.backward(o_bar, q, k, v, causal=causal), strict=True):
        assert ours == pytest.approx(plain, abs=1e-11)


def test_tiled_attention_never_holds_all_scores() -> None:
    n, d = 2048, 16
    q, k, v = (np.random.default_rng(i).standard_normal((n, d)) for i in range(3))
    peaks = []
    for way in (lambda: foundations.attention(q, k, v), lambda: foundations.tiled_attention(q, k, v, tile=64)):
        tracemalloc.start()
        way()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] > n * n * 8  # every score at once
    assert peaks[1] < n * n * 8 / 20


@given(seeds, st.sampled_from([1, 2, 3, 6]))
def test_shared_heads_equal_repeated_ones(seed, kv_heads) -> None:
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((6, 5, 4))
    k, v = rng.standard_normal((kv_heads, 5, 4)), rng.standard_normal((kv_heads, 5, 3))
    repeated = (np.repeat(x, 6 // kv_heads, 0) for x in (k, v))
    assert foundations.attention(q, k, v, causal=True) == pytest.approx(
        foundations.attention(q, *repeated, causal=True), abs=1e-14
    )


@given(seeds, st.integers(1, 9))
def test_attention_with_a_cache_is_attention_without(seed, known) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, 10, 4)) for _ in range(3))
    for window in (None, 3):
        whole = foundations.attention(q, k, v, causal=True, window=window)
        later = foundations.attention(q[:, known:], k, v, causal=True, window=window)
        assert later == pytest.approx(whole[:, known:], abs=1e-14)


@given(seeds)
def test_causal_attention_cannot_see_ahead(seed) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((7, 4)) for _ in range(3))
    before = foundations.attention(q, k, v, causal=True), foundations.linear_attention(q, k, v, causal=True)
    k[5], v[5] = 100.0, -100.0
    after = foundations.attention(q, k, v, causal=True), foundations.linear_attention(q, k, v, causal=True)
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one[:5], other[:5])
        assert not np.allclose(one[5:], other[5:])


@given(seeds, st.floats(1e-3, 1e3))
def test_adam_does_not_see_the_scale_of_gradients(seed, scale) -> None:
    rng = np.random.default_rng(seed)
    rule = maths.AdamW(0.01, eps=0.0)
    ends = []
    for factor in (1.0, scale):
        theta, moments = np.ones(4), {"m": np.zeros(4), "v": np.zeros(4)}
        gradients = np.random.default_rng(seed).standard_normal((10, 4))
        for number, g in enumerate(gradients, 1):
            theta, moments = rule.apply(UpdateInput(theta, factor * g, moments, 0.01, number, True))
        ends.append(theta)
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert rng is not None


@given(seeds)
def test_norms_ignore_scale_and_layer_norm_ignores_shift(seed) -> None:
    rng = np.random.default_rng(seed)
    x, w, b = rng.standard_normal((3, 7)), rng.standard_normal(7), rng.standard_normal(7)
    assert maths.RMSNorm(0.0)(5 * x, w) == pytest.approx(maths.RMSNorm(0.0)(x, w), rel=1e-12)
    assert maths.LayerNorm(0.0)(5 * x + 3, w, b) == pytest.approx(maths.LayerNorm(0.0)(x, w, b), rel=1e-9, abs=1e-9)
    mean, var = x.mean(0), x.var(0)
    assert maths.BatchNorm()(x, w, b) == pytest.approx(maths.BatchNorm()(x, w, b, mean, var), rel=1e-9, abs=1e-12)


@given(distributions(9), st.floats(0.01, 1.0), st.integers(1, 9), st.floats(0, 1))
def test_filters_keep_the_likeliest_and_a_distribution(p, mass, k, share) -> None:
    for kept in (
        foundations.top_p(p, mass),
        foundations.top_k(p, k),
        foundations.min_p(p, share),
        foundations.epsilon_cutoff(p, share),
    ):
        assert kept.sum() == pytest.approx(1, abs=1e-12)
        assert kept[np.argmax(p)] > 0
        assert p[kept > 0].min() >= p[kept == 0].max(initial=0.0) - 1e-15
    inside = foundations.top_p(p, mass, renormalise=False)
    assert inside.sum() >= mass - 1e-9
    least = inside[inside > 0].min()
    assert inside.sum() - least < mass + 1e-9  # the smallest such set


@given(seeds)
def test_lanczos_finds_the_eigenvalues_and_their_weights(seed) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((12, 12))
    h = a + a.T
    start = rng.standard_normal(12)
    found = foundations.lanczos(lambda v: h @ v, start, 12)
    assert found.values == pytest.approx(np.linalg.eigvalsh(h), abs=1e-8)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    few = foundations.lanczos(lambda v: h @ v, start, 6)
    for value, residual in zip(few.values, few.residuals, strict=True):
        assert np.abs(np.linalg.eigvalsh(h) - value).min() <= residual + 1e-9
    at = np.linspace(-40, 40, 4001)
    density = foundations.spectral_density([found], at, 0.5)
    assert np.trapezoid(density, at) == pytest.approx(1, abs=1e-3)


def test_the_noise_scale_is_that_of_the_noise() -> None:
    rng = np.random.default_rng(0)
    signal, std = np.full(400, 0.1), 2.0
    found = [
        foundations.gradient_noise_scale(signal + std / math.sqrt(8) * rng.standard_normal((16, 400)), 8)
        for _ in range(50)
    ]
    assert np.mean([one.variance for one in found]) == pytest.approx(400 * std**2, rel=0.02)
    assert np.mean([one.gradient_squared for one in found]) == pytest.approx(signal @ signal, rel=0.2)


@given(vectors, vectors)
def test_exact_derivatives_equal_differences(x, v) -> None:
    def f(t):
        return np.sum(np.tanh(t / 100) * np.sin(t / 50)) + np.sum(t[:-1] * t[1:]) / 1e4

    scale = 1 + np.abs(x).max()
    assert foundations.gradient(f, x) == pytest.approx(foundations.finite_difference(f, x, 1e-3 * scale), abs=1e-4)
    along = foundations.hessian(f, x) @ v
    assert foundations.hessian_vector_product(f, x, v) == pytest.approx(along, rel=1e-9, abs=1e-9)
    assert foundations.hessian(f, x) == pytest.approx(foundations.hessian(f, x).T, abs=1e-12)


@given(seeds)
def test_preferences_only_see_differences(seed) -> None:
    rng = np.random.default_rng(seed)
    a, b, c, d = rng.standard_normal((4, 6))
    shift = rng.standard_normal()
    assert alignment.dpo(a + shift, b + shift, c, d) == pytest.approx(alignment.dpo(a, b, c, d), rel=1e-12)
    assert alignment.reward_loss(a, b) == pytest.approx(alignment.reward_loss(a + shift, b + shift), rel=1e-12)
    assert alignment.dpo(a, b, a, b) == pytest.approx(np.full(6, math.log(2)), rel=1e-14)
    assert (alignment.ipo(a, b, c, d, 0.5) >= 0).all()
    loss = alignment.kto(a, c, np.arange(6) % 2 == 0)
    assert ((loss >= 0) & (loss <= 1)).all()
    advantages = alignment.group_advantages(rng.standard_normal((3, 5)))
    assert advantages.mean(-1) == pytest.approx(np.zeros(3), abs=1e-12)
    assert alignment.group_advantages(np.ones((2, 4))).tolist() == [[0.0] * 4] * 2
    full = alignment.generalised_advantages(a, b, 0.9, 1.0) + b
    assert full == pytest.approx(
        alignment.lambda_returns(a, np.append(np.full(5, 0.9), 0.0), np.append(b[1:], 0.0), 1.0)
    )
    discounts, last = np.array([0.9, 0.5, 0.0, 1.0, 0.8, 0.7]), 0.3  # an episode ends within, another is cut short
    ahead = alignment.generalised_advantages(a, b, discounts, 0.6, last) + b
    assert ahead == pytest.approx(alignment.lambda_returns(a, discounts, np.append(b[1:], last), 0.6))
