"""Which learning rate: the loss along rates that rise step by step, and the largest at which training stays stable.

Source of the sweep: Smith 2017, section 3.3, arXiv:1506.01186.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from limpid.config.options import require

Array = np.ndarray
LEVEL = 0.95
"""Probability of the intervals."""
WINDOW_SHARE, FEWEST = 0.1, 9
"""Neighbours that a mean and a slope are taken from: this share of the steps, but not fewer."""
ABOVE = 5
"""Losses in a row above everything at the start: training has left where it began for something worse."""
CLOSE = 1.1
"""The largest stable rate is bracketed to this factor."""
HALVINGS = 12


class Trainer(Protocol):
    """Something that is trained by steps, and can begin again."""

    def rewind(self) -> None:
        """Be as at the start."""

    def step(self, rate: float) -> float:
        """Take a step at a learning rate; returns the loss before it."""


@dataclass(frozen=True)
class RateCurve:
    """Losses along rising rates, what they come to, and what they leave open."""

    rates: Float[Array, " step"]
    losses: Float[Array, " step"]
    """Each before the step at its rate; the sweep ends where training has broken off."""
    mean: Float[Array, " step"]
    """Of a straight line through the neighbours, with its 95 % interval."""
    low: Float[Array, " step"]
    high: Float[Array, " step"]
    steepest: float | None
    """Where the loss falls most per factor of the rate, with more than its scatter; None where it nowhere does."""
    lowest: float
    """Where the mean is lowest."""
    stable: float | None
    """Largest rate of those tried at which training from the start stays stable; None where none does."""
    unstable: float | None
    """Smallest rate of those tried at which it does not; None where all do."""
    stable_steps: int
    """Steps at a constant rate that decide it."""

    @property
    def suggested(self) -> float | None:
        """Half the way, in factors, from the steepest point to the lowest loss, as far as that is stable."""
        if self.steepest is None or self.stable is None:
            return None
        return min(math.sqrt(self.steepest * self.lowest), self.stable)

    def notes(self) -> list[str]:
        """What the curve does not answer, and what would."""
        found = []
        if self.steepest is None:
            found.append(
                "the loss nowhere falls by more than its scatter: no rate can be suggested from this curve; take more "
                "--sweep-steps, a larger --batch-size, or rates that reach higher"
            )
        elif self.suggested == self.stable:
            found.append(
                f"what the curve suggests is not stable for {self.stable_steps} steps: the largest that is, instead"
            )
        if self.unstable is None:
            found.append(f"every rate up to {self.rates[-1]:.2g} is stable: raise --highest to find where it ends")
        if self.stable is None:
            found.append("no rate that was tried is stable: lower --lowest")
        return found

    def document(self) -> dict[str, Any]:
        """The same as plain values."""
        arrays = {name: getattr(self, name).tolist() for name in ("rates", "losses", "mean", "low", "high")}
        numbers = {
            "suggested": self.suggested, "steepest": self.steepest, "lowest_loss": self.lowest,
            "largest_stable": self.stable, "smallest_unstable": self.unstable, "stable_steps": self.stable_steps,
        }  # fmt: skip
        return {**numbers, "notes": self.notes(), **arrays}


def find_rate(
    trainer: Trainer,
    lowest: float,
    highest: float,
    steps: int,
    report: Callable[[str, int, int | None], None] = lambda task, done, total: None,
) -> RateCurve:
    """Sweep `steps` rates from `lowest` to `highest`, then bracket the largest stable one by trials at constant rates.

    Raises  ConfigError for rates that do not rise, and for a start that has no finite loss
    """
    require_sweep(lowest, highest, steps)
    rates = np.geomspace(lowest, highest, steps)
    width = max(FEWEST, round(WINDOW_SHARE * steps))
    losses = _swept(trainer, rates, width, report)
    require(len(losses) > width, f"the loss breaks off at once: lower --lowest, which is {lowest:g}")
    rates = rates[: len(losses)]
    mean, half, slope, doubt = _lines(np.log(rates), losses, width)
    falls = slope + doubt < 0
    bottom = int(np.argmin(mean))
    falls[bottom + 1 :] = False
    steepest = float(rates[np.argmin(np.where(falls, slope, np.inf))]) if falls.any() else None
    ceiling, trial = losses[:width].max(), max(4 * ABOVE, steps // 5)

    def is_stable(rate: float) -> bool:
        trainer.rewind()
        report(f"trying {rate:.2g}", 0, None)
        return _stays(trainer, rate, trial, ceiling)

    stable, unstable = _bracket(is_stable, float(rates[bottom]), lowest, float(rates[-1]))
    return RateCurve(
        rates, losses, mean, mean - half, mean + half, steepest, float(rates[bottom]), stable, unstable, trial
    )


def require_sweep(lowest: float, highest: float, steps: int) -> None:
    """Raise ConfigError for rates that do not rise, and for too few of them."""
    require(lowest < highest, f"lowest is {lowest:g} and highest {highest:g}: rates have to rise")
    require(steps >= 3 * FEWEST, f"sweep_steps is {steps}: {3 * FEWEST} are the fewest that show a slope")


def _swept(
    trainer: Trainer, rates: Float[Array, " step"], width: int, report: Callable[[str, int, int | None], None]
) -> Float[Array, " taken"]:
    """Losses along the rates, as far as training goes."""
    trainer.rewind()
    losses: list[float] = []
    for number, rate in enumerate(rates):
        report("rates", number, len(rates))
        loss = trainer.step(float(rate))
        if not math.isfinite(loss):
            break
        losses.append(loss)
        if len(losses) > width + ABOVE and min(losses[-ABOVE:]) > max(losses[:width]):
            break
    return np.array(losses)


def _stays(trainer: Trainer, rate: float, steps: int, ceiling: float) -> bool:
    """Whether so many steps at a rate never lead above the start, but for a few losses in a row."""
    above = 0
    for _ in range(steps):
        loss = trainer.step(rate)
        above = above + 1 if loss > ceiling else 0
        if above == ABOVE or not math.isfinite(loss):
            return False
    return True


def _bracket(
    is_stable: Callable[[float], bool], first: float, lowest: float, highest: float
) -> tuple[float | None, float | None]:
    """The largest rate that is stable and the smallest that is not, of those tried; None where there is none."""
    if is_stable(highest):
        return highest, None
    stable, unstable = first, highest
    while not is_stable(stable):
        unstable, stable = stable, stable / 4
        if stable < lowest:
            return None, unstable
    for _ in range(HALVINGS):
        if unstable / stable <= CLOSE:
            break
        middle = math.sqrt(stable * unstable)
        stable, unstable = (middle, unstable) if is_stable(middle) else (stable, middle)
    return stable, unstable


def _lines(
    x: Float[Array, " step"], y: Float[Array, " step"], width: int
) -> tuple[Float[Array, " step"], Float[Array, " step"], Float[Array, " step"], Float[Array, " step"]]:
    """Straight lines through the neighbours of each point: value there, half its interval, slope, half its interval.

    Of the slopes all intervals hold together (Bonferroni): one is looked for among them.
    """
    found = []
    for place in range(len(x)):
        first = min(max(0, place - width // 2), len(x) - width)
        u, v = x[first : first + width], y[first : first + width]
        away = u - u.mean()
        spread = float(away @ away)
        slope = float(away @ (v - v.mean())) / spread
        at = x[place] - u.mean()
        residual = v - v.mean() - slope * away
        scatter = math.sqrt(float(residual @ residual) / (width - 2))
        t, sure = (float(stdtrit(width - 2, 1 - (1 - LEVEL) / 2 / tests)) for tests in (1, len(x)))
        value = float(v.mean()) + slope * at
        doubt = scatter / math.sqrt(spread)
        found.append((value, t * math.hypot(scatter / math.sqrt(width), at * doubt), slope, sure * doubt))
    values, half, slopes, doubts = np.array(found).T
    return values, half, slopes, doubts
