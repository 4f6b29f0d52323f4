"""The chapter of attention has the worked values of its source, in the form with the mask too."""

import numpy as np
import pytest

from limpid.maths.foundations import attention, attention_weights
from limpid.primer.chapter import Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text

QUERY, KEY, VALUE = [[1, 0], [0, 1], [1, 1]], [[1, 1], [0, 1], [1, 0]], [[10, 0], [0, 10], [5, 5]]
WITHOUT = [
    ("[0.4011, 0.1978, 0.4011]", "[6.0167, 3.9833]"),
    ("[0.4011, 0.4011, 0.1978]", "[5, 5]"),
    ("[0.5035, 0.2483, 0.2483]", "[6.2762, 3.7238]"),
]
WITH = [("[1, 0, 0]", "[10, 0]"), ("[0.5, 0.5, 0]", "[5, 5]"), ("[0.5035, 0.2483, 0.2483]", "[6.2762, 3.7238]")]
"""Weights and output of each token, as the source has them, recomputed by hand."""


def text() -> str:
    return " ".join(" ".join(part.markdown for part in chapter("attention").parts if isinstance(part, Text)).split())


@pytest.mark.parametrize("rows", [WITHOUT, WITH])
def test_all_three_rows_stand_in_the_chapter(rows: list[tuple[str, str]]) -> None:
    said = text()
    for word, (weights, output) in zip(("the", "cat", "sat"), rows, strict=True):
        assert f"| {word} | {weights} | {output} |" in said


def test_permuting_the_tokens_permutes_the_outputs() -> None:
    assert "[5, 5], [6.0167, 3.9833] and [6.2762, 3.7238]: the same rows, exchanged" in text()


def test_scores_of_64_entries_spread_by_8_and_a_head_of_768_has_64() -> None:
    said = text()
    assert "with 64 entries scores spread by about 8, not by 1" in said
    assert "$d_k = d / H = 64$" in said
    assert r"$64 \times 768$" in said


def test_the_variance_of_a_score_is_the_size_of_a_head() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    products = (rng.normal(size=(20_000, 64)) * rng.normal(size=(20_000, 64))).sum(-1)
    assert products.std() == pytest.approx(8, rel=0.03)


def test_the_picture_of_weights_shows_what_attention_gives() -> None:
    settings = {"tokens": ["the", "cat", "sat"], "query": QUERY, "key": KEY, "value": VALUE}
    drawn, typed = as_svg("attention-weights", settings), as_text("attention-weights", settings)
    for causal in (False, True):
        for weight in attention_weights(QUERY, KEY, causal=causal).ravel():
            assert weight == 0 or (f">{weight:.2f}<" in drawn and f" {weight:.2f}" in typed)
        assert "[6.276, 3.724]" in typed
        assert attention(QUERY, KEY, VALUE, causal=causal)[2] == pytest.approx([6.2762, 3.7238], abs=5e-5)


def test_pictures_fit_a_terminal() -> None:
    for part in chapter("attention").parts:
        if isinstance(part, Figure):
            assert max(map(len, as_text(part.name, part.settings).splitlines())) <= 72
