"""Answers as people type them."""

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpid.primer.answer import Unreadable, read

READ = {
    "7": [7], "−5": [-5], "1/3": [1 / 3], "√49": [7], "sqrt(49)": [7], "0,5": [0.5], ".5": [0.5], "ln 3": [math.log(3)],
    "e^3": [math.e**3], "7e9": [7e9], "0,375": [0.375], "-0,125": [-0.125],
    "7B": [7e9], "7 billion": [7e9], "35%": [0.35], "7,000,000,000": [7e9],
    "-ln 0.3": [-math.log(0.3)], "24/25": [0.96], "x = 12": [12], "2·3": [6], "2^10": [1024], "1.2e-3": [0.0012],
    "[10, 6]": [10, 6], "(10; 6)": [10, 6], "10 6": None, "[10 6]": [10, 6], "1/3, 1/3, 1/3": [1 / 3] * 3,
    "[1, e, 1/e]": [1, math.e, 1 / math.e], "0,5; 1,5": [0.5, 1.5], "[−2, 4]": [-2, 4],
    "[1,600, 1,472]": [1600, 1472], "0,5, 1,5": [0.5, 1.5], "1,234": [1234], "[10,6]": [10, 6], "12,5%": [0.125],
    "3x2": [3, 2], "3 × 2": [3, 2], "(3 by 2)": [3, 2], "‖v‖ = 7": [7],
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_what_people_type_is_read(text: str) -> None:
    if (expected := READ[text]) is None:
        with pytest.raises(Unreadable):
            read(text)
    else:
        assert read(text).values == pytest.approx(expected, rel=1e-12)


def test_a_shape_a_list_and_no_answer_are_told_apart() -> None:
    assert [read(text).form for text in ("3 x 2", "[3, 2]", "undefined", "6")] == [
        "shape",
        "list",
        "undefined",
        "number",
    ]


def test_how_exactly_a_number_was_typed() -> None:
    assert read("0.36").within == pytest.approx((0.005,))
    assert [read(text).within for text in ("1/3", "e^2", "√49", "0")] == [(0,)] * 4
    assert [read(text).within[0] for text in ("36%", "49", "1", "400")] == pytest.approx([0.005, 0.5, 0.1, 0.5])
    same = ("1.22e6", "1.22·10^6", "1.22×10⁶", "1.22 * 10**6", "1,22 x 10^6", "1.22 million")
    assert [read(text, "number").within[0] for text in same] == pytest.approx([5000] * 6)
    assert [read(text).within[0] for text in ("1,220,000", "40,000", "2e24")] == pytest.approx([5000, 0.5, 2e23])
    assert read("36.5%").within == pytest.approx((0.0005,))
    assert read("1.20e3").within == pytest.approx((5,))


LISTS = {
    "36,16": [36, 16], "768,512": [768, 512], "12,6,2": [12, 6, 2], "0.7361,0.0996,0.1643": [0.7361, 0.0996, 0.1643],
    "1,600, 1,472": [1600, 1472], "0,5 1,5": [0.5, 1.5], "0.5 1.5": [0.5, 1.5], "[1 -2 3]": [1, -2, 3], "[5]": [5],
    "[[-12,6],[-4,12]]": [-12, 6, -4, 12], "[-12 6; -4 12]": None, "[[4], [2]]": [4, 2], "[3, 4], [1, 2]": [3, 4, 1, 2],
    "[1 / 3, 2 - 1]": [1 / 3, 1], "7,-5": [7, -5], "[e³, 1]": [math.e**3, 1],
}  # fmt: skip
"""Where a list is asked for."""
NUMBERS = {
    "0,5": 0.5, "1,219,920": 1_219_920, "1 219 920": 1_219_920, "(1 + 2) / (3 + 4)": 3 / 7, "3 × 2": 6, "e³": math.e**3,
    "2¹⁴-1": 2**14 - 1, "2560²": 2560**2, "378·10⁹": 378e9, "10⁻³": 0.001, "≈7.39": 7.39, "≈ 7,39": 7.39, "~7": 7,
    "about 7": 7, "e^2 ≈ 7.39": 7.39, "f′(2) = 12": 12, "2.13×10²⁴": 2.13e24, "5 percent": 0.05, "e^{-2}": math.e**-2,
    "½": 0.5, "2√3": 12**0.5, "2 √3": 12**0.5, "2(4)3": 24, "(1+1)(2+2)": 8, "3e": 3 * math.e,
    "1.5e^-2+1": 1 + 1.5 * math.e**-2,
    "2 ln 3": 2 * math.log(3), "2π": math.tau, "log10(100)": 2, "log 2": math.log(2), "√3/2": 3**0.5 / 2,
    "1.5e-2": 0.015, "ln √e": 0.5,
    "cos 60°": 0.5, "cos(60 degrees)": 0.5, "2cos(π/3)": 1, "sin(2·15°)": 0.5, "sin π/2": 0, "cos 0": 1,
    "-ln σ(1)": math.log(1 + math.exp(-1)), "-ln sigmoid(1)": math.log(1 + math.exp(-1)), "tanh 1": math.tanh(1),
    "7 bn": 7e9, "7G": 7e9,
}  # fmt: skip
"""Where a number is asked for."""


@pytest.mark.parametrize("text", LISTS)
def test_where_a_list_is_asked_for_a_comma_parts_it(text: str) -> None:
    if (expected := LISTS[text]) is None:
        with pytest.raises(Unreadable):
            read(text, "list")
    else:
        found = read(text, "list")
        assert found.form == "list"
        assert found.values == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", NUMBERS)
def test_where_a_number_is_asked_for_it_is_one(text: str) -> None:
    found = read(text, "number")
    assert found.form == "number"
    assert found.values == pytest.approx([NUMBERS[text]], rel=1e-12)


@pytest.mark.parametrize("text", ["(10,9)", "[10, 9]", "10 × 9", "10x9", "10 by 9", "10 9", "10*9"])
def test_where_a_shape_is_asked_for_programmers_may_write_it(text: str) -> None:
    assert read(text, "shape") == ((10, 9), (0, 0), "shape", "")


UNITS = {
    ("112 GB", "gigabytes"): 112, ("112000 MB", "gigabytes"): 112, ("320 KiB", "bytes"): 327_680, ("7 B", "bytes"): 7,
    ("7B", "numbers"): 7e9, ("7 billion parameters", "numbers"): 7e9, ("1000 steps", "steps"): 1000,
    ("1 step", "steps"): 1, ("19 units", "units"): 19, ("1 bit", "nats"): math.log(2),
    ("4.2e22 FLOPs", "FLOPs"): 4.2e22,
    ("1,000 bytes per token", "bytes"): 1000, ("e^2 nats", "nats"): math.e**2,
}  # fmt: skip


@pytest.mark.parametrize(("text", "asked"), UNITS)
def test_a_unit_that_fits_is_read(text: str, asked: str) -> None:
    found = read(text, "number", asked)
    assert found.unit == ""
    assert found.values == pytest.approx([UNITS[text, asked]], rel=1e-12)


def test_a_unit_that_does_not_fit_is_named() -> None:
    assert [read(text, "number", "nats").unit for text in ("90°", "7 GB", "3 steps", "7 billion cats")] == [
        "°", "gb", "steps", "cats"
    ]  # fmt: skip
    with pytest.raises(Unreadable):
        read("7 cats")


NONE = ("", "cat", "cos(60)", "log5", "2(", "cos",
        "import os", "__import__('os')", "9**9**9", "1/0", "ln(-1)", "1" * 300, "(", "[,]", "nan", "inf",
        "().__class__", "1 if 1 else 2", "[[1,2],[3]]", "(-8)^0.5")  # fmt: skip


@pytest.mark.parametrize("text", NONE, ids=range(len(NONE)))
def test_what_is_no_answer_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="0123456789.,;+-*/^()[]{}e√ln xB%−×'\"_a³⁻⁹≈=°gbσπcos", max_size=30),
    st.sampled_from(("", "number", "list", "shape")),
    st.sampled_from(("", "bytes", "nats")),
)
def test_nothing_typed_ends_in_pythons_own_error(text: str, form: str, unit: str) -> None:
    try:
        found = read(text, form, unit)
    except Unreadable:
        return
    assert all(math.isfinite(value) for value in (*found.values, *found.within))


@given(st.floats(-1e6, 1e6, allow_nan=False))
def test_a_number_is_read_as_it_was_printed(number: float) -> None:
    assert read(repr(number)).values == (number,)


@pytest.mark.parametrize("text", ["[1]   " * 33, "[1] , " * 33, "=" * 200, "1 " * 100, "(" * 200, "1" * 200, " " * 200])
def test_what_repeats_itself_is_read_or_refused_at_once(text: str) -> None:
    with contextlib.suppress(Unreadable):
        assert read(f"{text[:-1]}x").form
