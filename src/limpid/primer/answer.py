"""What a reader types as an answer, read generously: 1/3, 2√3, e³, 0,5, cos 60°, 7e9, 35%, [10, 6], 3x2, 112 GB."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from limpid.errors import LimpidError
from limpid.maths.activation import sigmoid
from limpid.primer.units import factor

LONGEST = 200
"""Characters of an answer."""
LARGEST_POWER = 1000
COARSE = 0.1
"""The largest share of a whole number that is taken for rounding: 49 may be 49.4, and 1 is not 1.4."""
ROUND = 3
"""Zeros at the end of a whole number, not of one digit alone, that are taken for rounding."""
WORDS = {"thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12", "k": "e3", "m": "e6", "b": "e9",
         "mn": "e6", "bn": "e9", "g": "e9", "tn": "e12", "t": "e12"}  # fmt: skip


def _of_angle(made: Callable[[float], float]) -> Callable[[float], float]:
    """Of an angle in radians; one beyond a whole turn has lost its sign of degrees."""

    def value(angle: float) -> float:
        if abs(angle) > math.tau * (1 + 1e-9):
            raise ValueError(angle)
        return made(angle)

    return value


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "ln": math.log,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "cos": _of_angle(math.cos),
    "sin": _of_angle(math.sin),
    "tanh": math.tanh,
    "sigmoid": lambda x: float(sigmoid.value(np.asarray(x))),
}
NAME = "sqrt|exp|ln|cos|sin|tanh|sigmoid"
CONSTANTS = {"e": math.e, "pi": math.pi}
OPERATIONS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
UNDEFINED = {"undefined", "not defined", "impossible", "not possible", "none", "it has none", "nothing", "no"}
SIGNS = str.maketrans({
    "×": "x", "·": "*", "⋅": "*", "−": "-", "–": "-", "√": "sqrt ", "σ": "sigmoid ", "^": "**", "π": "pi",
    "½": "(1/2)", "{": "(", "}": ")", "\u00a0": " ", "\u202f": " ",
})  # fmt: skip
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
SIZE = "|".join(WORDS)
FACTOR = rf"(?:{NAME}|log(?:10|2)?)(?![a-z])|pi\b|e(?!\w|[-+]\d)|\("
PRODUCT = re.compile(rf"(\blog(?:10|2)\s*\(?)|(?<=[\d.)])\s*(?={FACTOR})|(?<=\))\s*(?=[\d.])")
"""Where two factors stand side by side: 2√3, 3 e^-2, 2(4)3; a logarithm's own 10 or 2 is none."""
DIGITS = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
"""A number that can be read in one way alone."""
PLAIN = re.compile(r"[-+]?(\d*)(?:\.(\d*))?(?:e([-+]?\d+))?\s*(%?)")
"""A number in digits: before and behind the point, a power of ten."""
ROWS = r"\[? ?(?:\[[^\[\]]+\](?: ?[,;])? ?)+\]?"
WITH_UNIT = re.compile(rf"(.*?[\d.)])\s*((?:(?:{SIZE})\b)?)\s*(°|[a-z]+)(?: [a-z ]+)?")


class Unreadable(LimpidError):
    """An answer that is no number, list, shape or choice; trying again costs nothing."""


class Typed(NamedTuple):
    """Numbers as they were typed, and how exactly: half a unit of the last digit of each, 0 where it is exact."""

    values: tuple[float, ...]
    within: tuple[float, ...]
    form: str  # number, list, shape, undefined
    unit: str = ""
    """One that does not measure what was asked for; in any other the values are those of the unit asked for."""


def read(text: str, form: str = "", unit: str = "") -> Typed:
    """An answer as it was typed, where this form and this unit are asked for: a comma parts a list, but not a number.

    Raises  Unreadable, in one line, with what can be typed
    """
    if DIGITS.fullmatch(text) and len(text) <= LONGEST:
        return Typed((float(text),), (_within(text),), "number")
    plain = _plain(text)
    if plain in UNDEFINED:
        return Typed((), (), "undefined")
    if shape := _shape(plain, form):
        return shape
    if parts := _rows(plain) or _parts(plain, form):
        numbers = [_number(part) for part in parts]
        return Typed(tuple(_value(one, text) for one in numbers), tuple(map(_within, numbers)), "list")
    if form == "number":
        plain = re.sub(r"(?<=\d)[ '](?=\d{3}\b)", "", plain)
    plain, said = _unit(plain, unit) if form else (plain, "")
    number, times = _number(plain), factor(said, unit) if said else 1.0
    value, within = _value(number, text), _within(number)
    if times is None:
        return Typed((value,), (within,), "number", said)
    return Typed((value * times,), (within * times,), "number")


def _plain(text: str) -> str:
    """In ASCII, lower case, without what only decorates."""
    if len(text) > LONGEST:
        raise Unreadable(f"this answer has {len(text):,} characters; type a number, a list or a shape")
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda found: f"**({found[0].translate(RAISED)})", text)
    text = re.sub(r"\s*\bpercent$", "%", text.translate(SIGNS).strip().lower().rstrip("."))
    if len(re.findall(r"[=≈~]", text)) == 1:
        text = re.sub(r"^[^\[;]*[=≈~]\s*", "", text)
    text = re.sub(r"(?<=\d)\s*degrees?\b", "°", text)
    if re.search(r"\b(?:cos|sin)\b", text):
        text = re.sub(r"([\d.]+)\s*°", r"(\1*pi/180)", text)
    return re.sub(r"^(?:about|approximately|ca)\b\.?\s*", "", text)


def _shape(plain: str, form: str) -> Typed | None:
    """Rows by columns, which are a list too; where a shape is asked for, as programmers write it: (10, 9)."""
    between = r"\s*(?:x|\*|by|[,;]|\s)\s*" if form == "shape" else r"\s*(?:x|by)\s*"
    found = re.fullmatch(rf"[\[(]?\s*(\d+){between}(\d+)\s*[\])]?", plain)
    if not found or form == "number":
        return None
    return Typed(tuple(map(float, found.groups())), (0.0, 0.0), form or "shape")


def _rows(plain: str) -> list[str]:
    """The entries of a matrix, row by row; nothing where it is none."""
    if plain.count("[") < 2 or not re.fullmatch(ROWS, " ".join(plain.split())):
        return []
    rows = [_parts(f"[{row}]", "list") for row in re.findall(r"\[([^\[\]]+)\]", plain)]
    return [entry for row in rows for entry in row] if len(set(map(len, rows))) == 1 else []


def _parts(plain: str, form: str) -> list[str]:
    """The entries of a list; nothing for a number."""
    inside = _inside(plain)
    if inside is None and form != "list" and not re.search(r"[,;]", re.sub(r"(?<=\d),(?=\d)", "", plain)):
        return []
    parts = _split(plain if inside is None else inside, spaces=inside is not None or form == "list")
    return parts if len(parts) > 1 or plain.startswith("[") else []


def _inside(plain: str) -> str | None:
    """What stands in brackets that enclose everything: [10, 6] and (10, 6), but not (1 + 2) / (3 + 4)."""
    depth = 0
    for place, sign in enumerate(plain):
        depth += (sign in "([") - (sign in ")]")
        if depth == 0:
            return plain[1:-1].strip() if place == len(plain) - 1 and place else None
    return None


def _split(text: str, spaces: bool) -> list[str]:
    """Parted by semicolons, else by commas before a space, else by spaces between decimal commas, else by commas."""
    words = text.split()
    if ";" not in text and len(words) > 1 and all(re.fullmatch(r"-?\d+(,\d+)?", word) for word in words):
        return [word.replace(",", ".") for word in words] if spaces else [text]
    for mark in (r";", r",\s", r",", r"(?<![-+*/x])\s+(?![*/+x]|-\s)"):
        if re.search(mark, text) and (spaces or mark[0] in ";,"):
            return [part.strip() for part in re.split(mark, text)]
    return [text]


def _unit(plain: str, asked: str) -> tuple[str, str]:
    """A number, and the unit behind it, if there is one."""
    found = WITH_UNIT.fullmatch(plain)
    if found is None:
        return plain, ""
    number, size, unit = found.groups()
    if not size and unit in WORDS and not (unit == "b" and factor(unit, asked) == 1):
        return plain, ""
    return (plain, "") if unit in CONSTANTS else (number + size, unit)


def _number(text: str) -> str:
    """A number as Python writes it: no commas between thousands, a point before decimals, powers of ten as e9."""
    said = text.strip()
    if DIGITS.fullmatch(said):
        return said
    thousands = re.fullmatch(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", said)
    said = said.replace(",", "" if thousands else ".")
    said = re.sub(rf"(?<=[\d.])\s*({SIZE})\b", lambda m: WORDS[m[1]], said)
    said = re.sub(r"(?<=[\d)])\s*x\s*(?=[\d(])", "*", said)
    said = PRODUCT.sub(lambda found: found[1] or "*", said)
    said = re.sub(rf"\b((?:{NAME})\s*|log(?:10|2)?\s+)(-?(?:[\d.]+(?:e-?\d+)?|e\b|pi\b))", r"\1(\2)", said)
    said = re.sub(rf"\b({NAME})\s+((?:{NAME})\s*\([^()]*\))", r"\1(\2)", said)
    ten = re.fullmatch(r"([-+]?[\d.]+)\s*\*\s*10\s*\*\*\s*(\(?)([-+]?\d+)\)?", said)
    return f"{ten[1]}e{ten[3]}" if ten else said


def _within(text: str) -> float:
    """Half a unit of the last digit of a number; whole thousands are taken for rounded; 0 for what is computed."""
    found = PLAIN.fullmatch(text)
    if not found or not (found[1] or found[2]):
        return 0.0
    whole, decimals, exponent, percent = found.groups()
    unit = 10.0 ** (min(int(exponent or 0), 300) - (2 if percent else 0))
    if decimals:
        return 0.5 * unit * 10.0 ** -len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    last = 10.0**zeros if zeros >= ROUND and len(whole) > zeros + 1 else 1.0
    return min(0.5 * last, COARSE * float(whole)) * unit


def _value(text: str, whole: str) -> float:
    said = text.removesuffix("%").strip()
    try:
        number = float(said) if PLAIN.fullmatch(said) else _computed(ast.parse(said, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
        number = math.nan
    if not math.isfinite(number):
        raise Unreadable(f"“{whole.strip()}” is not read as an answer: type a number (0.36, 1/3, √49, ln 3, "
                         "cos 60°, 7e9), a list ([10, 6]) or a shape (3x2)")  # fmt: skip
    return number / 100 if text.endswith("%") else number


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
