"""The fit of a scaling law: known constants come back, within intervals that mean what they say."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.optimize import check_grad

from limpid.errors import ConfigError
from limpid.planning.laws.fit import FEWEST_FOR_INTERVALS, NAMES, Objective, Points, fit, minimum, points_of
from limpid.planning.laws.runs import points
from limpid.planning.laws.scaling import APPROACH_3, REFIT, Law
from limpid.planning.laws.terminal import print_fit, print_prediction


def drawn(law: Law, noise: float, seed: int, budgets: int = 5, sizes: int = 6) -> Points:
    """Runs around the best sizes of several budgets, with multiplicative noise."""
    compute = np.repeat(np.geomspace(1e18, 1e21, budgets), sizes)
    n = np.array([law.optimum(c)[0] for c in compute]) * np.tile(np.geomspace(0.2, 5, sizes), budgets)
    d = compute / 6 / n
    rng = np.random.default_rng(seed)
    return points_of(n, d, law.loss(n, d) * np.exp(noise * rng.standard_normal(len(n))))


@pytest.mark.parametrize("law", [REFIT, APPROACH_3, Law("", 0.5, 30.0, 900.0, 0.2, 0.4, "")])
def test_constants_of_runs_without_noise_come_back(law: Law) -> None:
    constants, objective = minimum(drawn(law, 0.0, 0))
    assert constants == pytest.approx(list(law.constants.values()), rel=1e-4)
    assert objective < 1e-12


def test_the_gradient_is_that_of_the_objective() -> None:
    objective = Objective(drawn(REFIT, 0.01, 1), 0.02)
    theta = objective.theta(np.array([1.5, 300.0, 3000.0, 0.3, 0.4]))
    error = check_grad(lambda t: objective.with_gradient(t)[0], lambda t: objective.with_gradient(t)[1], theta)
    assert error < 1e-3 * np.linalg.norm(objective.with_gradient(theta)[1])
    assert objective.values(theta[None])[0] == pytest.approx(objective.with_gradient(theta)[0] * 0.02**2)
    assert objective.theta(objective.constants(theta)) == pytest.approx(theta)


def test_intervals_hold_the_truth_in_most_trials() -> None:
    """Ten trials here, a hundred in benchmarks/scaling_fit.py; at 95 % each, fewer than 8 of 10 has odds below 1 %."""
    truth, held = REFIT.constants, dict.fromkeys(NAMES, 0)
    for trial in range(10):
        found = fit(drawn(REFIT, 0.005, trial), resamples=40, seed=trial).intervals
        for name, (low, high) in found.items():
            held[name] += low <= truth[name] <= high
    assert min(held.values()) >= 8


def test_runs_too_few_to_resample_give_constants_without_intervals(capsys: pytest.CaptureFixture) -> None:
    few, enough = (drawn(REFIT, 0.005, 0, 3, sizes) for sizes in (2, 3))
    found = fit(few)
    assert found.intervals == {}
    assert found.interval(lambda law: law.E) is None
    assert found.document(1e20)["prediction"]["loss_interval"] is None
    print_fit(found, Console())
    print_prediction(found, 1e20, Console())
    told = capsys.readouterr().out
    assert "intervals need 9 runs: 6 cannot say" in told
    assert "…" not in told
    assert set(fit(enough, resamples=20).intervals) == set(NAMES)


def test_fewer_runs_than_intervals_need_would_mostly_be_drawn_again() -> None:
    """The bound is the fewest runs of which most samples hold six different ones."""

    def share(runs: int) -> float:
        rng = np.random.default_rng(0)
        return float(np.mean([len(np.unique(rng.integers(0, runs, runs))) > len(NAMES) for _ in range(4000)]))

    assert share(FEWEST_FOR_INTERVALS - 1) < 0.5 < share(FEWEST_FOR_INTERVALS)


def test_intervals_shrink_with_the_noise() -> None:
    widths = []
    for noise in (0.02, 0.002):
        low, high = fit(drawn(REFIT, noise, 0), resamples=30).interval(lambda law: law.exponent)
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def test_one_wild_run_moves_the_law_little() -> None:
    clean = drawn(REFIT, 0.002, 0)
    loss = clean.loss.copy()
    loss[7] *= 1.5
    wild, _ = minimum(points_of(clean.parameters, clean.tokens, loss))
    without, _ = minimum(clean)
    assert wild[3:] == pytest.approx(without[3:], abs=0.01)


def test_a_fit_takes_well_under_a_second_of_processor_time() -> None:
    runs = drawn(REFIT, 0.01, 0, 10, 20)
    minimum(runs)
    began = time.process_time()
    minimum(runs)
    assert time.process_time() - began < 1


def test_runs_that_say_next_to_nothing_still_have_intervals() -> None:
    rng = np.random.default_rng(0)
    n, d = np.geomspace(1e4, 1e5, 9), np.geomspace(1e6, 1e5, 9)
    found = fit(points_of(n, d, 4 + 0.1 * rng.random(9)), resamples=20)
    assert found.intervals
    for low, high in found.intervals.values():
        assert 0 < low <= high < np.inf


def test_a_law_that_the_runs_do_not_follow_is_called_undetermined() -> None:
    n, d = np.tile(np.geomspace(1e6, 1e8, 4), 3), np.repeat(np.geomspace(1e8, 1e9, 3), 4)
    grows = points_of(n, d, 2.5 + 0.1 * np.log(n))
    assert {"A", "alpha"} <= set(fit(grows, resamples=20).undetermined)
    assert fit(drawn(REFIT, 0.002, 0), resamples=20).undetermined == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([1e6] * 5, [1e7] * 5, [3.0] * 5), "5 runs cannot tell"),
        (([1e6] * 8, np.geomspace(1e7, 1e8, 8), [3.0] * 8), "1 different sizes"),
        (([1e6, 2e6, 3e6] * 2, [1e7, 2e7, 3e7] * 2, [2.5] * 6), "every run reached the loss 2.5"),
        (([1e6, -1.0], [1e7, 1e7], [3.0, 3.0]), "parameters -1.0"),
        (([1e6, 1e6], [1e7, 1e7], [3.0, float("nan")]), "loss nan"),
    ],
)
def test_runs_that_cannot_be_fitted_say_why(columns: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        points_of(*columns)


def test_tables_are_read_by_the_names_that_others_use(tmp_path: Path) -> None:
    runs = drawn(REFIT, 0.0, 0)
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
        ("g.json", "[" * 10**5, "not valid JSON: it is nested too deeply"),
        ("tiny.txt", "hello", "is no table that is read here: expected .csv, .tsv, .jsonl or .json"),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        points([str(tmp_path / name)])


def test_a_table_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is not there"):
        points([str(tmp_path / "gone.csv")])
