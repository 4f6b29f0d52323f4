"""The chapter on attention's variants: the cache in the form that is right, and tiles that change nothing."""

import math

import numpy as np
import pytest
import torch

from limpid.maths.foundations import attention, tiled_attention
from limpid.primer.cases import recurrent
from limpid.primer.chapter import Text, chapter
from limpid.primer.figures import as_svg, as_text


def text() -> str:
    read = chapter("attention-variants")
    return " ".join(" ".join(part.markdown for part in read.parts if isinstance(part, Text)).split())


def test_320_gib_is_full_multi_head_attention_and_8_key_heads_need_40() -> None:
    said = text()
    assert "| multi-head | 64 | 2,621,440 | 320 GiB |" in said
    assert "| grouped-query | 8 | 327,680 | 40 GiB |" in said
    assert "| multi-query | 1 | 40,960 | 5 GiB |" in said


def test_the_cache_changes_no_number() -> None:
    assert text().count("[6.2762, 3.7238]") == 2


def test_a_window_by_hand() -> None:
    said = text()
    assert "[0, 0.5, 0.5] in place of [0.5035, 0.2483, 0.2483]" in said
    assert "these are 131,040" in said


def test_the_online_softmax_by_hand() -> None:
    rows = [(1, 1, 1, 10), (3, 3, 1 + math.exp(-2), 20 + 10 * math.exp(-2))]
    last = (2, 3, rows[1][2] + math.exp(-1), rows[1][3] + 30 * math.exp(-1))
    said = text()
    for score, largest, total, mix in (*rows, last):
        assert f"| {score} | {largest} | {total:.5g} | {mix:.5g} | {mix / total:.5g} |" in said
    assert f"the mix {last[3] / last[2]:.5g}: the same" in said


def test_tiles_give_what_attention_gives() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    query, key, value = rng.normal(size=(3, 9, 4))
    assert tiled_attention(query, key, value, causal=True, tile=2).output == pytest.approx(
        attention(query, key, value, causal=True)
    )


def test_linear_attention_by_hand() -> None:
    output = [(6 * 10 + 5 * 5) / 15, (4 * 10 + 5 * 5) / 15]  # φ(q) = [2, 1]; products 6, 4 and 5
    said = text()
    assert "The products are [6, 4, 5], their sum is 15" in said
    assert f"[{output[0]:.4g}, {output[1]:.4g}]. Softmax gave [6.017, 3.983]" in said


def test_the_picture_counts_its_scores() -> None:
    settings = {"tokens": 8, "window": 3}
    said, drawn = as_text("attention-masks", settings), as_svg("attention-masks", settings)
    assert said.count("■") == 8 * 9 // 2 + 1 + 2 + 3 * 6
    assert all(f"{count} scores" in said and f"{count} scores" in drawn for count in (36, 21))
    assert max(map(len, said.splitlines())) <= 72


@pytest.mark.parametrize("held", [0, 3])
def test_gradients_through_time_are_those_of_pytorch(held: float) -> None:
    """torch.nn.LSTM with the same draws, by autograd."""
    sizes, width = [], recurrent.WIDTH
    for seed in range(recurrent.MODELS):
        rng = np.random.Generator(np.random.PCG64(seed))
        own = torch.nn.LSTM(width, width, dtype=torch.float64)
        drawn = [rng.uniform(-(width**-0.5), width**-0.5, tuple(one.shape)) for one in list(own.parameters())[:3]]
        offset = np.repeat([0, held, 0, 0], width).astype(float)
        for parameter, numbers in zip(own.parameters(), (*drawn, offset), strict=True):
            parameter.data = torch.tensor(numbers)
        last = torch.tensor(rng.standard_normal(width))
        x = torch.tensor(rng.standard_normal((recurrent.LENGTH, width)), requires_grad=True)
        (own(x)[0][-1] @ last).backward()
        sizes.append(x.grad.norm(dim=1).log().numpy()[::-1])
    expected = np.exp(np.mean(sizes, 0))
    assert recurrent.lstm_reach(held) == pytest.approx(expected / expected[1], rel=1e-9)


def test_attention_reaches_the_first_token_as_well_as_the_last() -> None:
    assert recurrent.attention_reach()[1:].min() > 0.3
    assert recurrent.attention_reach()[1:].max() < 3
    assert "LSTM" in as_text("gradient-time", {"forget_bias": 3})
