"""Rounding or not: every quantity observed in both variants, in the order of the step, in units of its bound."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from limpid.compare.hypotheses import Explanation, explain
from limpid.compare.observed import Observed
from limpid.compare.rounding_spread import Spread, length, spread
from limpid.config import ModelConfig
from limpid.maths.operation import Array

UNUSED = ("dropout", "init_std", "scaled_residual_init")
"""Options that change no number of a model that is not trained here."""


@dataclass(frozen=True)
class Difference:
    """One quantity or gradient of both variants."""

    name: str
    kind: str  # forward, backward
    worst: float  # largest |first - second| of a vector, in bounds; above 1 is not rounding
    index: tuple[int, ...]  # of that vector
    distance: float  # its root mean square difference
    size: float  # root mean square of the quantity
    off: tuple[float, float]  # each variant's worst distance from the mathematics, in its own bounds
    positions: tuple[int, ...]  # at which it is not rounding
    length: int  # how many positions there are

    @property
    def holds(self) -> bool:
        return self.worst <= 1.0


@dataclass(frozen=True)
class WeightDifference:
    """Whether both variants have the same parameters."""

    count: int
    differing: tuple[str, ...]
    worst: float  # largest relative difference of the first that differs


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison."""

    first: Observed
    second: Observed
    weights: WeightDifference
    options: tuple[str, ...]  # of the configurations, where they differ
    differences: tuple[Difference, ...]  # in the order of the step
    bitwise: bool
    explanations: tuple[Explanation, ...]  # faults that explain the outlier's numbers

    @property
    def agrees(self) -> bool:
        return not self.weights.differing and all(one.holds for one in self.differences)

    @property
    def first_disagreement(self) -> Difference | None:
        return next((one for one in self.differences if not one.holds), None)

    @property
    def outlier(self) -> int | None:
        """0 or 1: the variant that departs from the mathematics; None when both or neither do."""
        where = self.first_disagreement
        if where is None or (where.off[0] > 1) == (where.off[1] > 1):
            return None
        return 0 if where.off[0] > 1 else 1


def judge(config: ModelConfig, first: Observed, second: Observed, other: ModelConfig | None = None) -> Verdict:
    """Compare two variants over one batch; `config` and the first one's weights are the reference."""
    config, first, second, other = _in_one_layout(config, first, second, other)
    weights = _weights(first, second)
    backward = bool(first.gradients and second.gradients)
    spreads = (spread(config, first, backward=backward), spread(config, _reference(first, second), backward=backward))
    differences = tuple(_differences(first, second, spreads, backward))
    bitwise = all(np.array_equal(first.values[one.name], second.values[one.name], equal_nan=True)
                  for one in differences if one.kind == "forward")  # fmt: skip
    verdict = Verdict(first, second, weights, _options(config, other), differences, bitwise, ())
    where = verdict.first_disagreement
    if where is None or where.kind != "forward" or verdict.outlier is None:
        return verdict
    outlier = (first, second)[verdict.outlier]
    limits = spreads[verdict.outlier].value_limits
    return dataclasses.replace(verdict, explanations=explain(config, _reference(first, outlier), where.name, limits))


def _in_one_layout(
    config: ModelConfig, first: Observed, second: Observed, other: ModelConfig | None
) -> tuple[ModelConfig, Observed, Observed, ModelConfig | None]:
    """Both variants with rotary pairs as halves, where only one has them so and its weights are the other's reordered.

    Queries and keys are known up to one reordering of their features, which no product sees.
    """
    if other is None or config.rotary_layout == other.rotary_layout:
        return config, first, second, other
    plain = (dataclasses.replace(config, rotary_layout="half"), dataclasses.replace(other, rotary_layout="half"))
    variants = [halved(seen, its) if its.rotary_layout == "interleaved" else seen
            for seen, its in ((first, config), (second, other))]  # fmt: skip
    if _weights(*variants).differing:
        return config, first, second, other
    return plain[0], variants[0], variants[1], plain[1]


def halved(seen: Observed, config: ModelConfig) -> Observed:
    """A variant with features (2i, 2i + 1) of queries and keys as (i, i + d_head/2)."""
    order = np.concatenate((np.arange(0, config.sizes.d_head, 2), np.arange(1, config.sizes.d_head, 2)))
    stations = ("query", "key", "query_norm", "key_norm", "query_rotated", "key_rotated")

    def reordered(name: str, array: Array) -> Array:
        station = name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
        if station not in stations:
            return array
        if not name.endswith((".weight", ".bias")):
            return array[..., order]
        return array.reshape(-1, config.sizes.d_head, *array.shape[1:])[:, order].reshape(array.shape)

    return dataclasses.replace(
        seen,
        parameters={name: reordered(name, array) for name, array in seen.parameters.items()},
        values={name: reordered(name, array) for name, array in seen.values.items()},
        gradients={name: reordered(name, array) for name, array in seen.gradients.items()},
    )


def _reference(first: Observed, second: Observed) -> Observed:
    """The second variant with the first one's weights: what it should have computed."""
    return dataclasses.replace(second, parameters=first.parameters)


def _weights(first: Observed, second: Observed) -> WeightDifference:
    differing = [
        name
        for name, array in first.parameters.items()
        if name not in second.parameters or not np.array_equal(array, second.parameters[name])
    ]
    worst = 0.0
    if differing and differing[0] in second.parameters:
        a, b = first.parameters[differing[0]], second.parameters[differing[0]]
        worst = float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-300)) if a.shape == b.shape else np.inf
    return WeightDifference(len(first.parameters), tuple(differing), worst)


def _options(config: ModelConfig, other: ModelConfig | None) -> tuple[str, ...]:
    if other is None:
        return ()
    config, other = config.resolved(), other.resolved()
    return tuple(
        f"{field.name} {getattr(config, field.name)} and {getattr(other, field.name)}"
        for field in dataclasses.fields(config)
        if field.name not in UNUSED and getattr(config, field.name) != getattr(other, field.name)
    )


def _differences(first: Observed, second: Observed, spreads: tuple[Spread, Spread], backward: bool) -> list[Difference]:
    differences = [
        _difference(name, "forward", (first.values[name], second.values[name]), exact_value,
                    (spreads[0].value_limits[name], spreads[1].value_limits[name]))
        for name, exact_value in spreads[0].values.items()
        if name in first.values and name in second.values
    ]  # fmt: skip
    if backward:
        differences += [
            _difference(name, "backward", (first.gradients[name], second.gradients[name]), exact_bar,
                        (spreads[0].gradient_limits[name], spreads[1].gradient_limits[name]))
            for name, exact_bar in spreads[0].gradients.items()
            if name in first.gradients and name in second.gradients
        ]  # fmt: skip
    return differences


def _difference(
    name: str, kind: str, pair: tuple[Array, Array], reference: Array, limits: tuple[Array, Array]
) -> Difference:
    a, b = (array.reshape(reference.shape) for array in pair)
    with np.errstate(all="ignore"):
        ratio = _ratio(a, b, limits[0] + limits[1])
        off = tuple(
            float(_ratio(one, reference, limit).max(initial=0.0)) for one, limit in zip((a, b), limits, strict=True)
        )
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape)) if ratio.ndim else ()
    along = _positions(name, ratio.ndim)
    wrong: tuple[int, ...] = ()
    count = 0
    if along is not None:
        beside = tuple(axis for axis in range(ratio.ndim) if axis != along)
        wrong = tuple(int(i) for i in np.flatnonzero((ratio > 1).any(beside)))
        count = ratio.shape[along]
    return Difference(
        name,
        kind,
        float(ratio.max(initial=0.0)),
        at,
        float(length(a - b)[at]),
        float(np.sqrt(np.square(reference).mean())),
        (off[0], off[1]),
        wrong,
        count,
    )


def _ratio(a: Array, b: Array, limit: Array) -> Array:
    distance = length(a - b)
    ratio = np.where(distance == 0, 0.0, distance / limit)
    both_nan = np.isnan(a).any(-1) & np.isnan(b).any(-1) if a.ndim else np.isnan(a) & np.isnan(b)
    return np.where(both_nan, 0.0, np.where(np.isnan(ratio), np.inf, ratio))


def _positions(name: str, axes: int) -> int | None:
    """Which axis of a quantity without its last one counts positions."""
    if name.endswith((".weight", ".bias")) or axes < 2:
        return None
    return 2 if name.endswith(("attention.scores", "attention.weights", "weights_dropped")) else 1
