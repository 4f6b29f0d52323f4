"""The chapter on the residual stream has the values that were worked out by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from limpid.maths.foundations import finite_difference
from limpid.maths.norm import batch_norm, layer_norm, rms_norm
from limpid.primer.cases import timed
from limpid.primer.cases.depth import BENDS, drawn, gradient_norms
from limpid.primer.chapter import Text, chapter
from limpid.primer.figures import as_svg, as_text
from limpid.primer.figures.residual import _left

LOGITS = [
    ("the table of tokens", 2, 3),
    ("attention, first block", 2, "−1"),
    ("MLP, first block", 3, 2),
    ("attention, second block", 1, "−2"),
    ("together", 8, 2),
]
"""Of *mat* and *dog*: [1, 0, −1, 1] and [0, 1, 0, 1] times what each wrote."""


def text() -> str:
    read = chapter("residual-stream")
    return " ".join(" ".join(part.markdown for part in read.parts if isinstance(part, Text)).split())


def test_logits_are_the_sums_of_what_each_part_wrote() -> None:
    said = text()
    for who, mat, dog in LOGITS:
        assert f"| {who} | {mat} | {dog} |" in said
    assert "| attention, second block | [1, −2, 0, 0] | [4, 0, −2, 2] |" in said


def test_norms_by_hand() -> None:
    x, ones, zeros = np.array([4.0, 0.0, -2.0, 2.0]), np.ones(4), np.zeros(4)
    by_hand = [part / math.sqrt(5) for part in (3, -1, -3, 1)]  # mean 1, variance (9 + 1 + 9 + 1) / 4
    assert layer_norm(x, ones, zeros, 0.0) == pytest.approx(by_hand)
    assert rms_norm(x, ones, 0.0) == pytest.approx([part / math.sqrt(6) for part in x])  # (16 + 0 + 4 + 4) / 4
    said = text()
    assert "[1.342, −0.4472, −1.342, 0.4472]" in said
    assert said.count("[1.633, 0, −0.8165, 0.8165]") == 2
    assert r"$\sigma = \sqrt{5} = 2.2361$" in said
    assert r"$r = \sqrt{6} = 2.4495$" in said


def test_epsilon_changes_none_of_the_digits_shown() -> None:
    assert rms_norm(np.array([4.0, 0.0, -2.0, 2.0]), np.ones(4), 1e-5) == pytest.approx(
        [1.633, 0, -0.8165, 0.8165], abs=5e-5
    )


def test_batch_norm_depends_on_the_rest_of_the_batch() -> None:
    beside = batch_norm(np.array([[1.0, 3.0], [3.0, 1.0]]), np.ones(2), np.zeros(2), None, None, 0.0)[0]
    assert list(beside) == [-1, 1]  # means 2, deviations 1
    said = text()
    assert "it becomes [−1, 1]" in said
    assert "it becomes [−0.843, −0.463]" in said  # (1 − 4) / √(38/3), (3 − 4) / √(14/3)
    assert [-3 / math.sqrt(38 / 3), -1 / math.sqrt(14 / 3)] == pytest.approx([-0.843, -0.463], abs=5e-4)


def test_a_gradient_lasts_where_parts_are_added() -> None:
    assert _left(0.1, 24)[-1] == pytest.approx((24, 1e-24), rel=1e-12, abs=0)
    assert _left(1.1, 24)[-1] == pytest.approx((24, 9.8497), rel=1e-5)
    said = text()
    assert "$g^n = 10^{-24}$" in said
    assert "The product is now 9.85; with slopes of −0.01 it would be 0.786" in said


@pytest.mark.parametrize("bend", BENDS)
@pytest.mark.parametrize("added", [True, False])
def test_a_gradient_behind_random_layers_is_the_slope_of_what_they_make(bend: str, added: bool) -> None:
    depth, width, scale = 5, 16, 0.9
    numbers = drawn(width + depth * width * width)
    weights = scale / 4 * numbers[width:].reshape(depth, width, width)
    by_hand: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "tanh": np.tanh,
        "relu": lambda z: np.maximum(z, 0),
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "nothing": np.copy,
    }

    def made(h: np.ndarray) -> float:
        for weight in weights:
            h = by_hand[bend](weight @ h) + (h if added else 0)
        return float(h.sum() / math.sqrt(width))

    measured = finite_difference(made, numbers[:width])
    assert gradient_norms(bend, scale, depth, added)[-1] == pytest.approx(np.linalg.norm(measured), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("residual-block", {}),
        ("gradient-depth", {"slope": 0.1, "depth": 24}),
        ("gradient-flow", {"bend": "tanh", "scale": 0.7, "depth": 24}),
        ("gradient-flow", {"bend": "sigmoid", "scale": 2, "depth": 3}),
    ],
)
def test_pictures_fit_a_terminal_and_have_titles(name: str, settings: dict[str, float]) -> None:
    assert max(map(len, as_text(name, settings).splitlines())) <= 72
    assert "<title>" in as_svg(name, settings)


def test_the_times_of_norms_are_those_that_were_measured_and_the_words_beside_them_hold() -> None:
    times, words = timed.norms(), text()
    assert "RMSNorm wins: fewer steps" in words
    assert "LayerNorm wins here" in words
    ratios = {(row.written, row.part): row.ratio for row in times.rows}
    assert {part for _, part in ratios} == {"forward", "both passes"}
    for part in ("forward", "both passes"):
        assert max(ratios[way, part] for way in ("NumPy, float64", "PyTorch, step by step")) < 1
        assert ratios["PyTorch, one operation", part] > 1
    assert all(f"| {row.layer:g} | {row.rms:g} | {row.ratio:g} |" in words for row in times.rows)
