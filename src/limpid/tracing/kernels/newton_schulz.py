"""Muon's products in bf16: training/muon.py, matrix by matrix, each from the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from jaxtyping import Float

from limpid.maths.muon import COEFFICIENTS, ROUNDS, Muon, newton_schulz_rounds
from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.maths.update import Arrays, UpdateInput
from limpid.tracing.ball import Ball, exactly, product, stored
from limpid.tracing.comparison import Expected, Range, compare
from limpid.tracing.finite import all_finite
from limpid.tracing.record import Record
from limpid.tracing.verdict import Beyond, Check, NotFinite

BF16 = np.dtype(ml_dtypes.bfloat16)
SUMMED = np.dtype(np.float32)
"""In which sums inside a product are formed."""
UNIT = unit_roundoff(SUMMED) + unit_roundoff(np.float64)
"""Of the sums inside a product, and of the reference's own float64."""
SUMS = 8
"""How many float32 numbers PyTorch adds up side by side on a processor at least."""
LEAST_NORM = 1e-7
"""What PyTorch divides by where a matrix is smaller."""
KINDS = ("norm", "iterates", "grams", "polynomials")


def is_recorded(record: Record, name: str) -> bool:
    """Whether the engine's products for a parameter were recorded; in older records they were not."""
    return f"update/iterates/{name}" in record.names


@dataclass(frozen=True)
class AlongDirection(Muon):
    """The rule with the direction to which the engine's own products came."""

    along: Float[Array, "m n"] | None = None

    def direction(self, ahead: Array) -> Array:
        return super().direction(ahead) if self.along is None else self.along

    def rounding(self, x: UpdateInput) -> Arrays:
        """The rate is rounded, its product with X₅, that of θ and 1 - ηλ, and their sum."""
        terms = self.terms(x)
        moved = np.abs(terms["rate"] * terms["direction"])
        return self.momentum_rounding(x) | {
            "parameter": np.abs(terms["parameter"]) + 2 * np.abs(x.parameter) + 2 * moved
        }


def along_recorded(record: Record, name: str, rule: Muon) -> AlongDirection:
    """The rule from the engine's X₅ on; where the engine made fewer, from the one that follows from its last."""
    iterates = record.mapped(f"update/iterates/{name}")
    made = min(len(iterates) - 1, ROUNDS)
    last = newton_schulz_rounds(iterates[made].astype(np.float64), ROUNDS - made)
    along = last if last.shape == record.shape(f"before/{name}") else last.T
    return AlongDirection(rule.weight_decay, rule.beta, along)


def check_products(record: Record, name: str, rule: Muon, gradient: Float[Array, "m n"]) -> list[Check]:
    """Every matrix from m̃ to X₅, each from those that it was made of; `gradient` is the clipped one."""
    m = record.exact(f"after/m/{name}")
    ahead = rule.ahead(m, gradient)
    error = rule.beta * np.abs(m) + (1 - rule.beta) * np.abs(gradient)
    unit = unit_roundoff(record.parameters_format) + unit_roundoff(np.float64)
    known = Ball(ahead, 8 * unit * error)  # clip scale, its product with g, and both products, difference and sum
    start = stored(known if ahead.shape[0] <= ahead.shape[1] else Ball(known.value.T, known.reach.T), BF16)
    found: dict[str, list[Check]] = {kind: [] for kind in KINDS}
    for kind, place, ball in _made(record, name, start):
        array = record.mapped(f"update/{kind}/{name}")
        engine = np.array(array if kind == "norm" else array[place])
        follows = None if all_finite(ball.reach) else ~np.isfinite(ball.reach)
        why = "a matrix before it overflowed"
        allowed = Expected(ball.value, ball.reach, Range(BF16), BF16, unknown=follows, why=why)
        check = compare(f"{kind}({name})", "update", engine, allowed)
        found[kind].append(check if kind == "norm" else _at(check, place))
    return [max(checks, key=_severity) for checks in found.values()]


def _severity(check: Check) -> tuple[bool, bool, float]:
    return isinstance(check.verdict, Beyond | NotFinite), not check.holds, check.worst


def _at(check: Check, place: int) -> Check:
    """The check of one of several matrices of a kind, as one of all of them."""
    verdict = check.verdict
    if isinstance(verdict, Beyond | NotFinite):
        verdict = replace(verdict, index=(place, *verdict.index))
    return replace(check, verdict=verdict, index=(place, *check.index))


def _made(record: Record, name: str, start: Ball) -> Iterator[tuple[str, int, Ball]]:
    """What the mathematics makes of the engine's matrices, in their order."""
    engine = {kind: record.mapped(f"update/{kind}/{name}") for kind in KINDS}

    def of(kind: str, place: int) -> Array:
        matrix: Array = engine[kind][place].astype(np.float64)
        return matrix

    yield "norm", 0, _norm(start)
    norm = float(engine["norm"])
    yield "iterates", 0, Ball(start.value / norm, start.reach / norm + 2 * UNIT * np.abs(start.value / norm))
    a, b, c = COEFFICIENTS
    for place in range(min(len(engine["grams"]), ROUNDS)):
        x, gram = of("iterates", place), of("grams", place)
        yield "grams", place, product(exactly(x, SUMMED), exactly(x.T, SUMMED), SUMMED)
        yield "polynomials", place, _joined(b, gram, c, product(exactly(gram, SUMMED), exactly(gram, SUMMED), SUMMED))
        polynomial = of("polynomials", place)
        yield (
            "iterates",
            place + 1,
            _joined(a, x, 1.0, product(exactly(polynomial, SUMMED), exactly(x, SUMMED), SUMMED)),
        )


def _norm(matrix: Ball) -> Ball:
    """√Σ x² in float32: squares in so many sums side by side; a root halves the relative error and rounds once."""
    norm = max(float(np.linalg.norm(matrix.value)), LEAST_NORM)
    additions = matrix.value.size / SUMS + SUMS + 1
    return Ball(np.asarray(norm), np.asarray(float(np.linalg.norm(matrix.reach)) + UNIT * (additions / 2 + 1) * norm))


def _joined(a: float, x: Array, b: float, of: Ball) -> Ball:
    """a x + b y in float32: two products, of factors that are rounded themselves, and a sum."""
    value = a * x + b * of.value
    return Ball(value, abs(b) * of.reach + 3 * UNIT * (np.abs(a * x) + np.abs(b * of.value)))
