"""How long a run takes yet, as its line of progress has it."""

import statistics

import pytest

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
