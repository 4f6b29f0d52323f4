"""Answers as people type them."""

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
    assert [read(text).within for text in ("36%", "1/3", "7")] == [(0,)] * 3
    assert read("36.5%").within == pytest.approx((0.0005,))
    assert read("1.20e3").within == pytest.approx((5,))


NONE = ("", "cat", "import os", "__import__('os')", "9**9**9", "1/0", "ln(-1)", "1" * 300, "(", "[,]", "nan", "inf",
        "().__class__", "1 if 1 else 2", "[[1,2],[3]]", "(-8)^0.5")  # fmt: skip


@pytest.mark.parametrize("text", NONE, ids=range(len(NONE)))
def test_what_is_no_answer_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789.,;+-*/^()[]e√ln xB%−×'\"_a", max_size=30))
def test_nothing_typed_ends_in_pythons_own_error(text: str) -> None:
    try:
        found = read(text)
    except Unreadable:
        return
    assert all(math.isfinite(value) for value in found.values)


@given(st.floats(-1e6, 1e6, allow_nan=False))
def test_a_number_is_read_as_it_was_printed(number: float) -> None:
    assert read(repr(number)).values == (number,)
