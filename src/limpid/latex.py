"""LaTeX in characters that a terminal has.

A formula is read as a tree, and the tree is written so that its structure can be read again: a slash between two
factors without spaces is one fraction, whose parts are in brackets where they are more than one factor; a slash with
spaces is the formula's own. ∂ and the sign right behind it are one factor. A macro that is not known is an
error, not a gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pylatexenc.latex2text import LatexNodes2Text
from pylatexenc.latexwalker import (
    LatexCharsNode,
    LatexEnvironmentNode,
    LatexGroupNode,
    LatexMacroNode,
    LatexSpecialsNode,
    LatexWalker,
)
from pylatexenc.latexwalker import get_default_latex_context_db as read_macros
from pylatexenc.macrospec import std_macro

FUNCTIONS = ("sin", "cos", "log", "ln", "exp", "max", "min", "tanh", "det", "arg", "Pr")
SIGNS = {
    "ne": "≠",
    "bmod": "mod",
    "Vert": "∥",
    "sum": "∑",
    "prod": "∏",
    "mid": "|",
    "top": "⊤",
    "phi": "φ",
    "ldots": "…",
    "dots": "…",
}
"""Macros whose usual character says something else, or nothing."""
ACCENTS = {"bar": "\u0305", "hat": "\u0302", "tilde": "\u0303", "dot": "\u0307", "overline": "\u0305"}
SPACES = (",", ";", ":", "!", " ", "quad", "qquad")
SIZES = (
    "textstyle",
    "displaystyle",
    "limits",
    "nolimits",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "big",
    "Big",
    "left",
    "right",
)
OPENING, CLOSING = {"(": ")", "[": "]", "‖": "‖", "⌊": "⌋", "{": "}"}, (")", "]", "⌋")
DELIMITERS = {"lVert": ("‖", True), "rVert": ("‖", False), "lfloor": ("⌊", True), "rfloor": ("⌋", False),
              "{": ("{", True), "}": ("}", False)}  # fmt: skip
BINARY = "=+-−·⊙∘∼≈≤≥<>←→⇒∈∝≻≺∥|±∓/×≠∪∩⊂∀∃≪≫∧∨"
PREFIX = "-±∓∂∇"


@dataclass(frozen=True)
class Node:
    """One part of a formula: an atom, or something made of sequences of nodes."""

    kind: str
    """atom; frac, sqrt, group; sub, sup and prime of a base; an accent."""
    text: str = ""
    parts: tuple[tuple[Node, ...], ...] = ()
    spaced: bool = False
    """Whether the source leaves a space before it."""

    def shape(self) -> Any:
        """The same as nested tuples, without spaces: what two spellings of one formula share."""
        return (self.kind, self.text, *(tuple(node.shape() for node in part) for part in self.parts))


@cache
def readable(latex: str) -> str:
    """An equation as one line of text."""
    return written(tree(latex))


def tree(latex: str) -> tuple[Node, ...]:
    """What a formula is made of.

    Raises  ValueError for a macro that is not known
    """
    reading = read_macros()
    reading.add_context_category("ours", macros=[std_macro("tfrac", "{{"), std_macro("dfrac", "{{")], prepend=True)
    latex = re.sub(r"\\operatorname\*?\{(\w+)\}", r"\\text{\1}", latex)
    return _grouped(list(_tokens(LatexWalker(latex, latex_context=reading).get_latex_nodes()[0])))


def _tokens(nodes: Sequence[Any]) -> Iterator[Node]:
    """Atoms, brackets and whole structures in order; scripts still stand as `_` and `^` before what they raise."""
    space = False
    for node in nodes:
        if isinstance(node, LatexCharsNode):
            for word in re.finditer(r"\s+|[A-Za-z]+|\d+(?:\.\d+)?|.", node.chars):
                yield from _letters(word[0], space)
                space = word[0].isspace()
            continue
        before = space
        for token in _structure(node):
            yield Node(token.kind, token.text, token.parts, before or token.spaced)
            before = False
        space = isinstance(node, LatexMacroNode) and _leaves_space(node, space)


def _leaves_space(node: LatexMacroNode, before: bool) -> bool:
    """Whether a macro stands apart from what follows; the size of a bracket changes nothing."""
    if node.macroname in SIZES:
        return before or bool(node.macro_post_space)
    arguments = node.nodeargd.argnlist if node.nodeargd else []
    return node.macroname in SPACES or (node.macro_post_space != "" and not any(arguments))


def _letters(word: str, space: bool) -> Iterator[Node]:
    if not word.isspace():
        yield Node("atom", word, (), space)


def _structure(node: Any) -> Iterator[Node]:
    if isinstance(node, LatexGroupNode):
        yield Node("braces", "", (_grouped(list(_tokens(node.nodelist))),))
    elif isinstance(node, LatexEnvironmentNode):
        yield _matrix(node)
    elif isinstance(node, LatexSpecialsNode):
        yield Node("atom", node.specials_chars)
    else:
        yield from _macro(node)


def _macro(node: LatexMacroNode) -> Iterator[Node]:
    name, arguments = node.macroname, [each for each in (node.nodeargd.argnlist if node.nodeargd else []) if each]
    inside = [_inside(argument) for argument in arguments]
    if name in ("frac", "tfrac", "dfrac"):
        yield Node("frac", "", (_bare(inside[0]), _bare(inside[1])))
    elif name == "sqrt":
        yield Node("sqrt", "", (inside[-1],))
    elif name in ACCENTS:
        yield Node("accent", name, (inside[0],))
    elif name in ("text", "mathrm", "operatorname", "textbf", "mathbf"):
        words = re.finditer(r"(\s*)([A-Za-z]+(?:[-.][A-Za-z]+)*\d*|\d+(?:\.\d+)?|[^\s])", _plain(arguments[0]))
        yield from (Node("atom", word[2], (), bool(word[1])) for word in words)
    elif name in DELIMITERS:
        yield Node("atom", DELIMITERS[name][0] + ("open" if DELIMITERS[name][1] else "close"))
    elif name not in SPACES and name not in SIZES:
        yield Node("atom", _sign(node))


def _sign(node: LatexMacroNode) -> str:
    """The characters of a macro.

    Raises  ValueError where there are none
    """
    if node.macroname in FUNCTIONS:
        return str(node.macroname)
    sign = SIGNS.get(node.macroname) or LatexNodes2Text().node_to_text(node).strip()
    if not sign:
        raise ValueError(f"\\{node.macroname} has no characters: add it to latex.SIGNS or latex.SPACES")
    return str(sign)


def _plain(argument: Any) -> str:
    nodes = argument.nodelist if isinstance(argument, LatexGroupNode) else [argument]
    return "".join(node.chars if isinstance(node, LatexCharsNode) else " " for node in nodes)


def _inside(argument: Any) -> tuple[Node, ...]:
    return _grouped(list(_tokens(argument.nodelist if isinstance(argument, LatexGroupNode) else [argument])))


def _bare(part: tuple[Node, ...]) -> tuple[Node, ...]:
    """A part of a fraction without round brackets around all of it: it gets its own where it needs them."""
    while len(part) == 1 and part[0].kind == "group" and part[0].text == "(":
        part = part[0].parts[0]
    return part


def _matrix(node: LatexEnvironmentNode) -> Node:
    """Row by row, as a list of lists: [[a, b], [c, d]]."""
    rows: list[list[Node]] = [[]]
    apart = False
    for child in node.nodelist:
        if isinstance(child, LatexSpecialsNode) and child.specials_chars == "&":
            rows[-1].append(Node("atom", ","))
            apart = True
        elif isinstance(child, LatexMacroNode) and child.macroname == "\\":
            rows.append([])
        else:
            tokens = list(_tokens([child]))
            rows[-1] += [replace(token, spaced=token.spaced or apart) for token in tokens[:1]] + tokens[1:]
            apart = apart and not tokens
    inside: list[Node] = []
    for row in rows:
        inside += [Node("atom", ",")] * bool(inside) + [Node("group", "[", (_grouped(row),), bool(inside))]
    return Node("group", "[", (tuple(inside),))


def _grouped(tokens: list[Node]) -> tuple[Node, ...]:
    """Brackets closed over what they hold, and scripts joined to what they stand at."""
    found: list[Node] = []
    tokens = tokens[::-1]
    while tokens:
        _take(tokens, found)
    return tuple(found)


def _take(tokens: list[Node], found: list[Node]) -> None:
    """Move one node from the tokens, last first, to what was found."""
    token = tokens.pop()
    if token.kind == "atom" and token.text in ("_", "^"):
        found.append(_script(found.pop(), token.text, tokens))
    elif token.kind == "atom" and token.text == "'":
        base = found.pop()
        found.append(Node("prime", "", ((base,),), base.spaced))
    elif token.kind == "braces":
        found += token.parts[0]
    elif token.kind == "atom" and (sign := token.text.removesuffix("open")) in OPENING and token.text != "|":
        inside: list[Node] = []
        while tokens and tokens[-1].text not in (OPENING[sign], f"{OPENING[sign]}close"):
            _take(tokens, inside)
        if tokens:
            tokens.pop()
        found.append(Node("group", sign, (tuple(inside),), token.spaced))
    elif token.kind == "frac" and found and _is_function(found[-1]):
        found.append(Node("group", "(", ((token,),)))  # ln(p/q): its slash is not mistaken for one after the logarithm
    else:
        found.append(token)


def _script(base: Node, sign: str, tokens: list[Node]) -> Node:
    raised = tokens.pop()
    if raised.kind == "atom" and raised.text[0].isalnum() and raised.text.isascii() and len(raised.text) > 1:
        tokens.append(Node("atom", raised.text[1:], (), False))  # LaTeX raises one letter or digit
        raised = Node("atom", raised.text[0])
    content = raised.parts[0] if raised.kind == "braces" else (raised,)
    return Node("sub" if sign == "_" else "sup", "", ((base,), content), base.spaced)


def _base(node: Node) -> Node:
    """What scripts stand at."""
    while node.kind in ("sub", "sup", "prime"):
        node = node.parts[0][0]
    return node


def _is_function(node: Node) -> bool:
    return _base(node).kind == "atom" and _base(node).text in FUNCTIONS


def written(nodes: Sequence[Node]) -> str:
    """A sequence as text: factors apart by spaces, brackets tight where the source has them so."""
    text = ""
    for place, node in enumerate(nodes):
        before = nodes[place - 1] if place else None
        text += (" " if before is not None and _apart(nodes, place) else "") + _one(node)
    return text


def _apart(nodes: Sequence[Node], place: int) -> bool:
    """Whether a space stands before a node."""
    before, node = nodes[place - 1], nodes[place]
    if node.kind == "atom" and node.text in (",", ";", ":", "!", "."):
        return False
    if before.kind == "atom" and before.text in (",", ";", ":"):
        return node.spaced or before.text != ","
    first = place == 1 or (nodes[place - 2].kind == "atom" and nodes[place - 2].text in (*BINARY, ",", "(", "∑"))
    if (
        before.kind == "atom"
        and before.text in (PREFIX if place > 1 else BINARY.replace("|", ""))
        and (first or before.text in "∂∇")
    ):
        return False
    if before.kind == "atom" and before.text == "∂":
        return False
    if before.kind == "frac" or _base(node).kind != "group":
        return True
    return node.spaced or (before.kind == "atom" and before.text in BINARY)


def _one(node: Node) -> str:
    inside = [written(part) for part in node.parts]
    match node.kind:
        case "frac":
            return "/".join(
                text if _is_factor(part) else f"({text})" for text, part in zip(inside, node.parts, strict=True)
            )
        case "sqrt":
            return f"√({inside[0]})"
        case "group":
            return f"{node.text}{inside[0]}{OPENING[node.text]}"
        case "prime":
            return f"{inside[0]}'"
        case "accent":
            one = len(node.parts[0]) == 1 and node.parts[0][0].kind == "atom" and len(inside[0]) == 1
            return inside[0] + ACCENTS[node.text] if one else f"{node.text}({inside[0]})"
        case "sub" | "sup":
            sign, base = ("_" if node.kind == "sub" else "^"), inside[0]
            base = f"({base})" if node.parts[0][0].kind in ("frac",) else base
            return f"{base}{sign}{inside[1] if len(inside[1]) == 1 else f'{{{inside[1]}}}'}"
    return node.text


def _is_factor(part: Sequence[Node]) -> bool:
    """Whether a part of a fraction needs no brackets: one node, ∂ and one, or a function right before its bracket."""
    if len(part) == 2 and part[0].kind == "atom" and part[0].text == "∂" and part[1].kind != "frac":
        return True
    called = len(part) == 2 and not part[1].spaced and _base(part[1]).kind == "group" and _base(part[0]).kind == "atom"
    return (len(part) == 1 and part[0].kind != "frac") or (called and not _apart(part, 1))
