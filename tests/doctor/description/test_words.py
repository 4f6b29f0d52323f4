"""Names as sentences have them."""

from __future__ import annotations

import pytest

from limpid.doctor.description.words import patterns

LAYERS = [f"blocks.{i}.up.weight" for i in range(6)]


@pytest.mark.parametrize(
    ("meant", "told"),
    [
        (LAYERS, ["blocks.*.up.weight"]),
        (LAYERS[1:3], ["blocks.1.up.weight", "blocks.2.up.weight"]),
        (LAYERS[1:], ["blocks.*.up.weight (5 of 6)"]),
        (["head.weight", *LAYERS], ["head.weight", "blocks.*.up.weight"]),
        ([LAYERS[3], "another's"], [LAYERS[3], "another's"]),
    ],
)
def test_a_kind_of_layer_is_told_as_one_only_where_all_of_it_is_meant(meant: list[str], told: list[str]) -> None:
    assert patterns(meant, [*LAYERS, "head.weight"]) == told


def test_of_names_that_nobody_counted_a_kind_stands_for_itself() -> None:
    assert patterns(LAYERS[:2]) == ["blocks.*.up.weight"]
