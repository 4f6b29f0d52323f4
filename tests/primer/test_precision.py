"""The chapter on precision: formats bit by bit, against what the standards and other programs say of them."""

import struct

import pytest

from limpid.primer.chapter import Text, chapter
from limpid.primer.stored import DTYPES, added, bias, bits, fields, formats, gap, largest, numbers, stored, sum_bound


def test_formats_have_their_published_ranges() -> None:
    found = {one.name: one for one in formats()}
    for name, kept in {
        "float64": (64, 11, 52, 1.7976931348623157e308, 2.2250738585072014e-308, 2.220446049250313e-16),
        "float32": (32, 8, 23, 3.4028234663852886e38, 1.1754943508222875e-38, 1.1920929e-7),
        "bfloat16": (16, 8, 7, 3.3895313892515355e38, 1.1754943508222875e-38, 0.0078125),
        "float16": (16, 5, 10, 65504, 6.103515625e-5, 0.0009765625),
        "float8 e4m3": (8, 4, 3, 448, 0.015625, 0.125),  # Micikevicius et al. 2022, table 1
        "float8 e5m2": (8, 5, 2, 57344, 6.103515625e-5, 0.25),
    }.items():
        assert tuple(found[name])[1:] == pytest.approx(kept, rel=1e-7), name


@pytest.mark.parametrize("value", [6.5, 0.1, -3.75, 1e-3, 100.0])
def test_bits_are_those_of_the_standard(value: float) -> None:
    for name, code in {"float32": ">f", "float16": ">e", "float64": ">d"}.items():
        pattern = "".join(f"{byte:08b}" for byte in struct.pack(code, value))
        one = bits(value, name)
        assert one.sign + one.exponent + one.fraction == pattern
        assert one.value == struct.unpack(code, struct.pack(code, value))[0]
    assert bits(value, "bfloat16")[1] == bits(value, "float32")[1]


@pytest.mark.parametrize("name", DTYPES)
def test_the_equation_gives_back_the_number(name: str) -> None:
    part = fields(-5.0, name)
    assert (-1) ** part["sign"] * (1 + part["fraction"]) * 2 ** (part["exponent"] - part["bias"]) == -5.0


def test_gaps_and_rounding() -> None:
    assert [bias(5), bias(8), bias(11)] == [15, 127, 1023]
    assert largest(5, 10) == 65504
    assert [gap(x, "bfloat16") for x in (1.0, 100.0, 128.0, 300.0)] == [2**-7, 0.5, 1.0, 2.0]
    assert stored(0.1, "bfloat16") == 0.10009765625
    assert numbers("float8 e5m2", 1, 4) == [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4]
    assert [stored(x, "float8 e5m2") for x in (1.125, 1.375)] == [1.0, 1.5]  # ties go to the even last bit


def test_small_numbers_are_lost_beside_large_ones() -> None:
    assert added(1.0, 0.001, 1000, "bfloat16") == 1.0
    assert added(1.0, 0.001, 1000, "float32") == pytest.approx(2, abs=1e-4)
    assert added(0.0, 1.0, 1000, "bfloat16") == 256
    assert stored(1e-8, "float16") == 0
    assert stored(1e-8 * 2**16, "float16") == pytest.approx(6.55e-4, rel=1e-3)


def test_the_bound_of_a_sum_holds() -> None:
    terms = [stored(0.01, "float32")] * 768
    off = abs(added(0.0, 0.01, 768, "float32") - sum(terms))
    assert 0 < off < sum_bound(terms, "float32")
    assert sum_bound(terms, "float32") == pytest.approx(767 * 2**-24 * 7.68, rel=1e-3)


def test_the_text_says_so() -> None:
    said = " ".join(part.markdown for part in chapter("precision").parts if isinstance(part, Text)).replace("\n", " ")
    assert "its largest number is 65,504" in said
    assert "$e = 17$, the bias $b = 15$ and the fraction $F = 0.625$" in said
    assert "| `bfloat16` | 1 |" in said
