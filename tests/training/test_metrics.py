"""How long a run takes yet, as its line of progress has it."""

import io
import re
import statistics
from pathlib import Path

import pytest

import limpid
import small
from limpid.console import Console
from limpid.reporter import Reporter
from limpid.training.metrics import RecentSteps


def said(*seconds: float) -> list[float]:
    recent = RecentSteps()
    return [recent.mean_with(one) for one in seconds]


def test_an_hour_asleep_is_no_speed_of_the_steps_after_it() -> None:
    assert said(*[0.1] * 30, 3600, *[0.1] * 30)[3:] == pytest.approx([0.1] * 58)


def test_what_is_compiled_in_the_first_step_is_left_out_from_the_third_on() -> None:
    assert said(40, 0.1, 0.1, 0.1)[2:] == pytest.approx([0.1, 0.1])


def test_closer_looks_and_slower_steps_count() -> None:
    looked = ([0.1] * 9 + [0.5]) * 4
    assert said(*looked)[-1] == pytest.approx(statistics.fmean(looked))
    slower = said(*[0.1] * 50, *[5.0] * 20)
    assert slower[-1] == pytest.approx(5)
    assert slower[50 + 11] > 2


def test_the_first_steps_do_not_say_how_long_those_to_come_take() -> None:
    """The first compiles, the next are examined: forty times and ten times what a step takes."""
    recent = RecentSteps()
    ahead = [recent.ahead(recent.mean_with(one)) for one in (4.0, 1.0, *[0.1] * 30)]
    assert ahead[:3] == [None, 1.0, 0.1]
    assert ahead[25] == pytest.approx(0.1)


def test_no_time_is_said_to_be_left_after_the_first_step(tmp_path: Path) -> None:
    out = io.StringIO()
    config = small.config(small.corpus(tmp_path / "text"), max_steps=3, logging_steps=1)
    limpid.train(config, str(tmp_path / "run"), reporter=Reporter(console=Console(file=out), aside=Console(file=out)))
    first, second, last = (line for line in out.getvalue().splitlines() if re.match(r"step \d/3 ", line))
    assert "left" not in first
    assert re.search(r" \| \d+:\d\d left$", second)
    assert last.endswith(" | 0:00 left")


def test_no_step_is_faster_than_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is measured before the first one, and too low where others use the processor just then."""
    monkeypatch.setattr("limpid.training.metrics.measured_peak", lambda dtype, device: 1.0)
    run = limpid.train(small.config(small.corpus(tmp_path / "text"), max_steps=3), str(tmp_path / "run"))
    shares = run.read_metrics().column("peak_share")[1]
    assert shares[0] == 1
    assert max(shares) <= 1
