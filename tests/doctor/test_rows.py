"""Rows that come back, and rows in order: what is a fault of the loader, and what people do on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from limpid.doctor import row_history
from limpid.doctor.history import History
from limpid.doctor.micro_batches import micro_batches
from limpid.doctor.row_history import RowHistory
from limpid.doctor.rules.mixture import border, one_class_a_batch
from limpid.doctor.rules.rows import repeats
from limpid.doctor.step_record import StepRecord
from limpid.doctor.watched import Watched


def spoken(batches: list[np.ndarray]) -> list[Any]:
    history, findings = History(rows=RowHistory()), []
    for number, rows in enumerate(batches, 1):
        history.rows.take([torch.from_numpy(rows)], [])
        findings += repeats(Watched(None), StepRecord(number), history)  # type: ignore[arg-type]
    return findings


def text(seed: int, count: int, length: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, (count, length))


def test_a_small_set_of_short_rows_before_a_set_of_longer_ones() -> None:
    draw = np.random.default_rng(1)
    short, longer = text(0, 390), text(1, 380, 16)
    stages = [draw.choice(short, 32) for _ in range(25)] + [draw.choice(longer, 16) for _ in range(25)]
    assert spoken(stages) == []


def test_a_few_rows_with_labels_beside_many_without() -> None:
    draw = np.random.default_rng(2)
    known, others = text(0, 32), text(1, 800)
    assert spoken([np.concatenate([draw.choice(known, 8), draw.choice(others, 16)]) for _ in range(60)]) == []


def test_batches_that_are_served_three_times_running() -> None:
    batches = [text(number // 3, 24) for number in range(60)]
    assert [finding.severity for finding in spoken(batches)[:1]] == ["fault"]


def sorted_by(classes: list[list[int]]) -> list[Any]:
    history, findings = History(rows=RowHistory()), []
    for number, labels in enumerate(classes, 1):
        history.rows.take([torch.from_numpy(text(number, len(labels)))], [torch.tensor(labels)])
        findings += one_class_a_batch(SimpleNamespace(), StepRecord(number), history)  # type: ignore[arg-type]
    return findings


def test_rows_that_are_sorted_by_class() -> None:
    in_order = [[0] * 16] * 10 + [[0] * 4 + [1] * 12] + [[1] * 16] * 4
    assert [finding.rule for finding in sorted_by(in_order)[:1]] == ["data-sorted"]
    assert sorted_by([[number % 2] * 16 for number in range(20)]) == []  # real and made, in turn
    assert sorted_by([[0] * 16 if number % 5 else [0] * 15 + [1] for number in range(40)]) == []  # a rare class


def borders(batches: Iterator[np.ndarray]) -> list[int | None]:
    history, steps = History(rows=RowHistory()), []
    for number, ids in enumerate(batches, 1):
        history.rows.take([torch.from_numpy(ids)], [])
        steps += [finding.step for finding in border(SimpleNamespace(), StepRecord(number), history)]  # type: ignore[arg-type]
    return steps


def test_shuffled_rows_have_no_border_however_long_the_run_and_sorted_ones_have_one() -> None:
    """Few and short rows: among thousands of borders one looks like one by chance, and the batches after it say so."""
    draw = np.random.default_rng(0)
    one, other = (draw.dirichlet(np.full(40, 0.5)) for _ in range(2))
    for _ in range(3):
        assert borders(draw.choice(40, (4, 16), p=one) for _ in range(4000)) == []
    steps = borders(draw.choice(40, (8, 32), p=one if number < 60 else other) for number in range(100))
    assert len(steps) == 1
    assert steps[0] in range(68, 81)


def test_classes_that_a_batch_names_are_labels() -> None:
    ids, classes = torch.zeros(4, 6, dtype=torch.long), torch.tensor([0, 1, 2, 1])
    (micro,) = micro_batches({"input_ids": ids, "labels": classes})
    assert micro.labels is classes
    (scores,) = micro_batches({"input_ids": ids, "labels": classes.float()})
    assert scores.labels is None


@pytest.mark.parametrize("different", [300, 3000])
def test_however_many_rows_there_are_few_are_remembered_and_these_speak_for_all(
    monkeypatch: pytest.MonkeyPatch, different: int
) -> None:
    monkeypatch.setattr(row_history, "MOST_ROWS", 256)
    draw, rows, every = np.random.default_rng(3), RowHistory(), text(4, different, 16)
    for _ in range(8):  # epochs
        order = draw.permutation(different)
        for start in range(0, different, 20):
            rows.take([torch.from_numpy(every[order[start : start + 20]])], [])
    assert len(rows.last) <= 256
    assert rows.distinct == pytest.approx(different, rel=0.25)
    assert np.median(rows.gaps) == pytest.approx(different, rel=0.1)
    assert np.median(rows.epochs) == pytest.approx(1, abs=0.15)


def test_rows_that_come_back_too_soon_are_found_where_not_all_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_history, "MOST_ROWS", 64)
    many, draw = text(5, 4000, 16), np.random.default_rng(6)
    found = spoken([draw.choice(many[first : first + 64], 16, replace=False) for first in range(0, 3600, 2)])
    assert {(one.rule, one.severity) for one in found} == {("batch-repeats", "fault")}
