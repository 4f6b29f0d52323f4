"""What a loop's own metrics keep over a long run: where it began, where it is, and fewer points between."""

from limpid.doctor.history import MOST_POINTS
from limpid.doctor.logs.table import Curves


def test_series_of_a_long_run_stay_short_and_go_on_together() -> None:
    curves = Curves("", "", most=MOST_POINTS)
    for step in range(1, 100_001):
        now_and_then = [("kl", 0.5)] if step % 7 == 0 else []
        curves.add(step, [("rewards/chosen", 1.0 / step), ("rewards/rejected", -1.0 / step), *now_and_then])
    chosen, rejected = curves.series["chosen"], curves.series["rejected"]
    assert len(chosen) <= MOST_POINTS
    assert [step for step, _ in chosen] == [step for step, _ in rejected]
    assert chosen[: MOST_POINTS // 4] == [(step, 1.0 / step) for step in range(1, MOST_POINTS // 4 + 1)]
    assert [step for step, _ in chosen[-MOST_POINTS // 4 :]] == list(range(100_001 - MOST_POINTS // 4, 100_001))
    between = [step for step, _ in chosen]
    assert between == sorted(set(between))
    assert len(curves.series["kl"]) <= MOST_POINTS


def test_a_log_is_read_whole() -> None:
    curves = Curves("", "")
    for step in range(3 * MOST_POINTS):
        curves.add(step, [("loss", 1.0)])
    assert len(curves.series["loss"]) == len(curves.order) == 3 * MOST_POINTS
