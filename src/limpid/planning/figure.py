"""A figure: a number together with the equation that computed it, what was put in, and where it comes from."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from limpid.html import table, titled

Number = float | int

OPERATORS: dict[type, Callable[..., Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow, ast.USub: operator.neg,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "ceil": math.ceil, "max": max, "min": min, "exp": math.exp, "ln": math.log, "sqrt": math.sqrt,
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True, repr=False)
class Figure:
    """One planned number. The equation is not a comment on it: it is what was evaluated."""

    name: str
    value: Number
    unit: str
    equation: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    source: str = ""
    note: str = ""

    def __str__(self) -> str:
        return shown(self.value, self.unit)

    def __repr__(self) -> str:
        return f"Figure({self.name} = {self})"

    def _repr_html_(self) -> str:
        return titled(self.name, *(table([(line.strip(),)]) for line in self.why()[1:]))

    @property
    def put_in(self) -> dict[str, Number]:
        """The numbers that the equation uses."""
        used = {_dotted(node) for node in ast.walk(_parsed(self.equation))}
        return {name: number for name, number in self.numbers.items() if name in used}

    def why(self) -> list[str]:
        """The equation, the numbers put in, what comes out, and the source: one line each."""
        lines = [f"{self.name} = {shown(self.value, self.unit)}"]
        if self.equation != self.name:
            lines.append(f"  = {readable(self.equation)}")
            if put_in := self.put_in:
                lines.append("  with " + ", ".join(f"{name} {plain(number)}" for name, number in put_in.items()))
        exact = plain(self.value)
        lines.append(f"  = {exact} {self.unit}".rstrip())
        return lines + [f"  {text}" for text in (self.note, self.source and f"source: {self.source}") if text]

    def document(self) -> dict[str, Any]:
        """The figure as JSON: of the numbers put in, those that the equation uses."""
        document: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "equation": self.equation,
        }
        document["numbers"] = self.put_in
        return document | {key: text for key, text in (("source", self.source), ("note", self.note)) if text}


def figure(
    name: str, unit: str, equation: str, numbers: Mapping[str, Number | Figure], source: str = "", note: str = ""
) -> Figure:
    """Evaluate an equation, in Python's spelling, on numbers and on other figures."""
    plain_numbers = {key: n.value if isinstance(n, Figure) else n for key, n in numbers.items()}
    return Figure(name, evaluate(equation, plain_numbers), unit, equation, plain_numbers, source, note)


def total(name: str, parts: list[Figure], unit: str = "") -> Figure:
    """The sum of some figures, each by its name inside the section: names differ, so no part is lost."""
    short = {part.name.removeprefix(name.rpartition(".")[0] + "."): part for part in parts}
    assert len(short) == len(parts), f"two parts of {name} have one name"
    return figure(name, unit or parts[0].unit, " + ".join(short), short)


def given(name: str, value: Number, unit: str, source: str = "", note: str = "") -> Figure:
    """A number that was given, or measured: its name is its own equation."""
    return Figure(name, value, unit, name, {}, source, note)


def evaluate(equation: str, numbers: Mapping[str, Number]) -> Number:
    """The value of an arithmetic expression; whole numbers stay exact."""
    return _value(_parsed(equation), numbers)


@cache
def _parsed(equation: str) -> ast.expr:
    return ast.parse(equation, mode="eval").body


def _value(node: ast.AST, numbers: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return numbers[name]
        case ast.Attribute() if (dotted := _dotted(node)) is not None and dotted in numbers:
            return numbers[dotted]
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATORS[type(op)](_value(operand, numbers))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_value(argument, numbers) for argument in arguments))
    raise ValueError(f"{ast.unparse(node)} is not arithmetic")


def _dotted(node: ast.AST) -> str | None:
    """The name that a node is: one word, or several with dots between them."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def readable(equation: str) -> str:
    """An equation as it is written by hand: · for products, raised exponents."""
    text = re.sub(r"\s*\*\*\s*(-?\d+)", lambda exponent: exponent[1].translate(SUPERSCRIPTS), equation)
    return text.replace(" ** ", "^").replace("**", "^").replace(" * ", " · ").replace("*", " · ")


def plain(number: Number) -> str:
    """A number in full: whole ones with thousands apart, others to ten digits."""
    if float(number).is_integer() and abs(number) < 1e21:
        return f"{int(number):,}"
    return f"{number:.10g}"


PREFIXES = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def shown(number: Number, unit: str) -> str:
    """A number as one reads it: four digits, with the prefix that its unit takes."""
    if unit.startswith("bytes"):
        return (_scaled(number, PREFIXES[3:], "B") if number >= 1e3 else f"{number:,.0f} B") + unit[5:]
    if unit.startswith("FLOP"):
        return _scaled(number, PREFIXES, unit)
    if unit == "s":
        return duration(number)
    if unit in ("parameters", "tokens", "tokens/s"):
        return _scaled(number, COUNTS, f" {unit}").replace("  ", " ")
    if unit == "share":
        return f"{100 * number:.1f} %"
    if unit == "$":
        return f"${number:,.2f}" if number < 1000 else f"${number:,.0f}"
    whole = float(number).is_integer() or 1e4 <= abs(number) < 1e15
    return f"{number:,.0f} {unit}".rstrip() if whole else f"{number:,.4g} {unit}".rstrip()


def _scaled(number: Number, steps: tuple[tuple[float, str], ...], unit: str) -> str:
    for size, prefix in steps:
        if abs(number) >= size * 0.99995:
            space = "" if unit.startswith(" ") else " "
            return f"{number / size:.4g}{space}{prefix}{unit}"
    return f"{number:.4g} {unit}"


def duration(seconds: float) -> str:
    """Seconds in the unit that people would say."""
    for size, unit in ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
