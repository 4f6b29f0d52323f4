"""An expression of named arrays as a reader types it, `p * (g - sum(g * p))`: computed, and nothing else looked at.

Python's own parser reads it; a walk over its tree knows names, numbers, operators and a few functions of NumPy.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from limpid.maths.activation import gelu, sigmoid, silu
from limpid.maths.operation import Array
from limpid.primer.answer import Unreadable

LONGEST = 300
"""Characters of an expression."""
LARGEST = 4096
"""Entries of a value on the way."""
LARGEST_POWER = 8.0
SIGNS = {"×": "*", "·": "*", "⊙": "*", "−": "-", "–": "-", "^": "**", "²": "**2", "³": "**3", "ᵀ": ".T", "√": "sqrt",
         "σ": "sigmoid", "Σ": "sum", "∑": "sum"}  # fmt: skip
OPERATIONS: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.MatMult: ("@", operator.matmul),
    ast.Pow: ("**", operator.pow),
}
MODULES = ("np", "numpy", "torch", "F")
"""May stand before a function and a point."""


def _softmax(x: Array, axis: int = -1) -> Array:
    weight = np.exp(x - x.max(axis, keepdims=True))
    shares: Array = weight / weight.sum(axis, keepdims=True)
    return shares


OF_ONE: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "ln": np.log,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "abs": np.abs,
    "square": np.square,
    "sigmoid": sigmoid.value,
    "silu": silu.value,
    "gelu": gelu.value,
    "diag": np.diag,
    "transpose": np.transpose,
    "norm": np.linalg.norm,
}
OVER_AXES: dict[str, Callable[..., Array]] = {"sum": np.sum, "mean": np.mean}
OF_TWO: dict[str, Callable[[Array, Array], Array]] = {"dot": np.dot, "outer": np.outer, "matmul": np.matmul}
METHODS = ("sum", "mean", "dot", "exp", "log", "sqrt", "transpose", "square", "abs", "softmax")
OFFERED = "+ - * / ** @ .T, sum and mean (of all, or by axis), exp, ln, sqrt, tanh, sigmoid, softmax, dot, outer, diag"
REFUSED = (SyntaxError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError, IndexError)


def evaluated(text: str, names: Mapping[str, Array]) -> Array:
    """What an expression gives with these arrays.

    Raises  Unreadable, in one line, with what can be typed
    """
    if len(text) > LONGEST:
        raise Unreadable(f"this expression has {len(text):,} characters: {LONGEST} at most")
    tree = _tree(text)
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(_computed(tree, names), dtype=np.float64)
    except Unreadable:
        raise
    except REFUSED as error:
        raise Unreadable(f"“{_short(text)}” cannot be computed: {' '.join(str(error).split())[:120]}") from None
    if not np.isfinite(made).all():
        raise Unreadable(f"“{_short(text)}” is not finite where it was tried: a division by 0, or a power too large")
    return made


def _tree(text: str) -> ast.expr:
    plain = text.strip().rstrip(".;")
    for sign, typed in SIGNS.items():
        plain = plain.replace(sign, typed)
    plain = re.sub(r"^[^()=:]*=\s*", "", plain)
    try:
        return ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable(
            f"“{_short(text)}” is not read as an expression: every product needs its *, as in 2 * g * x, "
            "and every bracket its other one"
        ) from None


def _computed(node: ast.expr, names: Mapping[str, Array]) -> Any:
    """The value of a part; nothing but names, numbers, operators and the functions above."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return np.float64(number)
        case ast.Name(id=name):
            if name not in names:
                raise Unreadable(f"{name[:40]} is no quantity here: there are {', '.join(names)}")
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_computed(operand, names)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _computed(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return _bounded(*OPERATIONS[type(op)], _computed(left, names), _computed(right, names))
        case ast.Attribute(value=value, attr="T"):
            return np.transpose(_computed(value, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _called(name, args, keywords, names)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name), args=args, keywords=keywords) if (
            module in MODULES and module not in names
        ):
            return _called(name, args, keywords, names)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args, keywords=keywords) if name in METHODS:
            return _called(name, [value, *args], keywords, names)
    raise Unreadable(f"“{_short(ast.unparse(node))}” is not among what can be typed: the quantities, {OFFERED}")


def _bounded(said: str, way: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Two values in one, where neither a power nor a product grows without bound."""
    if said == "**" and (np.ndim(b) or abs(b) > LARGEST_POWER):
        raise Unreadable(f"a power is a number, {LARGEST_POWER:g} at most")
    if np.size(a) * np.size(b) > LARGEST:
        raise Unreadable(f"a value on the way has more than {LARGEST:,} entries")
    try:
        return way(a, b)
    except ValueError:
        raise Unreadable(f"{_sizes(a)} and {_sizes(b)} do not go together in {said}") from None


def _sizes(value: Any) -> str:
    return f"({' × '.join(map(str, np.shape(value)))})" if np.ndim(value) else "a number"


def _called(name: str, args: list[ast.expr], keywords: list[ast.keyword], names: Mapping[str, Array]) -> Any:
    if name in OVER_AXES and 1 <= len(args) <= 2:
        return OVER_AXES[name](_computed(args[0], names), **_axes(args[1:], keywords))
    if name == "softmax" and 1 <= len(args) <= 2:
        axis = _axes(args[1:], keywords).get("axis", -1)
        return _softmax(_computed(args[0], names), axis)
    if name in OF_ONE and len(args) == 1 and not keywords:
        of = _computed(args[0], names)
        if np.size(of) ** 2 > LARGEST:
            raise Unreadable(f"a value on the way has more than {LARGEST:,} entries")
        return OF_ONE[name](of)
    if name in OF_TWO and len(args) == 2 and not keywords:
        a, b = (_computed(one, names) for one in args)
        return _bounded(name, OF_TWO[name], a, b)
    raise Unreadable(f"{name[:40]} with {len(args)} arguments is not known: the functions are {OFFERED}")


def _axes(args: list[ast.expr], keywords: list[ast.keyword]) -> dict[str, Any]:
    """axis and keepdims, as numbers that stand there."""
    said: dict[str, Any] = {"axis": int(ast.literal_eval(args[0]))} if args else {}
    for one in keywords:
        if one.arg in ("axis", "dim"):
            said["axis"] = int(ast.literal_eval(one.value))
        elif one.arg in ("keepdims", "keepdim"):
            said["keepdims"] = bool(ast.literal_eval(one.value))
        else:
            raise Unreadable(f"{one.arg} is not known: sum and mean take axis and keepdims")
    return said


def _short(text: str) -> str:
    said = " ".join(text.split())
    return said if len(said) <= 60 else f"{said[:59]}…"
