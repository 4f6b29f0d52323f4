"""A sweep: the runs of a scaling law, as many as end in time."""

from __future__ import annotations

import pytest

from limpid.errors import ConfigError
from limpid.planning.laws.sweep import (
    BATCH,
    CONTEXT,
    TimeModel,
    largest_that_fits,
    model_config,
    sweep_runs,
)
from limpid.planning.parameters import parameter_count

HERE = TimeModel(per_run=1.0, per_layer=1e-3, per_flop=1e-11)


def test_runs_of_one_budget_share_its_compute() -> None:
    for run in sweep_runs(1e13, 3, 4):
        budget = 1e13 * 4 ** (int(run.name[1]) - 1)
        spent = 6 * parameter_count(model_config(run.num_layers, run.d_model)) * run.steps * BATCH * CONTEXT
        assert spent == pytest.approx(budget, rel=0.05)


def test_the_sweep_fills_its_time_and_no_more() -> None:
    for minutes in (5, 60):
        runs = largest_that_fits(60 * minutes, 3, 4, HERE)
        assert 0.5 * 60 * minutes < HERE.total(runs) <= 60 * minutes


def test_too_little_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="give more --minutes"):
        largest_that_fits(0.01, 3, 4, HERE)


@pytest.mark.parametrize(("budgets", "sizes"), [(2, 3), (3, 4), (2, 8)])
def test_a_sweep_has_as_many_runs_as_were_asked_for(budgets: int, sizes: int) -> None:
    """In little time models are so small that the nearest shapes of several sizes are the same one."""
    for compute in (1e9, 1e11, 1e13, 1e15):
        runs = sweep_runs(compute, budgets, sizes)
        assert len({(run.name[:2], run.num_layers, run.d_model) for run in runs}) == budgets * sizes
