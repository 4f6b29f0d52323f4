"""What gradient descent does to functions that are nearly linear in their weights, and to those that are."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch


@formula(
    r"K_{ij} = \nabla_\theta f(x_i) \cdot \nabla_\theta f(x_j)",
    Branch.OPTIMISATION,
    "Jacot, Gabriel & Hongler 2018, section 4, arXiv:1806.07572",
)
def tangent_kernel(gradients: Float[Array, "example parameter"]) -> Float[Array, "example example"]:
    """How far a step on one example moves a network's output on another: the neural tangent kernel.

    Takes   gradients  (example, parameter)  of each output with respect to all parameters
    Gives   K          (example, example)  symmetric, no eigenvalue below 0
    Limits  speaks of the weights as they are; it stays nearly the same while a wide network trains
    """
    gradients = floats(gradients)
    return gradients @ gradients.T


@formula(
    r"\Delta f_i \approx -\eta \sum_j K_{ij} (f_j - y_j)",
    Branch.OPTIMISATION,
    "Jacot, Gabriel & Hongler 2018, section 5, arXiv:1806.07572; for the loss ½ Σ (f - y)²",
)
def tangent_change(
    kernel: Float[Array, "example example"], residual: Float[Array, " example"], rate: float
) -> Float[Array, " example"]:
    """How the outputs change in one step of gradient descent on half the squared error, to first order.

    Takes   kernel    K
            residual  f - y, output less target
            rate      η
    Gives   Δf        (example,); what is left out is of order η²
    Raises  ShapeError where the two differ in examples
    """
    return -rate * (floats(kernel) @ floats(residual))


@formula(
    r"w^* = A^\top (A A^\top)^{-1} b = \lim_{k \to \infty} w_k, \quad w_{k+1} = w_k - \eta A^\top (A w_k - b), "
    r"\quad w_0 = 0",
    Branch.OPTIMISATION,
    "Penrose 1956, doi:10.1017/S0305004100030929; reached by descent, Zhang et al. 2017, section 5, arXiv:1611.03530",
)
def least_norm(a: Float[Array, "equation unknown"], b: Float[Array, " equation"]) -> Float[Array, " unknown"]:
    """The shortest of all solutions, at which gradient descent on the squared error ends when it starts from zero.

    Takes   a  A (equation, unknown)  rows that are independent
            b  (equation,)
    Gives   w* (unknown,)  a mix of the rows of A
    Limits  steps are mixes of the rows, so that what is at right angles to all of them stays as it was at the start
    Raises  DomainError where a row is a mix of the others: then there may be no solution at all
    """
    a, b = floats(a), floats(b)
    if np.linalg.matrix_rank(a) < len(a):
        raise DomainError(f"A has {len(a)} rows, of which only {np.linalg.matrix_rank(a)} are independent")
    orthogonal, upper = np.linalg.qr(a.T)
    mixed: Array = orthogonal @ np.linalg.solve(upper.T, b)
    return mixed
