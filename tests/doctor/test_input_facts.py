"""Facts of inputs: names and order are nobody's business, and what rows differ in is."""

from __future__ import annotations

from typing import Any

import torch

from limpid.doctor import input_facts
from limpid.doctor.calls import Call
from limpid.doctor.loop_facts import LoopFacts

IDS = torch.randint(1, 50, (8, 12), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(12) < torch.arange(5, 13)[:, None]).float()


def unlike(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str | None, str | None]]:
    first, second = (LoopFacts(1, tuple(input_facts.of_call(Call((), given)))) for given in (then, now))
    pairs = second.unlike(first).get("data", [])
    return [(a and str(a), b and str(b)) for a, b in pairs]


def test_other_names_and_another_order_are_the_same() -> None:
    assert not unlike({"ids": IDS, "mask": MASK}, {"keep": MASK, "input_ids": IDS})


def test_what_a_model_may_make_by_itself_may_come_or_go() -> None:
    more = {"position_ids": torch.arange(12).expand(8, 12), "attention_mask": torch.ones(8, 12)}
    assert not unlike({"ids": IDS}, {"ids": IDS} | more)
    assert not unlike({"ids": IDS} | more, {"ids": IDS})


def test_labels_are_the_business_of_the_loss() -> None:
    assert not unlike({"ids": IDS, "labels": IDS}, {"ids": IDS})


def test_what_rows_differ_in_is_missed() -> None:
    assert unlike({"ids": IDS, "mask": MASK}, {"ids": IDS}) == [("mask: given row by row", None)]


def test_another_format_and_other_rows_are_told() -> None:
    assert unlike({"ids": IDS}, {"ids": IDS[:4].int()}) == [
        ("ids: format int64, 2 axes", "ids: format int32, 2 axes"), ("ids: rows 8", "ids: rows 4"),
    ]  # fmt: skip
