"""The exercises, in the order of the chapters."""

from limpid.primer.exercise import Exercise
from limpid.primer.exercises import (
    alignment,
    attention,
    calculus,
    chain,
    logarithms,
    matrices,
    optimizers,
    precision,
    probability,
    scaling,
    statistics,
    transformer,
    variants,
    vectors,
    width,
)

EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for room in (
        vectors,
        matrices,
        logarithms,
        probability,
        calculus,
        chain,
        statistics,
        width,
        attention,
        transformer,
        variants,
        optimizers,
        precision,
        scaling,
        alignment,
    )
    for exercise in room.EXERCISES
}
