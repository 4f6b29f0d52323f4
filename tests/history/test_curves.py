"""Means of losses, their intervals, and pictures of them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from limpid.errors import ConfigError
from limpid.history.curves import Curve, curves, running_mean
from limpid.history.picture import draw, in_letters
from limpid.run import Run


def run(folder: Path, losses: list, **more: list) -> Run:
    folder.mkdir()
    rows = ({"step": i, "loss": loss, "num_tokens": 64 * i, "seconds": 0.5} for i, loss in enumerate(losses, 1))
    added = (dict(zip(more, values, strict=True)) for values in zip(*more.values(), strict=True)) if more else None
    lines = [row | (next(added) if added else {}) for row in rows]
    lines.append({"step": len(losses), "eval_loss": 2.0})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Run(folder)


def test_a_mean_has_students_interval() -> None:
    rng = np.random.default_rng(0)
    y = 1e6 + rng.standard_normal(40)  # far from 0, where squares would cancel
    found = running_mean(Curve(np.arange(40.0), y), 9)
    for place in (0, 2, 20, 39):
        seen = y[max(0, place - 4) : place + 5]
        low, high = stats.t.interval(0.95, len(seen) - 1, seen.mean(), stats.sem(seen))
        assert (found.low[place], found.high[place]) == pytest.approx((low, high), rel=1e-12, abs=1e-7)
        assert found.y[place] == pytest.approx(seen.mean(), rel=1e-14)


def test_what_is_not_finite_is_in_no_mean() -> None:
    found = running_mean(Curve(np.arange(5.0), np.array([1.0, np.nan, 3.0, np.inf, 5.0])), 3)
    assert found.y == pytest.approx([1, 2, 3, 4, 5])
    assert np.isnan(running_mean(Curve(np.arange(1.0), np.array([np.inf])), 1).y).all()


def test_curves_run_along_steps_tokens_or_time(tmp_path: Path) -> None:
    one = run(tmp_path / "a", [5.0, 4.0, 3.0, "nan"])
    assert curves(one).loss.x.tolist() == [1, 2, 3, 4]
    assert curves(one, "tokens").loss.x.tolist() == [64, 128, 192, 256]
    assert curves(one, "time").eval_loss.x.tolist() == [2.0]
    assert curves(one).learning_rate.y.size == 0
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="has no step yet"):
        curves(Run(tmp_path / "b"))


def test_pictures_hold_every_run(tmp_path: Path) -> None:
    pair = [curves(run(tmp_path / name, [5.0, 4.0, scale])) for name, scale in (("first", 3.0), ("second", 1.0))]
    assert Image.open(draw(pair, "step", tmp_path / "curves.png")).size > (600, 400)
    ElementTree.parse(draw(pair, "step", tmp_path / "curves.svg"))
    letters = in_letters(pair, "step", 80, 16, coloured=False)
    assert "first" in letters
    assert "second" in letters
    assert max(map(len, letters.splitlines())) <= 80
    with pytest.raises(ConfigError, match="9 runs were named, and 8 colours"):
        draw([pair[0]] * 9, "step", tmp_path / "many.png")


@pytest.mark.parametrize("losses", [[3.0], [2.0, 2.0], ["nan", "inf"], [1e-30, 1e30], [-5.0, 5.0]])
def test_every_range_can_be_drawn(tmp_path: Path, losses: list) -> None:
    one = curves(run(tmp_path / "a", losses))
    assert "nats per token" in in_letters([one], "step", 60, 12, coloured=False)
    draw([one], "step", tmp_path / "a.png")
