"""A chapter as HTML: of the page, of a file of its own, of the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape

from limpid.primer.chapter import (
    Chapter,
    Equation,
    Example,
    Figure,
    Part,
    Practice,
    Symbol,
    Text,
    known_symbols,
    reader,
)
from limpid.primer.figures import as_svg
from limpid.primer.symbols import explained, introduced


def html(chapter: Chapter) -> list[str]:
    """Each part, in its order."""
    symbols = known_symbols(chapter.name)
    return [_part(chapter, part, symbols) for part in chapter.parts]


def _part(chapter: Chapter, part: Part, symbols: Sequence[Symbol]) -> str:
    match part:
        case Text():
            return _text(part.markdown, symbols)
        case Equation():
            return f'<div class="equation">{explained(part.latex, symbols)}{_where(introduced(chapter, part))}</div>'
        case Example():
            asked, solved = _lines(part.question), _lines(part.solution)
            return f'<div class="example"><p>{asked}</p><p>{solved}</p></div>'
        case Practice(exercise):
            asked = _lines(exercise.question(exercise.first))
            solved = _lines(exercise.solved(exercise.first))
            return (
                f'<div class="exercise" data-exercise="{exercise.name}"><p>{asked}</p>'
                f"<details><summary>Solution</summary><p>{solved}</p></details>"
                f"<p><code>limpid learn {exercise.name}</code></p></div>"
            )
        case Figure():
            settings = escape(json.dumps(part.settings))
            drawn = as_svg(part.name, part.settings)
            return f'<figure data-figure="{part.name}" data-settings="{settings}">{drawn}</figure>'


def _text(markdown: str, symbols: Sequence[Symbol]) -> str:
    read = reader()
    tokens = read.parse(markdown)
    for token in tokens:
        if "right" in str(token.attrs.pop("style", "")):  # which the page's policy forbids
            token.attrSet("class", "number")
        for child in token.children or ():
            if child.type == "math_inline":
                child.type, child.content = "html_inline", explained(child.content, symbols, "inline")
    made: str = read.renderer.render(tokens, read.options, {})
    return re.sub("<th[^>]*></th>", "<td></td>", made)  # a corner heads nothing


def _where(symbols: Sequence[Symbol]) -> str:
    """What they mean."""
    said = [f"<dt>{explained(one.latex, (), 'inline')}</dt><dd>{_text(one.says, ())}</dd>" for one in symbols]
    return f"<dl>{''.join(said)}</dl>" if said else ""


def _lines(text: str) -> str:
    """As they stand, those that go on indented."""
    indented = re.sub("^ +", lambda space: "\u00a0" * len(space[0]), escape(text), flags=re.MULTILINE)
    return indented.replace("\n", "<br/>")
