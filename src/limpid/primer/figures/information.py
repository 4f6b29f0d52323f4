"""How surprising it is that something came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limpid.maths.foundations import surprise
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.graph import Axis, Series, graph_svg, graph_text
from limpid.primer.figures.svg import FIRST, SECOND

X = Axis("probability of what came", 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
Y = Axis("surprise in nats", 0.0, 5.0, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0))


def surprise_svg(probabilities: Sequence[float]) -> str:
    """The curve of the surprise, and some probabilities on it."""
    return graph_svg(
        "Surprise falls from infinity at probability 0 to 0 at probability 1", X, Y, _series(probabilities)
    )


def surprise_text(probabilities: Sequence[float]) -> str:
    return graph_text(X, Y, _series(probabilities))


def _series(probabilities: Sequence[float]) -> list[Series]:
    whole = [(float(p), float(surprise(p))) for p in np.linspace(0.006, 1.0, 200)]
    marked = [(p, float(surprise(p))) for p in probabilities]
    return [
        Series("", whole, FIRST, "·"),
        *(Series(f"−ln {a:g} = {b:.2f}", [(a, b)], SECOND, "●", joined=False) for a, b in marked),
    ]


FIGURES = {"surprise": Drawn(surprise_svg, surprise_text)}
