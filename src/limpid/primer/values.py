"""The numbers in a chapter's text: computed by the mathematics that trains, never typed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from limpid.maths.foundations import cosine_similarity
from limpid.maths.operation import Array
from limpid.primer.exercise import shown

if TYPE_CHECKING:
    from jinja2 import Environment

MATHEMATICS = re.compile(r"\$\$[^$]+\$\$|\$[^$]+\$")

NUMPY = (
    "array",
    "exp",
    "log",
    "sqrt",
    "cos",
    "sin",
    "pi",
    "arange",
    "inf",
    "arccos",
    "degrees",
    "radians",
    "prod",
    "mean",
)


def computed(markdown: str) -> str:
    """The text with what stands between << and >> computed."""
    made = environment().from_string(markdown).render()
    return MATHEMATICS.sub(lambda found: found[0].replace("−", "-"), made)


@cache
def environment() -> Environment:
    """Names that a chapter may compute with: limpid's mathematics, and NumPy's functions of one number or array."""
    from jinja2 import Environment, StrictUndefined

    from limpid.maths import foundations, relu
    from limpid.maths.activation import gelu, sigmoid
    from limpid.maths.embedding import Rotary, SinusoidalPositions
    from limpid.maths.norm import batch_norm, layer_norm, rms_norm
    from limpid.primer.cases import NAMES
    from limpid.tracing.worked import WORDS

    made = Environment(
        variable_start_string="<<", variable_end_string=">>", block_start_string="<%", block_end_string="%>",
        comment_start_string="<#", comment_end_string="#>", undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, autoescape=False, finalize=_shown, keep_trailing_newline=True,
    )  # fmt: skip
    made.globals |= {name: value for name, value in vars(foundations).items() if callable(value)}
    made.globals |= {name: getattr(np, name) for name in NUMPY}
    made.globals |= {"abs": abs, "sum": sum, "max": max, "min": min, "len": len, "zip": zip, "round": round}
    made.globals |= {
        "worked": worked,
        "worked_drawn": worked_drawn,
        "WORDS": WORDS,
        "row_cosines": row_cosines,
        "relu": relu,
    }
    made.filters |= {
        "places": places,
        "digits": shown,
        "list": list_of,
        "code": code,
        "size": size,
        "strip": lambda text: text.strip("[]"),
    }
    made.globals |= NAMES
    made.globals |= _of_training()
    made.filters |= {"scientific": scientific}
    made.globals |= {one.__name__: one for one in (rms_norm, layer_norm, batch_norm, Rotary, SinusoidalPositions)}
    made.globals |= {"gelu": gelu, "sigmoid": sigmoid.value}
    return made


def _of_training() -> dict[str, Any]:
    """What the chapters on training itself compute with."""
    from limpid.primer import aligned, sizes, stored, updates

    return {**updates.NAMES, **stored.NAMES, **sizes.NAMES, **aligned.NAMES}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def worked(name: str) -> Array:
    """A weight of the worked model, as it stands before its step."""
    from limpid.tracing.worked import weights

    return weights()[name]


def worked_drawn() -> Array:
    """All weights of the worked model that chance has drawn, in one list: those of its norm are set."""
    from limpid.tracing.worked import weights

    return np.concatenate([weight.ravel() for name, weight in weights().items() if "norm" not in name])


def row_cosines(table: Array) -> list[float]:
    """The cosine of every two rows of a table."""
    return [float(cosine_similarity(a, b)) for a, b in itertools.combinations(table, 2)]


def places(value: Any, count: int) -> str:
    """A number, or each of a list, with so many places after the point."""
    if np.ndim(value):
        return f"[{', '.join(places(one, count) for one in value)}]"
    return f"{float(value):,.{count}f}".replace("-", "−")


def list_of(values: Iterable[Any]) -> str:
    """Numbers with commas between, without brackets."""
    return ", ".join(map(shown, values))


def code(text: str) -> str:
    """Text as it is typed, also within Markdown."""
    return f"`{text}`"


def size(values: Iterable[float]) -> float:
    """The mean of numbers without their signs."""
    return float(np.mean(np.abs(list(values))))


RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def scientific(value: float, digits: int = 3) -> str:
    """A number as a factor times a power of ten, 5.88 × 10²³; the factor is left out where it is 1."""
    factor, power = f"{float(value):.{digits - 1}e}".split("e")
    factor = factor.rstrip("0").rstrip(".") if "." in factor else factor
    raised = f"10{str(int(power)).translate(RAISED)}"
    return (raised if factor == "1" else f"{factor} × {raised}").replace("-", "−")
