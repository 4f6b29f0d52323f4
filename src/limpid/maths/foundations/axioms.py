"""What adding and scaling have to obey for arrays to be vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch

Sides = Callable[[Array, Array, Array, float, float], tuple[Array, Array]]
LAWS: dict[str, Sides] = {
    "u + v = v + u": lambda u, v, w, a, b: (u + v, v + u),
    "(u + v) + w = u + (v + w)": lambda u, v, w, a, b: ((u + v) + w, u + (v + w)),
    "u + 0 = u": lambda u, v, w, a, b: (u + np.zeros_like(u), u),
    "u + (−u) = 0": lambda u, v, w, a, b: (u + (-u), np.zeros_like(u)),
    "1 u = u": lambda u, v, w, a, b: (1.0 * u, u),
    "a (b u) = (a b) u": lambda u, v, w, a, b: (a * (b * u), (a * b) * u),
    "a (u + v) = a u + a v": lambda u, v, w, a, b: (a * (u + v), a * u + a * v),
    "(a + b) u = a u + b u": lambda u, v, w, a, b: ((a + b) * u, a * u + b * u),
}
"""The eight laws of a vector space, each as its two sides."""


@formula(
    r"u + v = v + u, \quad (u + v) + w = u + (v + w), \quad u + 0 = u, \quad u + (-u) = 0, \quad 1 u = u, \quad "
    r"a (b u) = (a b) u, \quad a (u + v) = a u + a v, \quad (a + b) u = a u + b u",
    Branch.LINEAR_ALGEBRA,
    "Axler 2024, Linear Algebra Done Right, definition 1.20",
)
def vector_space_axioms(
    u: Float[Array, " n"], v: Float[Array, " n"], w: Float[Array, " n"], a: float, b: float
) -> dict[str, float]:
    """How far each law of a vector space is from holding for these arrays, computed in float64.

    Takes   u, v, w  (n,)  arrays of one shape
            a, b           numbers that scale them
    Gives   the largest difference between both sides of each law, in the unit of the entries times a and b
    Limits  0 for whole numbers that are not too large; else at most a few roundings
    Raises  ShapeError when the shapes differ
    """
    u, v, w = floats(u), floats(v), floats(w)
    sides = {law: both(u, v, w, float(a), float(b)) for law, both in LAWS.items()}
    return {law: float(np.abs(left - right).max(initial=0.0)) for law, (left, right) in sides.items()}
