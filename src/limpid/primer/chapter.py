"""A chapter: Markdown in which numbers are computed, read into parts that a terminal, a page and a book can show.

`<< dot(a, b) >>` is computed when the chapter is read, `<% set a = [3, 4] %>` names numbers, `$…$` is mathematics.
A block fenced as `example NAME` is an exercise solved with the numbers that it holds, `exercise NAME` one to be
tried, `figure NAME` a picture drawn with the settings that it holds.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from limpid.notebook import html_by, mimebundle
from limpid.primer.exercise import Exercise, Numbers
from limpid.primer.exercises import EXERCISES
from limpid.primer.values import computed

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

CHAPTERS = (
    "notation", "vectors", "similarity", "matrices", "logarithms", "probability", "softmax", "cross-entropy",
    "derivatives", "chain-rule", "gradient-descent", "variance", "width", "attention", "residual-stream", "positions",
    "optimizers", "precision", "scaling", "attention-variants", "alignment",
)  # fmt: skip
"""In the order in which they are read: nothing is used before the chapter that explains it."""
WORDS_PER_MINUTE, MINUTES_PER_EXERCISE = 180, 1.5
"""Of a reader who checks each number."""
COMPUTED = re.compile(r"<<.*?>>", re.DOTALL)
PRACTICE = re.compile(r"^```exercise (\S+)", re.MULTILINE)
NOT_READ = re.compile(r"```.*?```|<%.*?%>|\$\$.*?\$\$", re.DOTALL)
"""Blocks and settings, which are no words of the text."""


class Text(NamedTuple):
    """Paragraphs, headings, lists and tables, as Markdown with `$…$`."""

    markdown: str


class Equation(NamedTuple):
    """A line of its own."""

    latex: str


class Example(NamedTuple):
    """An exercise that is solved, with these numbers."""

    exercise: Exercise
    numbers: Numbers

    @property
    def question(self) -> str:
        return self.exercise.question(self.numbers)

    @property
    def solution(self) -> str:
        return self.exercise.solved(self.numbers)


class Practice(NamedTuple):
    """An exercise to be tried."""

    exercise: Exercise


class Figure(NamedTuple):
    """A picture by its name, drawn with these settings."""

    name: str
    settings: Mapping[str, Any]


Part = Text | Equation | Example | Practice | Figure


class Symbol(NamedTuple):
    """What a sign means, from the chapter on that introduces it."""

    latex: str
    says: str


@dataclass(frozen=True)
class Chapter:
    """One chapter; its numbers are computed when its parts are asked for."""

    name: str
    title: str
    purpose: str
    """Why a model needs it: one sentence."""
    opens: str
    """The entry of a recorded step where it happens."""
    symbols: tuple[Symbol, ...]
    source: str
    """Markdown with what is to be computed."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(_parts(computed(self.source)))

    _repr_html_ = html_by("limpid.primer.notebook", "chapter_html")
    _repr_mimebundle_ = mimebundle

    @property
    def number(self) -> int:
        return CHAPTERS.index(self.name)

    @property
    def tried(self) -> tuple[str, ...]:
        """Names of the exercises that stand in it."""
        return tuple(PRACTICE.findall(self.source))

    @property
    def minutes(self) -> int:
        """How long reading takes, exercises included."""
        words = len(NOT_READ.sub("", COMPUTED.sub("0", self.source)).split())
        return round(words / WORDS_PER_MINUTE + MINUTES_PER_EXERCISE * len(self.tried)) or 1


@cache
def chapter(name: str) -> Chapter:
    """A chapter by its name."""
    source = (files("limpid.primer") / "chapters" / f"{name}.md").read_text(encoding="utf-8")
    _, head, body = source.split("+++\n", 2)
    given = tomllib.loads(head)
    symbols = tuple(Symbol(*one) for one in given.get("symbols", {}).items())
    return Chapter(name, given["title"], given["purpose"], given["opens"], symbols, body)


def known_symbols(name: str) -> tuple[Symbol, ...]:
    """The signs that have been explained by the end of a chapter, those of later chapters first."""
    order = CHAPTERS[: CHAPTERS.index(name) + 1]
    return tuple({symbol.latex: symbol for one in order for symbol in chapter(one).symbols}.values())[::-1]


@cache
def reader() -> MarkdownIt:
    """Markdown as chapters are written in it: CommonMark with tables and mathematics between dollars."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    return MarkdownIt("commonmark", {"xhtmlOut": True}).enable("table").use(dollarmath_plugin, double_inline=False)


def _parts(markdown: str) -> Iterator[Part]:
    """Text between the blocks, and the blocks."""
    lines, begun = markdown.splitlines(keepends=True), 0

    def text(stop: int) -> Iterator[Text]:
        if (found := "".join(lines[begun:stop])).strip():
            yield Text(found.strip())

    for token in reader().parse(markdown):
        kind, _, name = token.info.partition(" ")
        if token.level or token.map is None or not (token.type == "math_block" or kind in BLOCKS):
            continue
        yield from text(token.map[0])
        begun = token.map[1]
        if token.type == "math_block":
            yield Equation(token.content.strip())
        else:
            yield BLOCKS[kind](name, token.content)
    yield from text(len(lines))


def _example(name: str, content: str) -> Example:
    exercise = EXERCISES[name]
    numbers = tomllib.loads(content)
    return Example(exercise, {key: _number(numbers[key]) for key in exercise.first})


def _number(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value


BLOCKS: dict[str, Callable[[str, str], Part]] = {
    "example": _example,
    "exercise": lambda name, _: Practice(EXERCISES[name]),
    "figure": lambda name, content: Figure(name, tomllib.loads(content)),
}
