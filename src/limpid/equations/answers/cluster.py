"""Published times and utilisations of large runs."""

from __future__ import annotations

from typing import Any

from limpid.equations.answers.kinds import Inputs, each, kind
from limpid.planning import time
from limpid.planning.laws import scaling


@kind("cluster.training_days_8tp")
def _eight(x: Inputs) -> Any:
    def answer(one: Inputs) -> float:
        flops = 8 / 6 * scaling.six_n_d(one["params"], one["tokens"])  # every block runs forward once more
        return time.training_seconds(flops, one["gpus"], one["flops_per_gpu"]) / time.DAY

    return each(answer, x, "params")


@kind("cluster.pipeline_bubble")
def _bubble(x: Inputs) -> Any:
    return [time.pipeline_bubble(*row) for row in zip(x["pipeline"], x["microbatches"], x["interleave"], strict=True)]


@kind("cluster.training_days_from_rate")
def _from_rate(x: Inputs) -> Any:
    return time.training_seconds(x["tokens"], x["gpus"], x["tokens_per_s_per_gpu"]) / time.DAY


@kind("cluster.sum_and_implied_mfu")
def _implied(x: Inputs) -> Any:
    """The last of the sizes is the one whose utilisation is asked for."""
    hours = x["gpu_hours"]
    name = next(key for key in x if key.startswith("params_")).removeprefix("params_")
    own = next(value for key, value in hours.items() if key.lower() == name)
    flops = scaling.six_n_d(x[f"params_{name}"], x["tokens"])
    return {"total": sum(hours.values()), f"implied_mfu_{name}": time.utilisation_from_hours(flops, own, x["peak"])}


@kind("cluster.implied_mfu")
def _implied_mfu(x: Inputs) -> Any:
    flops = scaling.six_n_d(x["active_params"], x["tokens"])
    return {"flops": flops, "mfu": time.utilisation_from_hours(flops, x["gpu_hours"], x["peak"])}


@kind("cluster.tflops_over_peak_percent")
def _over_peak(x: Inputs) -> Any:
    return [100 * float(time.utilisation_of(1.0, rate, 1, x["peak"]).value) for rate in x["tflops"]]
