"""The broken step's own trace: each entry written out with the numbers it was made from, and what was recorded.

What the numbers come to is left to the reader: where it is not what was recorded, the fault is found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from limpid.maths.operation import Array
from limpid.primer.answer import LONGEST, Unreadable
from limpid.primer.exercise import shown

Values = Mapping[str, Array]
DIGITS = 6
"""Of every number: the question itself prints three places."""


def entries(values: Values, stages: tuple[str, ...]) -> dict[str, str]:
    """Each entry of each quantity by its name, scores[1, 0], in the order of the step."""
    return {name: line for stage in stages for name, line in _of(values, stage)}


def looked(entries: Mapping[str, str], asked: str) -> str:
    """One entry, or all of a quantity: scores[1, 0], scores 1 0, scores.

    Raises  Unreadable for what the step does not hold
    """
    wanted = _plain(asked[:LONGEST])
    found = [line for name, line in entries.items() if wanted in (_plain(name), _plain(name.split("[")[0]))]
    if not found:
        known = ", ".join(dict.fromkeys(name.split("[")[0] for name in entries))
        raise Unreadable(
            f"the trace has no “{asked.strip()[:60]}”: look at one of {known}, or at an entry, scores[1, 0]"
        )
    return "\n".join(found)


def _plain(name: str) -> str:
    return " ".join(re.findall(r"[a-z]+|-?\d+", name.lower()))


def _of(values: Values, stage: str) -> Iterator[tuple[str, str]]:
    recorded, written = np.asarray(values[stage]), WRITTEN[stage]
    for index in np.ndindex(recorded.shape):
        name = f"{stage}[{', '.join(map(str, index))}]" if index else stage
        formula, numbers = written(values, *index)
        yield name, f"{name} = {formula}\n  = {numbers}\n  recorded: {_said(recorded[index].item())}"


Written = tuple[str, str]
"""An entry's formula with the names of what it is made from, and with their numbers."""


def _scores(of: Values, i: int, j: int) -> Written:
    return (
        f"({_dots('q', 'k', of, i, j, turned=True)}) / √2",
        f"({_products(of['q'][i], of['k'][j])}) / {_said(math.sqrt(2))}",
    )


def _weights(of: Values, i: int, j: int) -> Written:
    if j > i:
        return "0", f"0: token {j} comes after token {i}"
    return _softmax("scores", of["scores"][i, : i + 1], i, j)


def _mixed(of: Values, i: int, j: int) -> Written:
    return _dots("weights", "v", of, i, j), _products(of["weights"][i], of["v"][:, j])


def _stream(of: Values, i: int, j: int) -> Written:
    return f"x[{i}, {j}] + mixed[{i}, {j}]", f"{_said(of['x'][i, j])} + {_bracketed(of['mixed'][i, j])}"


def _logits(of: Values, i: int, j: int) -> Written:
    products = _products(of["stream"][i], of["u"][:, j])
    return f"{_dots('stream', 'u', of, i, j)} + b[{j}]", f"{products} + {_bracketed(of['b'][j])}"


def _probabilities(of: Values, i: int, j: int) -> Written:
    return _softmax("logits", of["logits"][i], i, j)


def _loss(of: Values) -> Written:
    targets = of["targets"].astype(int)
    names = [f"ln probabilities[{row}, {target}]" for row, target in enumerate(targets)]
    chances = [f"ln {_said(of['probabilities'][row, target])}" for row, target in enumerate(targets)]
    return f"−({' + '.join(names)}) / 3, at the targets", f"−({' + '.join(chances)}) / 3"


def _gradient(of: Values, i: int, j: int) -> Written:
    target = int(of["targets"][i])
    less, why = (
        (" − 1", f"token {j} is row {i}'s target") if j == target else ("", f"row {i}'s target is token {target}")
    )
    return f"(probabilities[{i}, {j}]{less}) / 3: {why}", f"({_said(of['probabilities'][i, j])}{less}) / 3"


def _after(of: Values, j: int) -> Written:
    names = " + ".join(f"gradient[{row}, {j}]" for row in range(3))
    numbers = " + ".join(_bracketed(one) for one in of["gradient"][:, j])
    return f"b[{j}] − 0.5 · ({names})", f"{_said(of['b'][j])} − 0.5 · ({numbers})"


def _softmax(name: str, row: Array, i: int, j: int) -> Written:
    """An entry of softmax over a row: its power of e over their sum."""
    names = " + ".join(f"exp {name}[{i}, {k}]" for k in range(len(row)))
    powers = [_said(math.exp(one)) for one in row]
    return f"exp {name}[{i}, {j}] / ({names})", f"{powers[j]} / ({' + '.join(powers)})"


def _dots(a: str, b: str, of: Values, i: int, j: int, turned: bool = False) -> str:
    """A row times a column, or, turned, a row times a row."""
    return " + ".join(f"{a}[{i}, {k}] · {b}[{f'{j}, {k}' if turned else f'{k}, {j}'}]" for k in range(of[a].shape[1]))


def _products(a: Array, b: Array) -> str:
    return " + ".join(f"{_bracketed(x)} · {_bracketed(y)}" for x, y in zip(a, b, strict=True))


def _said(value: float) -> str:
    return shown(float(value), DIGITS)


def _bracketed(value: float) -> str:
    return f"({_said(value)})" if value < 0 else _said(value)


WRITTEN: Mapping[str, Callable[..., Written]] = {
    "scores": _scores, "weights": _weights, "mixed": _mixed, "stream": _stream, "logits": _logits,
    "probabilities": _probabilities, "loss": _loss, "gradient": _gradient, "b after": _after,
}  # fmt: skip
"""How an entry of each stage is written out."""
