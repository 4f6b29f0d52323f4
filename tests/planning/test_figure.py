"""A figure: its equation is what is evaluated, and only arithmetic is."""

import pytest

from limpid.planning.figure import evaluate, figure, readable, shown


def test_numbers_are_written_as_people_write_them() -> None:
    assert readable("2 * a ** 2 / (b + 1)") == "2 · a² / (b + 1)"
    assert shown(1.5e9, "bytes") == "1.5 GB"
    assert shown(7e10, "parameters") == "70B parameters"
    assert shown(90061.0, "s") == "25 hours"
    assert figure("x", "", "max(a, 3) * ceil(b)", {"a": 1, "b": 1.5}).value == 6


def test_code_in_an_equation_is_not_run() -> None:
    with pytest.raises(ValueError, match="not arithmetic"):
        evaluate("a.__class__", {"a": 1})
