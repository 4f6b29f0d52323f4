"""The chapter on scaling: its counts and laws against published numbers."""

import pytest

from limpid.planning.laws.scaling import APPROACH_3, REFIT, six_n_d
from limpid.planning.parameters import count
from limpid.planning.published import published
from limpid.primer.chapter import Text, chapter
from limpid.primer.sizes import cache_per_token, device_bytes, layouts, training_bytes


def said() -> str:
    return " ".join(part.markdown for part in chapter("scaling").parts if isinstance(part, Text)).replace("\n", " ")


def test_parameters_of_a_published_model() -> None:
    gpt3 = published("gpt3-175b")
    assert count(gpt3, "attention", "mlp") / 1e9 == pytest.approx(174, rel=2e-3)
    assert pytest.approx(count(gpt3, "attention", "mlp"), rel=1e-3) == 12 * 96 * 12288**2
    assert "1.739 × 10¹¹" in said()


def test_memory() -> None:
    assert training_bytes(7e9) == 112e9
    assert cache_per_token(80, 64, 128) * 2**17 == 320 * 2**30  # full multi-head attention at 128 Ki tokens
    assert cache_per_token(80, 8, 128) * 2**17 == 40 * 2**30
    assert "140 gigabytes for seventy billion parameters" in said()
    assert "320 GiB" in said()


def test_compute() -> None:
    assert six_n_d(175e9, 300e9) == 3.15e23
    assert six_n_d(174_604_259_328, 300e9) == pytest.approx(3.1429e23, rel=1e-4)
    assert "took 3.14 × 10²³ FLOPs" in said()


def test_the_law_is_at_its_least_where_the_chapter_says() -> None:
    for law, exponent in ((REFIT, 0.5126), (APPROACH_3, 0.4565)):
        n, d = law.optimum(1e21)
        least = law.loss(n, d)
        assert all(law.loss(n * more, d / more) > least for more in (0.9, 1.1))
        assert law.exponent == pytest.approx(exponent, abs=1e-4)
        assert law.optimum(1e23)[0] / n == pytest.approx(100**exponent, rel=1e-3)


def test_half_the_size_needs_so_much_more_text() -> None:
    n, d = REFIT.optimum(1e21)
    assert REFIT.loss(n / 2, 2.5 * d) == pytest.approx(REFIT.loss(n, d), rel=2e-3)
    assert "with 2.5 times the text" in said()


def test_zero_divides_what_every_copy_holds() -> None:
    takes = {said: device_bytes("llama-2-7b", layout) for said, layout in layouts().items()}
    whole, divided = takes["copies"], takes["copies, ZeRO three"]
    for part in ("weights", "gradients", "optimizer"):
        assert divided[part] == pytest.approx(whole[part] / 8, rel=1e-3)
    assert takes["copies, ZeRO three, all recomputed"]["activations"] < 0.2 * divided["activations"]
