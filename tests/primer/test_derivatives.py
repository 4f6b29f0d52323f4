"""The chapter on derivatives beside numbers worked out apart from it."""

import pytest

from limpid.primer.cases import surfaces
from limpid.primer.chapter import Example, Text, chapter
from limpid.primer.figures import as_svg, as_text

READ = chapter("derivatives")
TEXT = "\n".join(part.markdown for part in READ.parts if isinstance(part, Text))


def test_the_gradient_of_the_worked_example() -> None:
    solutions = [part.solution for part in READ.parts if isinstance(part, Example)]
    assert any("∂f/∂x = 2 x + 3 y\n∂f/∂y = 3 x\nat (2, 1): [7, 6]" in solution for solution in solutions)
    assert any("32" in solution for solution in solutions)
    assert r"\nabla f = [7, 6]" in TEXT


def test_slopes_come_to_the_derivative_as_the_step_shrinks() -> None:
    for step, rise in (("1", "3"), ("0.1", "2.1"), ("0.01", "2.01"), ("0.001", "2.001")):
        assert f"| {step} | 1 |" in TEXT
        assert f"| {rise} |" in TEXT
    assert surfaces.slope(surfaces.cube, 2) == 12


def test_errors_of_finite_differences_fall_with_the_step_and_with_its_square() -> None:
    assert surfaces.one_sided(surfaces.cube, 2, 0.1) == pytest.approx(12.61)
    assert surfaces.both_sided(surfaces.cube, 2, 0.1) == pytest.approx(12.01)
    assert abs(surfaces.both_sided(surfaces.cube, 2, 1e-5) - 12) < 1e-8
    assert abs(surfaces.both_sided(surfaces.cube, 2, 1e-12) - 12) > 1e-5


def test_along_the_gradient_it_is_steepest() -> None:
    assert "| along the gradient | 9.220 |" in TEXT
    assert "| at right angles to the gradient | 0 |" in TEXT


@pytest.mark.parametrize(
    ("name", "settings"), [("secants", {"x": 3, "steps": [0.5, 1]}), ("difference-error", {"x": 2})]
)
def test_pictures_fit_a_terminal(name: str, settings: dict[str, object]) -> None:
    assert max(map(len, as_text(name, settings).splitlines())) <= 72
    assert as_svg(name, settings).startswith("<svg")
