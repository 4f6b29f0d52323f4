"""Runs as points of a law, read from tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from limpid.errors import ConfigError
from limpid.plan.laws.fit import Points
from limpid.plan.laws.runs import points
from limpid.plan.laws.scaling import REFIT


def test_tables_are_read_by_the_names_that_others_use(tmp_path: Path) -> None:
    n, d = np.repeat(np.geomspace(1e7, 1e11, 6), 5), np.tile(np.geomspace(1e9, 1e13, 5), 6)
    runs = Points(n, d, REFIT.loss(n, d))
    with (tmp_path / "runs.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["Model Size", "Training FLOP", "loss"])
        writer.writerows(zip(runs.parameters, 6 * runs.parameters * runs.tokens, runs.loss, strict=True))
    assert np.array(points([str(tmp_path / "runs.csv")])) == pytest.approx(
        np.stack((runs.parameters, runs.tokens, runs.loss), 1)
    )
    (tmp_path / "runs.jsonl").write_text('{"N": 1e6, "D": 2e7, "loss": 3}\n\n{"N": 2e6, "D": 2e7, "loss": 2.5}\n')
    found, notes = [(1e6, 2e7, 3.0), (2e6, 2e7, 2.5)], []
    assert points([str(tmp_path / "runs.jsonl")] * 2, notes) == found
    assert notes == ["2 runs are given twice, and count once"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "no column for parameters"),
        ("b.csv", "N,loss\n1,2\n", "neither tokens nor compute"),
        ("c.csv", "N,D,loss\n1,two,3\n", "row 1"),
        ("d.jsonl", "{", "not valid JSON"),
        ("e.csv", "", "holds no rows"),
        ("f.csv", "\udcff", "cannot be read as a table"),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        points([str(tmp_path / name)])
