"""Which signs an equation has, and what they mean: for those who hover, and for those who cannot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape

from limpid.latex import readable
from limpid.mathml import mathml
from limpid.primer.chapter import Chapter, Equation, Symbol, known_symbols

INLINE = re.compile(r"\$([^$]+)\$")
SIGN = re.compile(r"<mi[^>]*>[^<]+</mi>|<mo[^>]*>&#x0(?:2211|2202|2207|220F|2225|2016);</mo>")
"""Letters and words, and the operators that have to be explained: Σ, ∂, ∇, Π, bars."""


def in_characters(text: str) -> str:
    """Text whose mathematics is in characters that a terminal has."""
    return INLINE.sub(lambda found: readable(found[1]), text)


@cache
def fragment(latex: str) -> str:
    """A sign as it stands within an equation's MathML."""
    inner = mathml(latex, "inline").partition(">")[2].removesuffix("</math>")
    return inner.removeprefix("<mrow>").removesuffix("</mrow>")


def used(latex: str, symbols: Sequence[Symbol]) -> list[Symbol]:
    """The symbols that an equation has, in their order there."""
    by_fragment = {fragment(one.latex): one for one in symbols}
    return list(dict.fromkeys(by_fragment[found[0]] for found in _found(latex, by_fragment)))


def introduced(chapter: Chapter, part: Equation) -> list[Symbol]:
    """The signs of this chapter that no equation before has had."""
    known = known_symbols(chapter.name)
    before = [one for one in chapter.parts[: chapter.parts.index(part)] if isinstance(one, Equation)]
    seen = {symbol for one in before for symbol in used(one.latex, known)}
    return [one for one in used(part.latex, known) if one in chapter.symbols and one not in seen]


def explained(latex: str, symbols: Sequence[Symbol], display: str = "block") -> str:
    """MathML whose signs carry their meanings, as `data-says`."""
    by_fragment = {fragment(one.latex): one for one in symbols}
    if not by_fragment:
        return mathml(latex, display)

    def carrying(found: re.Match[str]) -> str:
        return f'<mrow data-says="{escape(in_characters(by_fragment[found[0]].says))}">{found[0]}</mrow>'

    return _any_of(by_fragment).sub(carrying, mathml(latex, display))


def unexplained(latex: str, symbols: Sequence[Symbol]) -> list[str]:
    """Signs that no symbol explains."""
    by_fragment = {fragment(one.latex): one for one in symbols}
    made = mathml(latex, "inline")
    rest = _any_of(by_fragment).sub("", made) if by_fragment else made
    return [re.sub("<[^>]+>", "", one) for one in SIGN.findall(rest)]


def _found(latex: str, by_fragment: Iterable[str]) -> Iterable[re.Match[str]]:
    return _any_of(by_fragment).finditer(mathml(latex, "inline")) if by_fragment else ()


def _any_of(fragments: Iterable[str]) -> re.Pattern[str]:
    """The longest first: ‖v‖ before v."""
    return re.compile("|".join(re.escape(one) for one in sorted(fragments, key=len, reverse=True)))
