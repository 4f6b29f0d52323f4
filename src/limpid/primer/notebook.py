"""A chapter or an exercise as the last line of a notebook cell, without the widget: HTML that needs no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.html import text, titled
from limpid.primer.html import html

if TYPE_CHECKING:
    from limpid.primer.chapter import Chapter
    from limpid.primer.posed import Asking

STYLE = "max-width:46rem;line-height:1.5;--muted:#888;--first:#2f6fb0;--second:#b0592f"
"""On a light or a dark page: figures take the text's colour, and these where they tell two things apart."""
AS_IS = "white-space:pre-wrap;font-family:monospace"


def chapter_html(read: Chapter) -> str:
    """All of a chapter: formulas as MathML, figures as SVG, solutions folded."""
    title = f"<h2>{read.number} {text(read.title)}</h2><p>{text(read.purpose)} About {read.minutes} min.</p>"
    return f'<div style="{STYLE}">{title}{"".join(html(read))}</div>'


def asked_html(asked: Asking) -> str:
    """A question, its hints and its solution, folded, and how it is answered."""
    written = text("\n".join(asked.looks.values()))
    trace = f'<details><summary>Trace</summary><p style="{AS_IS}">{written}</p></details>' if written else ""
    hints = "".join(f"<li>{text(hint)}</li>" for hint in asked.hints)
    return titled(
        asked.said,
        f'<p style="{AS_IS}">{text(asked.question)}</p>',
        "<p><code>.judged(&quot;your answer&quot;)</code> says what an answer is worth.</p>",
        trace,
        f"<details><summary>Hints</summary><ol>{hints}</ol></details>",
        f'<details><summary>Solution</summary><p style="{AS_IS}">{text(asked.solution)}</p></details>',
    )
