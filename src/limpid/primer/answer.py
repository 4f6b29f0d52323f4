"""What a reader types as an answer, read generously: 1/3, √49, 0,5, ln 3, 7e9, 7B, 35%, [10, 6], 3x2, undefined."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from limpid.errors import LimpidError

LONGEST = 200
"""Characters of an answer."""
LARGEST_POWER = 1000
WORDS = {"thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12", "k": "e3", "m": "e6", "b": "e9"}
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "ln": math.log,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
}
CONSTANTS = {"e": math.e, "pi": math.pi}
OPERATIONS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
UNDEFINED = {"undefined", "not defined", "impossible", "none", "no"}


class Unreadable(LimpidError):
    """An answer that is no number, list, shape or choice; trying again costs nothing."""


class Typed(NamedTuple):
    """Numbers as they were typed, and how exactly: half a unit of the last digit of each, 0 where it is exact."""

    values: tuple[float, ...]
    within: tuple[float, ...]
    form: str  # number, list, shape, undefined


def read(text: str) -> Typed:
    """An answer as it was typed.

    Raises  Unreadable, in one line, with what can be typed
    """
    plain = _plain(text)
    if plain in UNDEFINED:
        return Typed((), (), "undefined")
    if shape := re.fullmatch(r"\(?\s*(\d+)\s*(?:x|by)\s*(\d+)\s*\)?", plain):
        return Typed(tuple(map(float, shape.groups())), (0.0, 0.0), "shape")
    inside = re.fullmatch(r"[\[(](.*[,;\s].*)[\])]", plain)
    if inside or re.search(r"[,;]", re.sub(r"(?<=\d),(?=\d)", "", plain)):
        parts = _parts(inside.group(1) if inside else plain)
        return Typed(tuple(_value(part, text) for part in parts), tuple(map(_within, parts)), "list")
    one = _one(plain)
    return Typed((_value(one, text),), (_within(one),), "number")


def _plain(text: str) -> str:
    """In ASCII, lower case, without what only decorates."""
    if len(text) > LONGEST:
        raise Unreadable(f"this answer has {len(text):,} characters; type a number, a list or a shape")
    for wide, narrow in {"×": "x", "·": "*", "−": "-", "–": "-", "√": "sqrt ", "^": "**", "π": "pi", "⁻": "-"}.items():
        text = text.replace(wide, narrow)
    return re.sub(r"^[a-z‖(),| ]*=\s*", "", text.strip().lower().rstrip("."))


def _parts(text: str) -> list[str]:
    """The entries of a list: parted by semicolons, else by commas before a space, else by commas, else by spaces."""
    for mark in (r";\s*", r",\s+", r",", r"\s+"):
        if re.search(mark, text):
            return [part.strip() if mark == "," else _one(part.strip()) for part in re.split(mark, text)]
    return [text]


def _one(text: str) -> str:
    """A number without commas between thousands, and with a point for a comma before decimals, as in 0,375."""
    if re.fullmatch(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", text):
        return text.replace(",", "")
    return text.replace(",", ".")


def _within(text: str) -> float:
    """Half a unit of the last digit of a decimal number; 0 for whole numbers, fractions and what is computed."""
    found = re.fullmatch(r"-?\d*\.(\d+)(?:e(-?\d+))?(%?)", text.strip())
    if not found:
        return 0.0
    digits, exponent, percent = found.groups()
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits) - (2 if percent else 0))


def _value(text: str, whole: str) -> float:
    said = text.strip()
    percent = said.endswith("%")
    said = said.removesuffix("%").strip()
    said = re.sub(r"(?<=[\d.])\s*(thousand|million|billion|trillion|[kmb])\b", lambda m: WORDS[m.group(1)], said)
    said = re.sub(r"\b(sqrt|exp|ln|log10|log2|log)\s+(-?[\d.]+(?:e-?\d+)?)", r"\1(\2)", said)
    said = re.sub(r"(?<=\d)\s*x\s*(?=\d)", "*", said)
    try:
        number = _computed(ast.parse(said, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
        number = math.nan
    if not math.isfinite(number):
        raise Unreadable(f"“{whole.strip()}” is not read as an answer: type a number (0.36, 1/3, √49, ln 3, 7e9), "
                         "a list ([10, 6]) or a shape (3x2)")  # fmt: skip
    return number / 100 if percent else number


def _computed(node: ast.expr) -> float:
    """The value of a formula of numbers; nothing else is looked at or called."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name):
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_computed(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _computed(operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _computed(left), _computed(right)
            if isinstance(op, ast.Pow) and abs(b) > LARGEST_POWER:
                raise ValueError(b)
            made = OPERATIONS[type(op)](a, b)
            if isinstance(made, complex):
                raise ValueError(made)
            return float(made)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return float(FUNCTIONS[name](_computed(argument)))
    raise ValueError(ast.dump(node))
