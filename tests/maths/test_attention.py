"""Attention by pencil and paper: who sees whom, and who pays for it."""

import numpy as np
import pytest

from limpid.errors import ShapeError
from limpid.maths import CausalSoftmax, Mix, Scores


def test_scores_by_hand() -> None:
    """One head, two positions of two features."""
    query = np.array([[[[1.0, 0.0]], [[1.0, 2.0]]]])
    key = np.array([[[[3.0, 1.0]], [[0.0, 5.0]]]])
    scores, saved = Scores(0.5).forward(query, key)
    assert scores.tolist() == [[[[1.5, 0.0], [2.5, 5.0]]]]
    query_bar, key_bar = Scores(0.5).backward(np.array([[[[2.0, 0.0], [0.0, 4.0]]]]), saved)
    assert query_bar[0, :, 0].tolist() == [[3, 1], [0, 10]]
    assert key_bar[0, :, 0].tolist() == [[1, 0], [2, 4]]


def test_neighbouring_heads_share_a_key_head() -> None:
    """Heads 0, 1, 2 meet key head 0; heads 3, 4, 5 meet key head 1."""
    query = np.ones((1, 1, 6, 1))
    key = np.array([10.0, 20.0]).reshape(1, 1, 2, 1)
    scores, saved = Scores(1.0).forward(query, key)
    assert scores.ravel().tolist() == [10, 10, 10, 20, 20, 20]
    _, key_bar = Scores(1.0).backward(np.array([1.0, 2, 3, 4, 5, 6]).reshape(1, 6, 1, 1), saved)
    assert key_bar.ravel().tolist() == [6, 15]
    weights = np.ones((1, 6, 1, 1))
    mixed, saved_mix = Mix().forward(weights, key)
    assert mixed.ravel().tolist() == [10, 10, 10, 20, 20, 20]
    _, value_bar = Mix().backward(np.array([1.0, 2, 3, 4, 5, 6]).reshape(1, 1, 6, 1), saved_mix)
    assert value_bar.ravel().tolist() == [6, 15]


def test_softmax_by_hand() -> None:
    weights = CausalSoftmax()(np.log(np.array([[1.0, 9, 9], [1, 3, 9], [1, 2, 5]])))
    assert weights == pytest.approx(np.array([[1, 0, 0], [1 / 4, 3 / 4, 0], [1 / 8, 2 / 8, 5 / 8]]))


def test_a_window_counts_the_query_itself() -> None:
    seen = CausalSoftmax(2)(np.zeros((4, 4)))
    assert seen.tolist() == [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]


def test_later_queries_stand_at_the_last_keys() -> None:
    seen = CausalSoftmax()(np.zeros((2, 4)))
    assert seen == pytest.approx(np.array([[1, 1, 1, 0], [0.75, 0.75, 0.75, 0.75]]) / 3)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_hidden_keys_weigh_nothing_and_receive_no_gradient(window: int | None, rng: np.random.Generator) -> None:
    operation = CausalSoftmax(window)
    scores = rng.standard_normal((2, 3, 7, 7))
    hidden = np.triu(np.ones((7, 7), bool), 1)
    if window is not None:
        hidden |= np.tril(np.ones((7, 7), bool), -window)
    weights, saved = operation.forward(scores)
    (scores_bar,) = operation.backward(rng.standard_normal(weights.shape), saved)
    assert not weights[..., hidden].any()
    assert not scores_bar[..., hidden].any()
    assert weights[..., ~hidden].all()
    tempting = np.where(hidden, 1e9, scores)
    assert np.array_equal(operation(tempting), weights)


def test_rows_sum_to_one_and_their_gradients_to_zero(rng: np.random.Generator) -> None:
    weights, saved = CausalSoftmax().forward(rng.standard_normal((2, 3, 7, 7)))
    (scores_bar,) = CausalSoftmax().backward(rng.standard_normal(weights.shape), saved)
    assert weights.sum(-1) == pytest.approx(1)
    assert scores_bar.sum(-1) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_large_scores_neither_overflow_nor_vanish(shift: float) -> None:
    scores = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert CausalSoftmax()(scores + shift) == pytest.approx(CausalSoftmax()(scores))


def test_the_first_query_is_sure_of_itself_and_learns_nothing() -> None:
    weights, saved = CausalSoftmax().forward(np.full((1, 1), 17.0))
    assert weights.tolist() == [[1]]
    assert CausalSoftmax().backward(np.full((1, 1), 5.0), saved)[0].tolist() == [[0]]


def test_mixing_by_hand() -> None:
    value = np.array([[[[1.0, 0.0]], [[3.0, 8.0]]]])
    mixed, saved = Mix().forward(np.array([[[[1.0, 0.0], [0.25, 0.75]]]]), value)
    assert mixed[0, :, 0].tolist() == [[1, 0], [2.5, 6]]
    weights_bar, value_bar = Mix().backward(np.array([[[[1.0, 1.0]], [[4.0, 0.0]]]]), saved)
    assert weights_bar[0, 0].tolist() == [[1, 11], [4, 12]]
    assert value_bar[0, :, 0].tolist() == [[2, 1], [3, 0]]


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused_with_both_shapes() -> None:
    with pytest.raises(ShapeError, match=r"query has shape \(2, 5, 3, 7\), key \(2, 5, 2, 7\)"):
        Scores(1.0)(np.ones((2, 5, 3, 7)), np.ones((2, 5, 2, 7)))
    with pytest.raises(ShapeError, match=r"weights have shape \(2, 3, 5, 5\), value \(2, 7, 3, 2\)"):
        Mix()(np.ones((2, 3, 5, 5)), np.ones((2, 7, 3, 2)))
    with pytest.raises(ShapeError, match="5 queries but 3 keys"):
        CausalSoftmax()(np.ones((5, 3)))
