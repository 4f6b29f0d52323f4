"""What the chapter on matrices shows, against numbers worked out apart from it."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpid.errors import ShapeError
from limpid.maths.foundations import vector_space_axioms
from limpid.maths.foundations.axioms import LAWS
from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text

WHOLE = st.lists(st.integers(-1000, 1000), min_size=4, max_size=4)


def prose(name: str) -> str:
    return " ".join(" ".join(part.markdown for part in chapter(name).parts if isinstance(part, Text)).split())


def test_the_worked_values_stand_in_the_chapter() -> None:
    read = chapter("matrices")
    (solved,) = [part.solution for part in read.parts if isinstance(part, Example)]
    assert re.findall(r"= (\d+)", solved) == ["11", "7"]
    (drawn,) = [part for part in read.parts if isinstance(part, Figure)]
    assert as_text(drawn.name, drawn.settings).endswith("W v = [8, 6, 6]")
    assert all(f">{number}</text>" in as_svg(drawn.name, drawn.settings) for number in (8, 6, 3, 4))
    assert max(map(len, as_text(drawn.name, drawn.settings).splitlines())) <= 72
    assert "has 2,359,296 entries" in prose("matrices")


def test_the_product_is_row_by_column() -> None:
    a, b = np.array([[1, 2], [0, 3]]), np.array([[0, 1], [1, 0]])
    for product in (a @ b, b @ a, (a @ b).T):
        assert str(product.tolist()) in prose("matrices")
    assert str((a * b).tolist()) not in prose("matrices")


def test_layers_collapse_only_without_what_stands_between() -> None:
    rows = re.findall(r"\| (\[[^|]*\]) \| (\[[^|]*\]) \|", prose("matrices"))
    (plain, plain_back), (between, between_back) = [
        [np.array(json.loads(entry.replace("−", "-"))) for entry in row] for row in rows
    ]
    assert (plain == -plain_back).all()
    assert (between == [3, 2]).all()
    assert (between != -between_back).all()


def test_the_eight_laws_stand_in_the_chapter_with_what_rounding_leaves() -> None:
    rows = dict(re.findall(r"\| `([^`]+)` \| 0 \| ([^|]+) \|", prose("matrices")))
    assert rows.keys() == LAWS.keys()
    exact = {"u + v = v + u", "u + 0 = u", "u + (−u) = 0", "1 u = u"}
    assert {law for law, apart in rows.items() if apart == "0"} >= exact
    assert any(apart != "0" for apart in rows.values())


@given(WHOLE, WHOLE, WHOLE, st.integers(-50, 50), st.integers(-50, 50))
def test_whole_numbers_obey_every_law_exactly(u: list, v: list, w: list, a: int, b: int) -> None:
    assert set(vector_space_axioms(u, v, w, a, b).values()) == {0.0}


def test_rounding_breaks_the_laws_that_change_an_order_and_no_other() -> None:
    rng = np.random.default_rng(0)
    apart = dict.fromkeys(LAWS, 0.0)
    for _ in range(50):
        found = vector_space_axioms(*rng.standard_normal((3, 20)), *rng.standard_normal(2))
        apart = {law: max(apart[law], found[law]) for law in LAWS}
    exact = {"u + v = v + u", "u + 0 = u", "u + (−u) = 0", "1 u = u"}
    assert {law for law, most in apart.items() if most == 0} == exact
    assert max(apart.values()) < 1e-14
    with pytest.raises(ShapeError, match=r"expected u \(n\), v \(n\)"):
        vector_space_axioms([1.0], [1.0, 2.0], [1.0], 1, 1)
