"""Kernels whose roundings are not known (compiled blocks, PyTorch's own attention): rounded at random, many times.

Every number that such a kernel may store is moved at random by at most its rounding error. How far the results scatter
is the standard error of an honest kernel: stochastic arithmetic (Vignes 1993, doi:10.1016/0378-4754(93)90003-D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.maths.attention import CausalSoftmax, Mix, Scores
from limpid.maths.chain import Chain, Link
from limpid.maths.linear import Linear
from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.tracing.ball import Ball, nearest, underflow
from limpid.tracing.kernels.kernel import Formats
from limpid.tracing.record import Record
from limpid.tracing.segments import Segment

RUNS = 16
"""Runs with random rounding: so many degrees of freedom has the standard error, and Student's t its limit."""
FALSE_ALARM = 1e-6
"""Probability that a whole trace of an honest engine blames any of its kernels by chance."""


@dataclass(frozen=True)
class Sampled(Ball):
    """A ball whose reach is a quantile of Student's t times the standard error, and the departures it is made of."""

    departures: tuple[Array, ...] = ()
    probability: float = FALSE_ALARM  # of a false alarm, for this array


@dataclass(frozen=True)
class RandomRounding:
    """Several operations, with noise of the size of rounding after each of them, forward and backward."""

    links: tuple[Link, ...]
    inputs: tuple[str, ...]
    formats: Formats
    results: Mapping[str, Any]  # the format of what each operation makes
    probability: float
    arithmetic = f"random rounding of every intermediate, {RUNS} runs: Student's t times the standard error"

    @classmethod
    def of(cls, record: Record, segment: Segment, formats: Formats) -> RandomRounding:
        results = {link.name: record.format(record.place(link.name)) for link in segment.links}
        probability = FALSE_ALARM / len(record.names)
        return cls(segment.links, segment.inputs, formats, results, probability)

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, Any]:
        exact = self._run(inputs, None)
        result = self.links[-1].name
        noisy = (self._run(inputs, seed).values[result] for seed in range(RUNS))
        return self._sampled(exact.values[result], noisy), inputs

    def backward(self, y_bar: Array, saved: Any) -> list[Ball | None]:
        exact = self._back(self._run(saved, None), y_bar, None)
        runs = [self._back(self._run(saved, seed), y_bar, seed) for seed in range(RUNS)]
        return [
            None if name not in exact else self._sampled(exact[name], (bars[name] for bars in runs))
            for name in self.inputs
        ]

    def exact(self, ball: Ball, saved: Any) -> None:
        """None: `forward` casts what goes into matrix products."""

    def _sampled(self, exact: Array, noisy: Any) -> Sampled:
        departures = tuple(one - exact for one in noisy)
        error = np.sqrt(sum(np.square(one) for one in departures) / RUNS)
        reach = quantile(self.probability / 2, exact.size) * error
        return Sampled(exact, reach, departures=departures, probability=self.probability / 2)

    def _run(self, inputs: Sequence[Array], seed: int | None) -> Chain:
        rng = None if seed is None else np.random.default_rng(seed)
        chain = Chain(dict(zip(self.inputs, inputs, strict=True)))
        for link in self.links:
            arrays = [self._into(link, name, chain.values[name], rng) for name in link.inputs]
            value, saved = link.operation.forward(*arrays)
            if rng is not None:
                error = unit_roundoff(self.results[link.name]) * link.operation.storage(value, *arrays)
                error = (
                    error + self.formats.unit * link.operation.rounding(*arrays) + underflow(self.results[link.name])
                )
                value = value + error * rng.uniform(-1, 1, np.shape(value))
            chain.values[link.name] = value
            chain.links.append(Link(link.name, link.operation, link.inputs, saved))
        return chain

    def _into(self, link: Link, name: str, array: Array, rng: np.random.Generator | None) -> Array:
        """What goes into a matrix product is cast to the compute format: parameters exactly so."""
        if rng is not None:
            array = self._entered(link, array, rng)
        if not isinstance(link.operation, Linear):
            return array
        if name in self.inputs:
            return array if self.formats.entering else nearest(array, self.formats.compute)
        if rng is None or self.results[name] == self.formats.compute:
            return array
        return array * (1 + unit_roundoff(self.formats.compute) * rng.uniform(-1, 1, array.shape))

    def _entered(self, link: Link, array: Array, rng: np.random.Generator) -> Array:
        """What a matrix product takes of an array, where it takes less than its format holds."""
        if not self.formats.entering or not isinstance(link.operation, Linear | Scores | Mix):
            return array
        return array * (1 + self.formats.entering * rng.uniform(-1, 1, array.shape))

    def _back(self, chain: Chain, y_bar: Array, seed: int | None) -> dict[str, Array]:
        rng = None if seed is None else np.random.default_rng((RUNS, seed))
        bars = {self.links[-1].name: y_bar}
        for link in reversed(chain.links):
            bar = bars[link.name] if rng is None else self._entered(link, bars[link.name], rng)
            parts = link.operation.backward(bar, link.saved)
            if rng is not None:
                parts = self._moved(link, parts, bars[link.name], rng)
                if isinstance(link.operation, CausalSoftmax):
                    parts = (parts[0] + self._fused_softmax(chain, link.name, bars, rng),)
            for name, part in zip(link.inputs, parts, strict=False):
                if part is not None:
                    bars[name] = bars[name] + part if name in bars else part
        return bars

    def _moved(
        self, link: Link, parts: Sequence[Array | None], y_bar: Array, rng: np.random.Generator
    ) -> tuple[Array | None, ...]:
        """Gradients after one operation, each moved by at most its rounding error."""
        roundings = link.operation.backward_rounding(y_bar, link.saved)
        storages = link.operation.backward_storage(parts, y_bar, link.saved)
        moved: list[Array | None] = []
        for name, part, rounding, storage in zip(link.inputs, parts, roundings, storages, strict=False):
            if part is None or rounding is None or storage is None:
                moved.append(part)
                continue
            dtype = self._gradient_format(link, name)
            error = unit_roundoff(dtype) * storage + self.formats.unit * rounding + underflow(dtype)
            moved.append(part + error * rng.uniform(-1, 1, np.shape(part)))
        return tuple(moved)

    def _fused_softmax(self, chain: Chain, weights: str, bars: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """What a fused kernel adds to s̄ = w (w̄ - Σ w̄ w) by forming Σ w̄ w as Σ mixed̄ mixed, from the stored result.

        Where one key has nearly all the weight w̄ - Σ w̄ w cancels, and this rounding does not.
        Source: Dao et al. 2022, appendix B.4, eq. 4, arXiv:2205.14135.
        """
        mix = next(link for link in chain.links if isinstance(link.operation, Mix))
        terms = np.abs(chain.values[mix.name] * bars[mix.name])
        stored = unit_roundoff(self.results[mix.name]) * terms * rng.uniform(-1, 1, terms.shape)
        summed = (terms.shape[-1] + 1) * self.formats.unit * terms * rng.uniform(-1, 1, (*terms.shape[:-1], 1))
        return chain.values[weights] * (stored + summed).sum(-1).transpose(0, 2, 1)[..., None]

    def _gradient_format(self, link: Link, name: str) -> Any:
        if isinstance(link.operation, Linear):
            return self.formats.compute
        return self.results[name] if name in self.results else self.formats.gradients[self.inputs.index(name)]


def quantile(probability: float, tests: int) -> float:
    """Student's t beyond which none of so many tests lies by chance, but with this probability (Bonferroni)."""
    from scipy.special import stdtrit

    return float(-stdtrit(RUNS, probability / (2 * max(1, tests))))
