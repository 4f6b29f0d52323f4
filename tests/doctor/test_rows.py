"""Rows that come back, and rows in order: what is a fault of the loader, and what people do on purpose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from limpid.doctor.calls import micro_batches
from limpid.doctor.row_history import RowHistory
from limpid.doctor.rules.mixture import one_class_a_batch
from limpid.doctor.rules.rows import repeats
from limpid.doctor.step_record import History, StepRecord
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


def test_classes_that_a_batch_names_are_labels() -> None:
    ids, classes = torch.zeros(4, 6, dtype=torch.long), torch.tensor([0, 1, 2, 1])
    (micro,) = micro_batches({"input_ids": ids, "labels": classes})
    assert micro.labels is classes
    (scores,) = micro_batches({"input_ids": ids, "labels": classes.float()})
    assert scores.labels is None
