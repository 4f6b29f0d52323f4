"""The longer exercises, by name."""

from collections.abc import Callable

from limpid.primer.puzzles import broken_step, which_code, which_layout
from limpid.primer.puzzles.derive.derivation import NAME, Derivation, derivation
from limpid.primer.puzzles.puzzle import Puzzle

PUZZLES: dict[str, Callable[[int], Puzzle | Derivation]] = {
    "broken-step": broken_step.puzzle,
    "which-code": which_code.puzzle,
    "which-layout": which_layout.puzzle,
    NAME: derivation,
}
"""From a seed to what is asked."""
