"""The metrics of a scored text, each with its interval, and the difference between two models on one text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from limpid.evaluation.blocks import Blocks
from limpid.evaluation.intervals import DIFFERENCE, Estimate, estimate
from limpid.evaluation.scored_text import ScoredText


@dataclass(frozen=True)
class Metric:
    """One line of the report."""

    name: str
    unit: str
    value: float
    estimate: Estimate | None  # None where the text is too short for an interval

    def as_dict(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return {"unit": self.unit, **({"value": self.value} if self.estimate is None else self.estimate.as_dict())}


class Words(NamedTuple):
    """How a difference is said."""

    unit: str
    equal: str
    short: str
    more: str


TEXT = Words("bits per byte", "predict this text equally well", "the text is too short", "as much text")
"""Of two models on one text."""


@dataclass(frozen=True)
class Difference:
    """By how much the first model has more of what is to be small than the second: bits per byte of the same text."""

    first: str
    second: str
    value: float
    estimate: Estimate | None
    confidence: float
    words: Words = TEXT

    @property
    def significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.estimate is not None and not self.estimate.low <= 0 <= self.estimate.high

    def sentence(self) -> str:
        """Which model is better, by how much, and how sure that is."""
        words = self.words
        if self.value == 0:
            return f"no difference: {self.first} and {self.second} {words.equal}"
        better, size = (self.first, -self.value) if self.value < 0 else (self.second, self.value)
        unit = f" {words.unit}" if words.unit else ""
        if self.estimate is None:
            return (
                f"no difference can be told: {better} is better by {size:.4g}{unit}, and {words.short} for an interval"
            )
        by = f"{_like(size, self.estimate.half)} ± {self.estimate.half:.2g}{unit}"
        known = f"{self.confidence:.0%} interval"
        if (p := self.estimate.p) is not None:
            known += ", p < 0.001" if p < 0.001 else f", p = {p:.2g}"
        if self.significant:
            return f"{better} is better by {by} ({known})"
        more = (self.estimate.half / size) ** 2
        hint = f"; a difference of this size would show on about {more:.2g} times {words.more}" if more < 1e6 else ""
        return f"no difference can be told: {better} is better by {by} ({known}){hint}"


def metrics(text: ScoredText, blocks: Blocks | None, confidence: float, seed: int) -> list[Metric]:
    """Loss, perplexity, bits per byte, accuracy, entropy, overconfidence, Brier score."""
    one, losses = np.ones(text.count), text.losses
    entropy = text.scores.entropy.astype(np.float64)

    def metric(name: str, unit: str, above: np.ndarray, below: np.ndarray, lowest: float = -math.inf) -> Metric:
        value = float(above.sum(dtype=np.float64) / below.sum(dtype=np.float64))
        if blocks is None:
            return Metric(name, unit, value, None)
        interval = estimate(text.totals(blocks, above, below), confidence=confidence, seed=seed, missed=blocks.missed)
        return Metric(name, unit, value, interval.within(lowest, 1.0 if unit == "of tokens" else math.inf))

    def rows() -> Iterator[Metric]:
        loss = metric("loss", "nats per token", losses, one, 0.0)
        yield loss
        raised = None if loss.estimate is None else loss.estimate.of(perplexity)
        yield Metric("perplexity", "", perplexity(loss.value), raised)
        if text.bytes:
            yield metric("bits per byte", "bits per byte", losses / math.log(2), text.sizes, 0.0)
        yield metric("accuracy", "of tokens", text.scores.hit, one, 0.0)
        yield metric("entropy", "nats per token", entropy, one, 0.0)
        yield metric("overconfidence", "nats per token", losses - entropy, one)
        yield metric("Brier score", "0 … 2", text.scores.brier, one, 0.0)

    return list(rows())


def difference(first: ScoredText, second: ScoredText, confidence: float, seed: int) -> Difference:
    """Bits per byte compared in pairs on the same blocks, whatever the tokenizers."""
    bits = [one.losses / math.log(2) for one in (first, second)]
    value = float(bits[0].sum() / first.bytes - bits[1].sum() / second.bytes)
    names = first.model.title, second.model.title
    choices = [blocks for blocks in (first.blocks(), second.blocks()) if blocks is not None]
    if len(choices) < 2:
        return Difference(*names, value, None, confidence)
    blocks = min(choices, key=len)
    sums = [one.totals(blocks, b, one.sizes) for one, b in zip((first, second), bits, strict=True)]
    interval = estimate(
        np.concatenate(sums, axis=1), DIFFERENCE,
        confidence=confidence, seed=seed, difference=True, missed=max(choice.missed for choice in choices),
    )  # fmt: skip
    return Difference(*names, value, interval, confidence)


def perplexity(nats: float) -> float:
    """Of a loss, nats per token; infinite beyond what float64 holds."""
    return math.exp(nats) if nats < 700 else math.inf


def _like(value: float, error: float) -> str:
    """A number to the last digit of its error, of which two are shown."""
    places = 4 if not error > 0 else max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{places}f}"
