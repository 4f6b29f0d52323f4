"""Equations as text: every one in the book is read again, and has the structure of its LaTeX."""

from __future__ import annotations

import re
from typing import Any

import pytest

from limpid.doctor.rules import RULES
from limpid.equations.catalogue import entries
from limpid.latex import OPENING, readable, tree

LINES = sorted({line for entry in entries() for line in (entry.equation, *entry.adjoint) if line})
MARKS = {"\u0305": "bar", "\u0302": "hat", "\u0303": "tilde", "\u0307": "dot"}
TOKEN = re.compile(r"(\s*)([A-Za-z]+(?:[-.][A-Za-z]+)*\d*|\d+(?:\.\d+)?|.)([\u0300-\u036f]?)", re.DOTALL)


class Reader:
    """Reads printed equations by the rules that latex.py states, knowing nothing of how they were printed."""

    def __init__(self, text: str) -> None:
        self.tokens = [(bool(space), word, mark) for space, word, mark in TOKEN.findall(text) if word.strip()]
        self.place = 0

    def peek(self, offset: int = 0) -> str:
        return self.tokens[self.place + offset][1] if self.place + offset < len(self.tokens) else ""

    def tight(self) -> bool:
        return self.place < len(self.tokens) and not self.tokens[self.place][0]

    def sequence(self, closing: str = "") -> tuple[Any, ...]:
        found: list[Any] = []
        while self.place < len(self.tokens) and (not closing or self.peek() != closing):
            run = self.run()
            if self.peek() == "/" and self.tight() and not self.tokens[self.place + 1][0]:
                self.place += 1
                found.append(("frac", "", bare(run), bare(self.run())))
            else:
                found += run
        return tuple(found)

    def run(self) -> tuple[Any, ...]:
        """One factor, and the bracket that stands right behind it; ∂, and what does."""
        first = self.factor()
        if first == ("atom", "∂") and self.tight():
            return (first, self.factor())
        calls = base_of(first)[0] == "atom" and base_of(first)[1] not in "-±∓∂∇=,;/+|"
        return (first, self.factor()) if calls and self.tight() and self.peek() in ("(", "[") else (first,)

    def factor(self) -> Any:
        _, word, mark = self.tokens[self.place]
        self.place += 1
        if word == "√":
            found: Any = ("sqrt", "", self.bracket("("))
        elif word in MARKS.values() and self.peek() == "(":
            found = ("accent", word, self.bracket("("))
        elif word in OPENING:
            self.place -= 1
            found = ("group", word, self.bracket(word))
        else:
            found = ("accent", MARKS[mark], (("atom", word),)) if mark else ("atom", word)
        while self.tight() and self.peek() in ("'", "_", "^"):
            sign = self.peek()
            self.place += 1
            if sign == "'":
                found = ("prime", "", (found,))
            else:
                raised = self.bracket("{") if self.peek() == "{" else (self.one(),)
                found = ("sub" if sign == "_" else "sup", "", (found,), raised)
        return found

    def one(self) -> Any:
        _, word, mark = self.tokens[self.place]
        self.place += 1
        return ("accent", MARKS[mark], (("atom", word),)) if mark else ("atom", word)

    def bracket(self, opening: str) -> tuple[Any, ...]:
        assert self.peek() == opening
        self.place += 1
        inside = self.sequence(OPENING[opening])
        assert self.peek() == OPENING[opening], "every bracket is closed"
        self.place += 1
        return inside


def base_of(node: Any) -> Any:
    while node[0] in ("sub", "sup", "prime"):
        node = node[2][0]
    return node


def bare(part: tuple[Any, ...]) -> tuple[Any, ...]:
    while len(part) == 1 and part[0][0] == "group" and part[0][1] == "(":
        part = part[0][2]
    return part


@pytest.mark.parametrize("latex", LINES)
def test_every_printed_equation_has_the_structure_of_its_latex(latex: str) -> None:
    assert Reader(readable(latex)).sequence() == tuple(node.shape() for node in tree(latex))


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{r_i - \operatorname{mean}(r)}{\operatorname{std}(r)}", "(r_i - mean(r))/std(r)"),
        (r"\frac{f(x + h) - f(x - h)}{2h}", "(f(x + h) - f(x - h))/(2 h)"),
        (r"\frac{1}{1 - \beta}", "1/(1 - β)"),
        (r"\tfrac12 (1 + \cos \pi (c t \bmod 1))", "1/2 (1 + cos π (c t mod 1))"),
        (r"\frac{2}{n_{in} + n_{out}}, \quad \frac{\sigma^2}{2L}", "2/(n_{in} + n_{out}), σ^2/(2 L)"),
        (r"\Bigl(h - \frac{1}{2\beta}\Bigr)^2", "(h - 1/(2 β))^2"),
        (r"\log_b \frac{p_{xy}}{p_x p_y}", "log_b(p_{xy}/(p_x p_y))"),
        (r"\frac{x \cdot y}{\lVert x \rVert \lVert y \rVert}", "(x · y)/(‖x‖ ‖y‖)"),
        (r"\bar{\phi(k)}_j", "bar(φ(k))_j"),
        (r"\beta \ln\tfrac{\pi(y)}{\pi_0(y)}", "β ln(π(y)/π_0(y))"),
        (r"\max(0, x)^2", "max(0, x)^2"),
        (r"\begin{pmatrix} a & -b \\ c_i & d \end{pmatrix} x", "[[a, -b], [c_i, d]] x"),
    ],
)
def test_brackets_stand_where_a_reader_needs_them(latex: str, text: str) -> None:
    assert readable(latex) == text


def test_what_is_lost_is_noticed() -> None:
    """The check of the whole book would fail on text that drops a bracket, a sign or a macro."""
    shape = tuple(node.shape() for node in tree(r"\frac{1 - a}{b} + c \bmod d"))
    for text in ("1 - a/b + c mod d", "(1 - a)/b + c d", "(1 - a)/b - c mod d", "(1 - a) / b + c mod d"):
        assert Reader(text).sequence() != shape
    with pytest.raises(ValueError, match="unheard"):
        readable(r"a \unheard b")


def test_every_equation_of_the_doctor_can_be_printed() -> None:
    for rule in RULES.values():
        if rule.equation:
            assert Reader(readable(rule.equation)).sequence() == tuple(node.shape() for node in tree(rule.equation))
