"""Two things at once: the probability of both, of one alone, and of one when the other is known."""

from __future__ import annotations

from jaxtyping import Float

from limpid.errors import DomainError
from limpid.maths.formula import formula
from limpid.maths.foundations.probability import certain
from limpid.maths.operation import Array, Branch

SOURCE = "Kolmogorov 1933, section I.4"


@formula(r"P(a) = \sum_b P(a, b)", Branch.PROBABILITY, SOURCE)
def marginal(joint: Float[Array, "a b"]) -> Float[Array, " a"]:
    """The probability of each row, whatever the column: what stands in the margin of a table.

    Takes   joint  (a, b)  probability of both; all entries together sum to 1
    Gives   P(a)   (a,)    a distribution; of the columns, that of the transposed table
    Raises  DomainError when the table is no distribution
    """
    table: Array = certain(joint.reshape(-1)).reshape(joint.shape).sum(1)
    return table


@formula(r"P(b \mid a) = \frac{P(a, b)}{P(a)}", Branch.PROBABILITY, SOURCE)
def conditional(joint: Float[Array, "a b"]) -> Float[Array, "a b"]:
    """The probability of each column when the row is known: each row over its sum.

    Takes   joint     (a, b)  probability of both; all entries together sum to 1
    Gives   P(b | a)  (a, b)  every row a distribution; the other way round, that of the transposed table
    Raises  DomainError when the table is no distribution, or a row has probability 0
    """
    alone = marginal(joint)
    if not alone.all():
        raise DomainError(f"row {int(alone.argmin())} has probability 0: nothing follows from what cannot happen")
    given: Array = joint / alone[:, None]
    return given
