"""Columns of what a run measured."""

from pathlib import Path

import numpy as np
import pytest

from limpid.errors import ConfigError
from limpid.metrics import Metrics


def lines(folder: Path, *texts: bytes) -> Metrics:
    (folder / "metrics.jsonl").write_bytes(b"\n".join(texts))
    return Metrics.read(folder / "metrics.jsonl")


def test_lines_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    odd = [b"\xff\xfe", b"7", b"[" * 100_000, b'{"step": "3"}', b'{"loss": 3}', b'{"step": 3, "lo']
    assert lines(tmp_path, b'{"step": 1, "loss": 3}', *odd[:-1], b'{"step": 2, "loss": 2}', odd[-1]).lines == (
        {"step": 1, "loss": 3},
        {"step": 2, "loss": 2},
    )
    assert Metrics.read(tmp_path / "none").lines == ()


def test_a_column_has_its_own_steps_and_words_for_what_is_not_finite(tmp_path: Path) -> None:
    metrics = lines(
        tmp_path,
        b'{"step": 1, "loss": 3.5, "updated": true}',
        b'{"step": 1, "eval_loss": 4}',
        b'{"step": 2, "loss": "nan"}',
        b'{"step": 3, "loss": "-inf"}',
    )
    steps, losses = metrics.column("loss")
    assert steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(losses, [3.5, np.nan, -np.inf])
    assert [column.tolist() for column in metrics.column("eval_loss")] == [[1], [4]]
    assert metrics.names == ("step", "loss", "eval_loss")
    assert (len(metrics.steps), len(metrics.evaluations)) == (3, 1)
    assert repr(metrics) == "Metrics(3 steps to step 3, 1 evaluations: step, loss, eval_loss)"


def test_an_unknown_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no line holds 'los': did you mean loss"):
        lines(tmp_path, b'{"step": 1, "loss": 3.5}').column("los")
    assert [column.tolist() for column in Metrics(()).column("loss")] == [[], []]
