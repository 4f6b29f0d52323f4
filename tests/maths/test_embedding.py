"""Rotary frequencies beside transformers', which are float32; positions by hand."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from limpid.errors import ShapeError
from limpid.maths import Embedding, LearnedPositions, Rotary, SinusoidalPositions

STRETCHES = {
    "none": ({"rope_type": "default", "rope_theta": 10000.0}, Rotary()),
    "linear": (
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
        Rotary(scaling="linear", factor=3.0),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        Rotary(500000.0, scaling="llama3", factor=8.0, original_context=8192),
    ),
    "yarn": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        Rotary(scaling="yarn", factor=4.0, original_context=4096, low=1.0, high=32.0),
    ),
}


@pytest.mark.parametrize("name", STRETCHES)
def test_frequencies_equal_transformers(name: str) -> None:
    theirs, ours = STRETCHES[name]
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=1, head_dim=128, max_position_embeddings=32768, rope_parameters=theirs
    )
    embedding = LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(ours.frequencies(128), embedding.inv_freq.numpy(), rtol=1e-6)
    assert ours.scale() == pytest.approx(embedding.attention_scaling)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_product_of_rotated_vectors_depends_on_the_difference_of_positions_only(layout: str) -> None:
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal(10), rng.standard_normal(10)
    turned_query, turned_key = (
        Rotary(layout=layout)(np.broadcast_to(x, (1, 23, 1, 10)))[0, :, 0] for x in (query, key)
    )
    products = turned_query @ turned_key.T
    for difference in range(-22, 23):
        diagonal = np.diagonal(products, difference)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-13)


def test_rotation_keeps_lengths_and_leaves_position_zero() -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 3, 10))
    y = Rotary()(x)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1))
    np.testing.assert_array_equal(y[:, 0], x[:, 0])


def test_a_quarter_turn_by_hand() -> None:
    operation = Rotary(base=1.0)
    x = np.zeros((1, 2, 1, 2))
    x[..., 0] = 1.0
    assert operation(x)[0, 1, 0] == pytest.approx([np.cos(1.0), np.sin(1.0)])


def test_sinusoidal_positions_by_hand() -> None:
    y = SinusoidalPositions(3, 4)(*())
    assert y[0] == pytest.approx([0, 1, 0, 1])
    assert y[2] == pytest.approx([np.sin(2), np.cos(2), np.sin(0.02), np.cos(0.02)])


def test_a_token_that_occurs_twice_receives_two_gradients() -> None:
    _, saved = Embedding().forward(np.array([[1, 3, 1]]), np.zeros((5, 2)))
    _, table_bar = Embedding().backward(np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]), saved)
    assert table_bar.tolist() == [[0, 0], [6, 8], [0, 0], [3, 4], [0, 0]]


@pytest.mark.parametrize("token", [-1, 5])
def test_a_token_without_a_row_is_named(token: int) -> None:
    with pytest.raises(ShapeError, match=f"token {token} has no row in a table of 5"):
        Embedding()(np.array([[0, token]]), np.zeros((5, 2)))


def test_more_positions_than_rows_are_refused() -> None:
    with pytest.raises(ShapeError, match="4 positions, but the table has 3"):
        LearnedPositions(4)(np.zeros((3, 2)))
