"""The chapter on gradient descent: its worked step, its real loss, and what the text says of long and noisy steps."""

import numpy as np
import pytest

from limpid.maths.foundations import finite_difference
from limpid.primer.cases import letters, surfaces
from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text

READ = chapter("gradient-descent")
TEXT = "\n".join(part.markdown for part in READ.parts if isinstance(part, Text))


def test_the_worked_step() -> None:
    (example,) = (part for part in READ.parts if isinstance(part, Example))
    assert example.solution.endswith("= 2.6")


def test_the_letters_have_the_gradient_of_their_loss() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    scores = rng.standard_normal(letters.start().shape)
    assert letters.loss_gradient(scores) == pytest.approx(finite_difference(letters.loss, scores), abs=1e-8)
    assert letters.each_gradient().mean(0) == pytest.approx(letters.loss_gradient(letters.start()).ravel(), abs=1e-12)


def test_the_real_loss_starts_at_ignorance_and_stays_above_the_texts_own_uncertainty() -> None:
    whole = letters.descent(30, 60)
    assert whole.losses[0] == pytest.approx(np.log(len(letters.LETTERS)))
    assert letters.least() < min(whole.losses)
    assert letters.descent(30, 3000).losses[-1] == pytest.approx(letters.least(), abs=0.01)
    assert letters.rises(whole) == 0 < letters.rises(letters.descent(100, 60))
    assert 0 < letters.rises(letters.descent(3, 200, 16)) < 100


def test_the_square_is_multiplied_by_the_same_factor_at_each_step() -> None:
    assert surfaces.descended(surfaces.square, 1, 0.9, 10)[-1] == pytest.approx(0.8**10)
    assert surfaces.descended(surfaces.square, 1, 1.1, 10)[-1] == pytest.approx(1.2**10)
    assert surfaces.descended(surfaces.square, 1, 0.5, 1)[-1] == 0


def test_a_saddle_holds_only_who_comes_straight_to_it() -> None:
    assert surfaces.kind(surfaces.saddle, [0, 0]) == "saddle"
    assert surfaces.kind(surfaces.valley, [0, 0]) == "minimum"
    assert abs(surfaces.descended(surfaces.saddle, [1, 0.001], 0.1, 40)[-1][1]) > 1


def test_momentum_remembers_ten_and_a_hundred_steps() -> None:
    assert "remembers about 10 steps" in TEXT.replace("\n", " ")
    assert "about 100." in TEXT.replace("\n", " ")


def test_pictures_fit_a_terminal() -> None:
    for part in READ.parts:
        if isinstance(part, Figure):
            assert max(map(len, as_text(part.name, part.settings).splitlines())) <= 72
            assert as_svg(part.name, part.settings).startswith("<svg")
