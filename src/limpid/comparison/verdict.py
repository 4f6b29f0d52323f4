"""Rounding or not: every quantity observed in both variants, in the order of the step, in units of its bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.comparison.difference import Difference
from limpid.comparison.difference import differences as find_differences
from limpid.comparison.document import document, page
from limpid.comparison.hypotheses import Explanation, explain
from limpid.comparison.observed import Observed
from limpid.comparison.rounding_spread import Spread, spread
from limpid.config import ModelConfig
from limpid.maths.operation import Array
from limpid.notebook import mimebundle
from limpid.tracing.verdict import Beyond, Check, Holds, NotFinite, Unchecked, Verdict

UNUSED = ("dropout", "lora_dropout", "init_lora_weights", "init_std", "scaled_residual_init")
"""Options that change no number of a model that is not trained here."""


@dataclass(frozen=True)
class WeightDifference:
    """Whether both variants have the same parameters."""

    count: int
    differing: tuple[str, ...]
    worst: float  # largest relative difference of the first that differs


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two variants of one computation, quantity by quantity, and whether rounding explains what differs."""

    first: Observed
    second: Observed
    weights: WeightDifference
    options: tuple[str, ...]  # of the configurations, where they differ
    differences: tuple[Difference, ...]  # in the order of the step
    bitwise: bool
    explanations: tuple[Explanation, ...]  # faults that explain the outlier's numbers
    config: ModelConfig
    limits: Mapping[str, Array]  # by title: what rounding allows of each vector, root mean square over the last axis

    def __repr__(self) -> str:
        where = "" if self.first_disagreement is None else f", first {self.first_disagreement.title}"
        return f"Comparison({self.first.name} against {self.second.name}: {self.verdict.verdict}{where})"

    def _repr_html_(self) -> str:
        return page(self)

    _repr_mimebundle_ = mimebundle

    def document(self) -> dict[str, Any]:
        """As plain values: what `limpid compare --json` prints."""
        return document(self)

    @property
    def verdict(self) -> Verdict:
        """Where numbers stop being finite, else where rounding no longer explains them, else what was not checked."""
        if not self.differences:
            return Unchecked("no quantity is observed in both variants", None)
        verdicts: list[Verdict] = [one.verdict for one in self.differences] + [check.verdict for check in self.kernels]
        for kind in (NotFinite, Beyond, Unchecked):
            for verdict in verdicts:
                if isinstance(verdict, kind):
                    return verdict
        return Holds(max(difference.worst for difference in self.differences))

    @property
    def kernels(self) -> list[Check]:
        """Every kernel of either variant that was redone from its own inputs."""
        return [*self.first.kernels, *self.second.kernels]

    @property
    def agrees(self) -> bool:
        return not self.weights.differing and isinstance(self.verdict, Holds)

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


def judge(config: ModelConfig, first: Observed, second: Observed, other: ModelConfig | None = None) -> Comparison:
    """Compare two variants over one batch; `config` and the first one's weights are the reference."""
    config, first, second, other = _in_one_layout(config, first, second, other)
    weights = _weights(first, second)
    backward = bool(first.gradients and second.gradients)
    spreads = _spreads(config, first, _reference(first, second), backward)
    differences = tuple(find_differences(first, second, spreads, backward))
    bitwise = all(np.array_equal(first.values[one.name], second.values[one.name], equal_nan=True)
                  for one in differences if one.kind == "forward")  # fmt: skip
    limits = {one.title: _limit(one, spreads) for one in differences}
    options = _options(config, other)
    comparison = Comparison(first, second, weights, options, differences, bitwise, (), config, limits)
    where = comparison.first_disagreement
    if where is None or where.kind != "forward" or comparison.outlier is None:
        return comparison
    outlier = (first, second)[comparison.outlier]
    own = spreads[comparison.outlier].value_limits
    return dataclasses.replace(comparison, explanations=explain(config, _reference(first, outlier), where.name, own))


def _limit(difference: Difference, spreads: tuple[Spread, Spread]) -> Array:
    """How far rounding may take the two variants apart in one quantity: of each vector, or of a number."""
    name, (first, second) = difference.name, spreads
    if difference.kind == "step":
        return np.asarray(first.grad_norm_limit + second.grad_norm_limit)
    if difference.kind == "backward":
        return np.asarray(first.gradient_limits[name] + second.gradient_limits[name])
    return np.asarray(first.value_limits[name] + second.value_limits[name])


def _spreads(config: ModelConfig, first: Observed, second: Observed, backward: bool) -> tuple[Spread, Spread]:
    """The bounds of both variants; one serves both where they round alike."""
    own = spread(config, first, backward=backward)
    return own, own if first.rounds_like(second) else spread(config, second, backward=backward)


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
        if name not in second.parameters or not _same(array, second.parameters[name])
    ]
    worst = 0.0
    if differing and differing[0] in second.parameters:
        a, b = first.parameters[differing[0]], second.parameters[differing[0]]
        worst = float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-300)) if a.shape == b.shape else np.inf
    return WeightDifference(len(first.parameters), tuple(differing), worst)


def _same(a: Array, b: Array) -> bool:
    """Whether two weights are one and the same; low-rank factors are added in exactly, or rounded to float32."""
    return np.array_equal(a, b) or np.array_equal(a.astype(np.float32), b.astype(np.float32))


def _options(config: ModelConfig, other: ModelConfig | None) -> tuple[str, ...]:
    if other is None:
        return ()
    config, other = config.resolved(), other.resolved()
    return tuple(
        f"{field.name} {getattr(config, field.name)} and {getattr(other, field.name)}"
        for field in dataclasses.fields(config)
        if field.name not in UNUSED and getattr(config, field.name) != getattr(other, field.name)
    )
