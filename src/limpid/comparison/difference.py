"""One quantity of both variants, compared vector by vector in units of what rounding allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from limpid.comparison.observed import Observed
from limpid.comparison.rounding_spread import Spread, length
from limpid.maths.operation import Array
from limpid.tracing.verdict import Beyond, Holds, NotFinite, Unchecked, Verdict, address


@dataclass(frozen=True)
class Difference:
    """One quantity or gradient of both variants."""

    name: str
    kind: str  # forward, backward, or step: of all gradients together
    verdict: Verdict
    worst: float  # largest |first - second| of a vector, in bounds; above 1 is not rounding
    index: tuple[int, ...]  # of that vector
    distance: float  # its root mean square difference
    size: float  # root mean square of the quantity
    off: tuple[float, float]  # each variant's worst distance from the mathematics, in its own bounds
    positions: tuple[int, ...]  # at which it is not rounding
    length: int  # how many positions there are

    @property
    def holds(self) -> bool:
        return isinstance(self.verdict, Holds)

    @property
    def title(self) -> str:
        """The quantity's name, or grad(name)."""
        return f"grad({self.name})" if self.kind == "backward" else self.name


def differences(first: Observed, second: Observed, spreads: tuple[Spread, Spread], backward: bool) -> list[Difference]:
    """Everything observed in both variants, in the order of the step.

    Where numbers stop being finite is named once; whatever comes after it is compared only where it is finite.
    """
    compared = [
        _difference(name, "forward", (first, second), (first.values[name], second.values[name]), value,
                    (spreads[0].value_limits[name], spreads[1].value_limits[name]))
        for name, value in spreads[0].values.items()
        if name in first.values and name in second.values
    ]  # fmt: skip
    if backward:
        compared += [
            _difference(name, "backward", (first, second), (first.gradients[name], second.gradients[name]), bar,
                        (spreads[0].gradient_limits[name], spreads[1].gradient_limits[name]))
            for name, bar in spreads[0].gradients.items()
            if name in first.gradients and name in second.gradients
        ]  # fmt: skip
    norms = (first.grad_norm, second.grad_norm)
    if backward and norms[0] is not None and norms[1] is not None:
        pair = np.asarray(norms[0]), np.asarray(norms[1])
        allowed = np.asarray(spreads[0].grad_norm_limit), np.asarray(spreads[1].grad_norm_limit)
        exact = np.asarray(spreads[0].grad_norm)
        compared.append(_difference("grad_norm", "step", (first, second), pair, exact, allowed))
    origin = next((one.verdict for one in compared if isinstance(one.verdict, NotFinite)), None)
    return [_after(one, origin) for one in compared]


def _after(difference: Difference, origin: NotFinite | None) -> Difference:
    """A difference as it stands once it is known where numbers stopped being finite."""
    if not isinstance(difference.verdict, NotFinite) or difference.verdict is origin or origin is None:
        return difference
    return replace(difference, verdict=Unchecked(f"it follows from {origin.address}, which is not finite", None))


def _difference(
    name: str,
    kind: str,
    variants: tuple[Observed, Observed],
    pair: tuple[Array, Array],
    reference: Array,
    limits: tuple[Array, Array],
) -> Difference:
    a, b = (array.reshape(reference.shape) for array in pair)
    with np.errstate(all="ignore"):
        ratio = in_bounds(a, b, limits[0] + limits[1])
        off = tuple(
            float(in_bounds(one, reference, limit).max(initial=0.0)) for one, limit in zip((a, b), limits, strict=True)
        )
        distance = length(a - b)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape)) if ratio.ndim else ()
    along = _positions(name, ratio.ndim)
    wrong: tuple[int, ...] = ()
    count = 0
    if along is not None:
        beside = tuple(axis for axis in range(ratio.ndim) if axis != along)
        wrong = tuple(int(i) for i in np.flatnonzero((ratio > 1).any(beside)))
        count = ratio.shape[along]
    difference = Difference(
        name=name,
        kind=kind,
        verdict=Holds(float(ratio.max(initial=0.0))),
        worst=float(ratio.max(initial=0.0)),
        index=at,
        distance=float(distance[at]),
        size=float(np.sqrt(np.square(reference).mean())),
        off=(off[0], off[1]),
        positions=wrong,
        length=count,
    )
    return replace(difference, verdict=_verdict(difference, variants, (a, b), reference, limits))


def _verdict(
    difference: Difference,
    variants: tuple[Observed, Observed],
    pair: tuple[Array, Array],
    reference: Array,
    limits: tuple[Array, Array],
) -> Verdict:
    for variant, array in zip(variants, pair, strict=True):
        if not np.isfinite(array).all():
            return _not_finite(difference, variant, array, reference)
    if not all(np.isfinite(array).all() for array in (reference, *limits)):
        return Unchecked("the mathematics has no finite value or no finite bound there", None)
    if difference.worst <= 1:
        return Holds(difference.worst)
    at = difference.index
    first, second = (float(length(array)[at]) for array in pair)
    return Beyond(at, first, second, float((limits[0] + limits[1])[at]), difference.worst)


def _not_finite(difference: Difference, variant: Observed, array: Array, reference: Array) -> NotFinite:
    """The first entry of a variant that is not finite, and why."""
    odd = ~np.isfinite(array)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(odd)), odd.shape)) if odd.ndim else ()
    kept = np.dtype(variant.stored.get(difference.name, variant.compute))
    largest, exact = float(ml_dtypes.finfo(kept).max), float(reference[index])
    if not np.isfinite(exact):
        cause, why = "no value", "the mathematics has no finite value there either"
    elif abs(exact) > largest:
        cause, why = (
            "overflow",
            f"the exact value {exact:.3g} lies beyond {kept.name}'s largest, {largest:.3g}",
        )
    else:
        cause, why = "operation", f"the mathematics gives {exact:.3g} there, within {kept.name}'s range"
    return NotFinite(
        quantity=difference.title,
        index=index,
        value=float(array[index]),
        count=int(odd.sum()),
        format=kept.name,
        largest=largest,
        exact=exact,
        cause=cause,  # type: ignore[arg-type]
        explanation=f"{variant.name}: {address(difference.title, index)} is {float(array[index])}; {why}",
    )


def in_bounds(a: Array, b: Array, limit: Array) -> Array:
    """Distance of each vector, or of a scalar, in bounds; infinite where a number is not finite."""
    distance = length(a - b)
    ratio = np.where(distance == 0, 0.0, distance / limit)
    return np.asarray(np.where(np.isnan(ratio), np.inf, ratio))


def _positions(name: str, axes: int) -> int | None:
    """Which axis of a quantity without its last one counts positions."""
    if name.endswith((".weight", ".bias")) or axes < 2:
        return None
    return 2 if name.endswith(("attention.scores", "attention.weights", "weights_dropped")) else 1
