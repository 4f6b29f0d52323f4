"""Published scaling laws: their constants, their best sizes, their fits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from limpid.equations.answers.kinds import Inputs, kind
from limpid.errors import ConfigError
from limpid.planning.laws import scaling


def law(x: Inputs) -> scaling.Law:
    return scaling.Law("", x.get("E", 0.0), x["A"], x["B"], x["alpha"], x["beta"], "")


@kind("scaling.flops_6nd")
def _six_n_d(x: Inputs) -> Any:
    return [scaling.six_n_d(n, d) for n, d in zip(x["params"], x["tokens"], strict=True)]


@kind("scaling.loglog_slope")
def _slopes(x: Inputs) -> Any:
    return {"a": scaling.power_law(x["flops"], x["params"])[1], "b": scaling.power_law(x["flops"], x["tokens"])[1]}


@kind("scaling.loglog_fit")
def _loglog(x: Inputs) -> Any:
    k, slope = scaling.power_law(x["params"], x["tokens"])
    return {"slope": slope, "intercept": math.log10(k)}


@kind("scaling.rounded_constants")
def _constants(x: Inputs) -> Any:
    law = scaling.Law("", math.exp(x["log_E"]), math.exp(x["log_A"]), math.exp(x["log_B"]), x["alpha"], x["beta"], "")
    return {**law.constants, "a": law.exponent}


@kind("scaling.compute_optimal")
def _optimal(x: Inputs) -> Any:
    parameters, tokens = law(x).optimum(x["flops"])
    return {"params": parameters, "tokens": tokens}


@kind("scaling.parametric_loss")
def _loss(x: Inputs) -> Any:
    return [law(x).loss(point["params"], point["tokens"]) for point in x["points"]]


@kind("scaling.exponent")
def _exponent(x: Inputs) -> Any:
    return {"a": scaling.Law("", 0.0, 1.0, 1.0, x["alpha"], x["beta"], "").exponent}


@kind("scaling.fit_parametric")
def _fit(x: Inputs) -> Any:
    """The constants that fit a table of runs: the path of a CSV in `data`, or rows under `points`."""
    from limpid.planning.laws.fit import minimum, points_of
    from limpid.planning.laws.runs import points

    if "points" in x:
        found = [(p["params"], p.get("tokens") or p["flops"] / (6 * p["params"]), p["loss"]) for p in x["points"]]
    else:
        path = next((Path(word) for word in str(x["data"]).split() if Path(word).suffix == ".csv"), Path(""))
        if not path.is_file():
            raise ConfigError(
                f"the runs behind this row ({x['data']}) have no licence, so they are not shipped: "
                "put the CSV there to compute it"
            )
        found = points([str(path)])
    kept = sorted(found, key=lambda point: point[2])[: len(found) - x.get("drop_largest_losses", 0)]
    constants, objective = minimum(points_of(*zip(*kept, strict=True)), x.get("huber_delta", 1e-3))
    return dict(zip(("E", "A", "B", "alpha", "beta"), map(float, constants), strict=True)) | {"objective": objective}


@kind("scaling.kaplan_factor")
def _kaplan(x: Inputs) -> Any:
    return scaling.kaplan_factor(x["factor"], x["alpha_n"])


@kind("scaling.tokens_without_overfitting")
def _without_overfitting(x: Inputs) -> Any:
    return scaling.tokens_without_overfitting(x["params"])
