"""The chapter on the chain rule: a pass worked out by hand, and what the text says of cost and depth."""

import numpy as np
import pytest

from limpid.primer.cases.network import logits_gradient, measured, passed, through_layers
from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text

READ = chapter("chain-rule")
TEXT = "\n".join(part.markdown for part in READ.parts if isinstance(part, Text))


def test_the_network_has_the_numbers_that_were_worked_out_by_hand() -> None:
    found = passed([1, 2], np.array([[2, 1], [1, -1]]), [1, 3], 6)
    assert (found.z.tolist(), found.h.tolist(), found.y, found.loss) == ([4, -1], [4, 0], 4, 2)
    assert (found.y_bar, found.h_bar.tolist(), found.z_bar.tolist()) == (-2, [-2, -6], [-2, 0])
    assert (found.v_bar.tolist(), found.w_bar.tolist()) == ([-8, 0], [[-2, -4], [0, 0]])
    v_moved, w_moved = measured([1, 2], np.array([[2, 1], [1, -1]]), [1, 3], 6)
    assert w_moved == pytest.approx(found.w_bar, abs=1e-8)
    assert v_moved == pytest.approx(found.v_bar, abs=1e-8)


def test_the_gradient_of_logits_is_what_was_believed_less_the_truth() -> None:
    assert logits_gradient([2, 1, 0.5], 0) == pytest.approx([0.62853 - 1, 0.23122, 0.14024], abs=5e-6)
    assert "[−0.3715, 0.2312, 0.1402]" in TEXT


def test_costs_and_depths_of_the_text() -> None:
    assert "2,359,296" in TEXT
    assert "4,718,592 operations forwards and 9,437,184 backwards" in TEXT.replace("\n", " ")
    assert "0.0052" in TEXT
    assert "factor of 117" in TEXT
    (example,) = (part for part in READ.parts if isinstance(part, Example))
    assert example.solution.endswith("36")


def test_random_layers_shrink_keep_and_stretch() -> None:
    shrunk, kept, stretched = (through_layers(gain, 40)[-1] for gain in (0.7, 1, 1.4))
    assert shrunk < 1e-5 < 1e-2 < kept < 10 < 1e3 < stretched


def test_pictures_fit_a_terminal() -> None:
    for part in READ.parts:
        if isinstance(part, Figure):
            assert max(map(len, as_text(part.name, part.settings).splitlines())) <= 72
            assert as_svg(part.name, part.settings).startswith("<svg")


def test_the_picture_of_both_passes_ends_at_the_weights() -> None:
    text = as_text("two-passes", {"x": [1, 2], "w": [[2, 1], [1, -1]], "v": [1, 3], "target": 6})
    assert text.endswith("W\u0305 = [[−2, −4], [0, 0]], V\u0305 = [[−8, 0]]")
