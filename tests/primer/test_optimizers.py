"""The chapter on optimizers: its worked numbers against those reckoned outside."""

import numpy as np
import pytest

from limpid.maths.foundations import momentum_window
from limpid.maths.update import SGD, Adam, AdamW, Momentum
from limpid.primer.cases import surfaces
from limpid.primer.chapter import Example, Text, chapter
from limpid.primer.updates import path, until, updates

RULES = (SGD(), Momentum(), AdamW())


def text() -> str:
    return " ".join(part.markdown for part in chapter("optimizers").parts if isinstance(part, Text))


def test_the_worked_update_has_its_published_numbers() -> None:
    (example,) = (part for part in chapter("optimizers").parts if isinstance(part, Example))
    theta, g, rate, decay = example.exercise.given(example.numbers)
    terms = updates(AdamW(decay), theta, [g], rate)[0]
    for name, value in {
        "m": -0.035289, "v": 0.000124533, "m_hat": -0.352893, "v_hat": 0.124533, "theta": 0.024633754,
        "effective": 0.002834, "multiplier": 2.83, "parameter": 0.025634,
    }.items():  # fmt: skip
        assert terms[name] == pytest.approx(value, rel=2e-3 if name == "multiplier" else 2e-4), name
    for number in ("0.024633754", "−0.0352893", "0.00012453347", "0.12453347", "0.00283372", "0.025633754"):
        assert number in example.solution


def test_the_multiplier_of_a_first_step() -> None:
    for size, multiplier in {0.001: 999.99, 0.01: 100, 0.1: 10, 0.5: 2, 1: 1, 5: 0.2}.items():
        assert updates(AdamW(), 0.0, [size], 0.001)[0]["multiplier"] == pytest.approx(multiplier, rel=1e-5)
    assert "| 0.001 | 999.99 |" in text()
    assert "| 5 | 0.2 |" in text()


def test_windows_and_decay() -> None:
    assert [momentum_window(beta) for beta in (0.9, 0.99)] == pytest.approx([10, 100])
    assert "$1 / (1 - \\beta)$ steps, its **window**: 10 steps" in text().replace("\n", " ")
    moved = [updates(rule, 0.5, [-0.2], 0.1)[0]["parameter"] for rule in (Adam(), Adam(0.1), AdamW(0.1))]
    assert moved == pytest.approx([0.6, 0.6, 0.595], abs=1e-6)  # L2 does nothing in a first step


def test_the_second_step_of_two_unlike_gradients() -> None:
    second = updates(AdamW(), 1.0, [1.0, -1.0], 0.1)[1]
    m, v = 0.9 * 0.1 - 0.1, 0.999 * 0.001 + 0.001
    assert second["m"] == pytest.approx(m)
    assert second["v"] == pytest.approx(v)
    assert second["parameter"] == pytest.approx(0.9 - 0.1 * (m / 0.19) / (v / 0.001999) ** 0.5)


def test_adamw_leaves_saddle_and_plateau_first_and_the_higher_hollow_holds_all() -> None:
    y, steps = 0.001, 0
    while abs(y) <= 1:  # of x² − y² each step stretches y by 1 + 2 · 0.1
        y, steps = 1.2 * y, steps + 1
    left = [until(path(rule, surfaces.saddle, [1, 0.001], 0.1, 150), surfaces.off_the_saddle) for rule in RULES]
    assert (left[0], left[2]) == (f"after {steps}", "after 11")
    assert "| AdamW | after 11 | after 73 | 0.96 |" in text()
    assert [until(path(rule, surfaces.plateau, [10], 0.1, 300), surfaces.over_the_plateau) for rule in RULES[:2]] == [
        "not"
    ] * 2
    lower, higher = sorted(root.real for root in np.roots([4, 0, -4, 0.3]))[::2]  # where the slope is zero
    for rule in RULES:
        assert path(rule, surfaces.two_hollows, [1.5], 0.1, 200)[-1][0] == pytest.approx(higher, abs=0.01)
    assert surfaces.two_hollows([lower]) < surfaces.two_hollows([higher])
