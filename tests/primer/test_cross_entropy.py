"""The chapter on cross-entropy beside numbers worked out apart from it."""

import pytest

from limpid.maths.foundations import bits_per_byte, entropy, surprise
from limpid.maths.loss import perplexity
from limpid.primer.chapter import Example, Text, chapter
from limpid.primer.figures import as_svg, as_text

TEXT = "\n".join(part.markdown for part in chapter("cross-entropy").parts if isinstance(part, Text))


def test_the_worked_example_and_the_less_likely_token() -> None:
    (example,) = (part for part in chapter("cross-entropy").parts if isinstance(part, Example))
    assert "0.35667" in example.solution
    assert "2.30259" in TEXT


def test_the_table_of_probability_loss_and_perplexity() -> None:
    for p, loss, choices in ((0.95, "0.05", "1.05"), (0.5, "0.69", "2"), (0.1, "2.30", "10"), (0.01, "4.61", "100"),
                             (0.001, "6.91", "1,000")):  # fmt: skip
        assert f"| {p} | {loss} | {choices} |" in TEXT
    assert float(surprise(0.3)) == pytest.approx(1.20397, abs=5e-6)
    assert perplexity(float(surprise(0.3))) == pytest.approx(3.3333, abs=5e-5)


def test_entropies_of_coin_and_die() -> None:
    assert entropy([0.5, 0.5], 2) == pytest.approx(1)
    assert "2.585 bits" in TEXT
    assert "0.6931" in TEXT


def test_a_texts_logarithms_are_rounded_once() -> None:
    assert "−7.9984" in TEXT
    assert "1.9996 nats a token" in TEXT


def test_two_tokenizers_have_two_perplexities_and_one_size() -> None:
    assert "perplexity of 16.4" in TEXT
    assert "perplexity of 33.1" in TEXT
    assert (
        bits_per_byte(2.8, 250, 1000) == pytest.approx(bits_per_byte(3.5, 200, 1000)) == pytest.approx(1.0099, abs=1e-4)
    )
    assert "126 bytes" in TEXT


def test_the_picture_marks_both_tokens() -> None:
    assert "−ln 0.1 = 2.30" in as_svg("surprise", {"probabilities": [0.1]})
    assert max(map(len, as_text("surprise", {"probabilities": [0.7, 0.1]}).splitlines())) <= 72
