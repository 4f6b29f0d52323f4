"""How often the intervals of a fitted scaling law hold the truth: synthetic runs of known constants, fitted again.

Each trial draws the losses of runs (42: 6 budgets, 7 sizes each; or --runs of them) with multiplicative noise, fits the
law, and asks of every constant whether its interval holds the true one. Prints shares with their standard errors, and
times. Of 7 runs, intervals held the truth in 72 to 83 % of 60 trials when they were still given; 9 are the fewest now.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np

from limpid.planning.laws.fit import NAMES, Points, fit, points_of
from limpid.planning.laws.scaling import REFIT


def drawn(noise: float, seed: int, runs: int | None = None) -> Points:
    """Losses of runs around the best sizes under the re-fit's constants: all of them, or some drawn at random."""
    compute = np.repeat(np.geomspace(1e18, 3e21, 6), 7)
    n = np.array([REFIT.optimum(c)[0] for c in compute]) * np.tile(np.geomspace(0.2, 5, 7), 6)
    d = compute / 6 / n
    rng = np.random.default_rng(seed)
    points = points_of(n, d, REFIT.loss(n, d) * np.exp(noise * rng.standard_normal(len(n))))
    return points if runs is None else points.take(rng.permutation(len(points))[:runs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.003, 0.01])
    options = parser.parse_args()
    for noise in options.noise:
        held, together, seconds = dict.fromkeys((*NAMES, "a"), 0), 0, []
        for trial in range(options.trials):
            began = time.process_time()
            found = fit(drawn(noise, 1000 + trial, options.runs), resamples=options.resamples, seed=trial)
            seconds.append(time.process_time() - began)
            inside = {name: low <= REFIT.constants[name] <= high for name, (low, high) in found.intervals.items()}
            low, high = found.interval(lambda law: law.exponent)
            together += all(inside.values())
            for name, hit in {**inside, "a": low <= REFIT.exponent <= high}.items():
                held[name] += hit
        count = options.trials
        print(f"noise {100 * noise:g} %, {count} trials, {options.resamples} resamplings, 95 % intervals")
        for name, hits in held.items():
            share = hits / count
            print(f"  {name:6} {100 * share:5.1f} % ± {100 * math.sqrt(share * (1 - share) / count):.1f} %")
        print(f"  all five at once {100 * together / count:.1f} %")
        print(f"  {statistics.median(seconds):.2f} s of processor time per fit with its intervals")


if __name__ == "__main__":
    main()
