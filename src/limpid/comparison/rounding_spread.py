"""How far rounding alone may take each quantity: the whole step in float64, perturbed at every operation by as much as
each operation may err, and looked at from the end.

The bound of one operation is that of the trace; carrying it through the others needs no Jacobian: a few perturbed
passes show how far each quantity spreads. Source: Parker 1997, Monte Carlo arithmetic, UCLA CSD-970002.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from limpid.comparison.observed import Observed
from limpid.config import ModelConfig
from limpid.maths.chain import Chain, Link
from limpid.maths.linear import Linear
from limpid.maths.operation import Array, Operation
from limpid.maths.random_rounding import student
from limpid.maths.rounding import bound, rounded, smallest_normal, unit_roundoff
from limpid.maths.update import global_norm, norm_rounding
from limpid.tracing.cores import in_order

PASSES = 16
FALSE_ALARM = 1e-6
"""How often a correct variant may leave the bounds of a quantity: the probability that any of its vectors does."""


class PerturbedChain(Chain):
    """A chain in which every operation errs at random, uniformly within its bound, as rounding to nearest does."""

    def __init__(self, values: dict[str, Array], seen: Observed, rng: np.random.Generator) -> None:
        self.seen, self.rng = seen, rng
        self.own: dict[str, Array] = {}  # what each operation adds by itself, per vector
        self.own_bars: dict[str, Array] = {}
        super().__init__({name: self._as_stored(array) for name, array in values.items()})

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        given = [self._entering(operation, self.values[i]) for i in inputs]
        y, saved = operation.forward(*given)
        stored = self.seen.stored.get(name, self.seen.compute)
        storage = self.seen.roundings * operation.storage(y, *given)
        limit = bound(y, operation.rounding(*given), stored=stored, summed=self.seen.summed, storage=storage)
        self.values[name], self.own[name] = y + self._within(limit), length(limit)
        self.links.append(Link(name, operation, inputs, saved))
        return name

    def backward(self, output: str) -> dict[str, Array]:
        gradients: dict[str, Array] = {output: np.ones_like(self.values[output])}
        for link in reversed(self.links):
            if link.name not in gradients:
                continue
            y_bar, operation = gradients[link.name], link.operation
            bars = operation.backward(y_bar, link.saved)
            roundings = operation.backward_rounding(y_bar, link.saved)
            storages = operation.backward_storage(bars, y_bar, link.saved)
            for name, bar, rounding, storage in zip(link.inputs, bars, roundings, storages, strict=True):
                if bar is None or rounding is None:
                    continue
                storage = self.seen.roundings * (np.abs(bar) if storage is None else storage)
                limit = bound(bar, rounding, stored=self.seen.compute, summed=self.seen.summed, storage=storage)
                bar = bar + self._within(limit)
                gradients[name] = gradients[name] + bar if name in gradients else bar
                self.own_bars[name] = self.own_bars.get(name, 0.0) + length(limit)
        return gradients

    def _as_stored(self, array: Array) -> Array:
        """A parameter in the format in which the variant keeps it, where that cannot hold what was given."""
        if array.dtype.kind != "f" or np.array_equal(rounded(array, self.seen.kept), array):
            return array
        return array + self._within(unit_roundoff(self.seen.kept) * np.abs(array))

    def _entering(self, operation: Operation, array: Array) -> Array:
        """Matrix products take their inputs in the compute format."""
        if not isinstance(operation, Linear) or self.seen.compute == self.seen.kept:
            return array
        return array + self._within(unit_roundoff(self.seen.compute) * np.abs(array))

    def _within(self, limit: Array) -> Array:
        return limit * self.rng.uniform(-1, 1, np.shape(limit))


@dataclass(frozen=True)
class Spread:
    """The step as the mathematics has it, and how far each vector of each quantity may lie from it."""

    values: dict[str, Array]
    gradients: dict[str, Array]
    value_limits: dict[str, Array]  # root mean square over the last axis, one per vector
    gradient_limits: dict[str, Array]
    grad_norm: float = 0.0  # of all parameters' gradients together, where the variant had them
    grad_norm_limit: float = 0.0


def exact(config: ModelConfig, seen: Observed) -> Chain:
    """The forward pass in float64, with its loss last."""
    chain = Chain({**seen.parameters, **seen.arrays})
    seen.objective.chain(chain, config)
    return chain


def limits(
    config: ModelConfig, distances: dict[str, list[Array]], own: dict[str, Array], floor: float
) -> dict[str, Array]:
    """Bounds from the perturbed passes' distances, one for each vector.

    A vector's root mean square distance over the passes estimates its standard error. Student's t says how many of
    these the worst vector of the array leaves with probability FALSE_ALARM; entries of a vector that err independently
    only make that rarer. The operation's own bound, which no rounding leaves, is added.

    ReLU's slope jumps, so that a rounding error may open or close a unit: which vector that meets is chance, and the
    largest distance of any of them counts for all.
    """
    bounds = {}
    for name, passes in distances.items():
        squares = np.square(np.array(passes))
        errors = squares.max(initial=0.0) if config.activation == "relu" else squares.mean(0)
        times = student(PASSES, squares[0].size, FALSE_ALARM)
        bounds[name] = times * np.sqrt(np.broadcast_to(errors, squares[0].shape)) + own.get(name, 0.0) + floor
    return bounds


def spread(config: ModelConfig, seen: Observed, *, backward: bool) -> Spread:
    """The bounds of one seen."""
    with np.errstate(all="ignore"):
        chain = exact(config, seen)
        gradients = chain.backward("loss") if backward else {}
    norm = _norm(gradients, seen)

    def perturbed(number: int) -> Pass:
        moved = PerturbedChain({**seen.parameters, **seen.arrays}, seen, np.random.default_rng(number))
        seen.objective.chain(moved, config)
        distances = {link.name: length(moved.values[link.name] - chain.values[link.name]) for link in chain.links}
        bars = moved.backward("loss") if backward else {}
        bar_distances = {name: length(bars[name] - gradients[name]) for name in gradients}
        return Pass(distances, bar_distances, np.asarray(abs(_norm(bars, seen) - norm)), moved.own, moved.own_bars)

    passes = list(in_order(perturbed, range(PASSES)))
    distances = {link.name: [one.distances[link.name] for one in passes] for link in chain.links}
    bar_distances = {name: [one.bar_distances[name] for one in passes] for name in gradients}
    floor = smallest_normal(seen.compute)
    sizes = [array.size for name, array in seen.gradients.items() if name in seen.parameters]
    summed = norm * unit_roundoff(seen.kept) * norm_rounding(sizes, np.dtype(seen.kept).itemsize) if sizes else 0.0
    of_norm = limits(
        config, {"grad_norm": [one.norm_distance for one in passes]}, {"grad_norm": np.asarray(summed)}, floor
    )
    return Spread(
        {link.name: chain.values[link.name] for link in chain.links},
        gradients,
        limits(config, distances, passes[-1].own, floor),
        limits(config, bar_distances, passes[-1].own_bars, floor),
        norm,
        float(of_norm["grad_norm"]),
    )


@dataclass(frozen=True)
class Pass:
    """How far one pass with drawn roundings ends from the exact one, and the bounds of its own operations."""

    distances: dict[str, Array]
    bar_distances: dict[str, Array]
    norm_distance: Array
    own: dict[str, Array]
    own_bars: dict[str, Array]


def _norm(gradients: dict[str, Array], seen: Observed) -> float:
    """The global norm of the gradients of the parameters that the variant had gradients of."""
    return global_norm(
        {name: bar for name, bar in gradients.items() if name in seen.parameters and name in seen.gradients}
    )


def length(x: Array) -> Array:
    """Root mean square over the last axis."""
    return np.sqrt(np.square(x).mean(-1)) if x.ndim else np.abs(x)
