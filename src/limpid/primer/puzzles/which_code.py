"""Read an equation of the catalogue, and say which lines of code compute it; the others compute equations near it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from limpid.latex import readable
from limpid.maths.catalogue import catalogue
from limpid.maths.formula import Formula
from limpid.primer.puzzles.puzzle import Choice, Puzzle

CHOICES = 4
MOST_LINES, WIDEST = 4, 84
"""Of code that is read at a glance."""
LEAST = 12
"""Characters of the last line: `return 1.0` says nothing."""
PRIVATE = re.compile(r"(?<![\w.])_\w+(?=\()")
TOLD = {"_x_log_y", "_nats_per_unit", "_square"}
"""Private functions whose names say all; a line with another one hides what is computed."""
FIRST = "entropy"
HINTS = (
    "Which letters of the equation stay as they are, and which are summed over?",
    "Look for the operation that only this equation has: a root, a logarithm, a quotient.",
    "Try both with numbers small enough for the head.",
)


class Code(NamedTuple):
    """A formula, and the lines that compute it."""

    name: str
    equation: str
    source: str
    where: str
    lines: str
    near: tuple[str, ...]
    """What it shares with those that may stand beside it: its file, its branch."""


def puzzle(seed: int) -> Puzzle:
    """The equation of a seed."""
    rng = np.random.Generator(np.random.PCG64(seed))
    every = codes()
    one = next(code for code in every if code.name == FIRST) if seed == 0 else every[rng.integers(len(every))]
    others = [code for code in every if code.equation != one.equation and one.name not in code.lines]
    ranked = sorted(rng.permutation(len(others)), key=lambda place: -_alike(others[place], one))
    offered = [one, *(others[place] for place in ranked[: CHOICES - 1])]
    order = [int(place) for place in rng.permutation(CHOICES)]
    asked = f"Which of these computes\n     {readable(one.equation)}\n({one.source})"
    choices = tuple(_choice(offered[place]) for place in order)
    solution = f"{order.index(0) + 1}: {one.name}, {one.where}; limpid equations {one.name}"
    return Puzzle("which-code", seed, asked, choices, order.index(0), solution, HINTS)


@cache
def codes() -> tuple[Code, ...]:
    """Every formula whose code is short."""
    found = [_code(formula) for formula in catalogue(Formula)]
    return tuple(one for one in found if one is not None)


def _choice(code: Code) -> Choice:
    return Choice(code.lines, "another-equation", f"That is {code.name}: {readable(code.equation)}.")


def _alike(one: Code, other: Code) -> int:
    return len(set(one.near) & set(other.near))


def _code(formula: Any) -> Code | None:
    function = inspect.unwrap(formula.function)
    lines = _lines(function)
    if lines is None or function.__name__ in lines or "\\text" in formula.equation:
        return None
    file = function.__module__.removeprefix("limpid.").replace(".", "/") + ".py"
    where = f"{file}:{inspect.getsourcelines(function)[1]}"
    return Code(function.__name__, formula.equation, formula.source, where, lines, (file, formula.branch.value))


def _lines(function: Any) -> str | None:
    """What a function does, without its docstring and without what it refuses; None where that is long."""
    made = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(made, ast.FunctionDef)
    said = [one for one in made.body if not _is_aside(one)]
    lines = "\n".join(ast.unparse(one) for one in said).split("\n")
    if len(lines) > MOST_LINES or max(map(len, lines)) > WIDEST:
        return None
    hidden = PRIVATE.findall(lines[-1])
    return None if set(hidden) - TOLD or len(lines[-1]) < LEAST or "return" in "".join(lines[:-1]) else "\n".join(lines)


def _is_aside(statement: ast.stmt) -> bool:
    """A docstring, a refusal, or a check."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(body=[ast.Raise()]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.startswith(("require", "_require"))
    return False
