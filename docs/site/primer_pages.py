"""The primer's chapters as pages, in the order in which they are read, their numbers computed as the site is built."""

from __future__ import annotations

import re

from limpid.primer.chapter import CHAPTERS, Chapter, Practice, Text, chapter
from limpid.primer.exercises import EXERCISES
from limpid.primer.html import html
from limpid.primer.own.step import DRAWN
from prose import inline

HEAD = """# Learn

The mathematics of a language model, from a list of numbers to attention and beyond, by the code that trains: every
number in the text is computed by it when these pages are built. Each chapter takes less than a quarter of an hour and
uses nothing that was not explained before. Point at a sign, or reach its formula by Tab, to see what it means.

```sh
limpid learn                                # the same chapters in the terminal, and what you have answered
limpid learn vectors                        # one of them
limpid learn length                         # an exercise, with other numbers each time; a wrong answer is named
limpid learn length --numbers 'v = [3, 4]'  # solved line by line with your own
limpid learn broken-step                    # longer: find the operation of a printed step that went wrong
limpid learn derive                         # type a backward pass; finite differences of the forward pass judge it
limpid learn --due                          # what you are about to forget, asked again
limpid learn --sheet sheet.html             # to print; answers and likely slips in sheet-key.html
```

[Beside d2l.ai, 3Blue1Brown, Brilliant, Khan Academy and Transformer Explainer's textbook](../textbooks.md), point by
point.

"""


def pages() -> dict[str, str]:
    """Markdown by address."""
    return {"learn/index.md": _index(), **{f"learn/{name}.md": _page(chapter(name)) for name in CHAPTERS}}


def _index() -> str:
    rows = [f"| [{inline(one.title)}]({one.name}.md) | {inline(one.purpose)} | {one.minutes} min |" for one in _all()]
    count = f"{len(rows)} chapters, {len(EXERCISES)} exercises.\n"
    return "\n".join([HEAD + count, "| chapter | why a model needs it | |\n|---|---|---|", *rows, ""])


def _all() -> list[Chapter]:
    return [chapter(name) for name in CHAPTERS]


def _page(read: Chapter) -> str:
    """Headings as Markdown, so that contents and search have them; the rest as it is, out of Markdown's hands."""
    parts = [
        _with_headings(made) if isinstance(part, Text) else _whole(made)
        for part, made in zip(read.parts, html(read), strict=True)
    ]
    about = f'<p class="source">{inline(read.purpose)} About {read.minutes} min.</p>'
    name = inline(read.opens)
    asked = [part.exercise.name for part in read.parts if isinstance(part, Practice) and part.exercise.name in DRAWN]
    own = f"; exercises with numbers of it: <code>limpid learn {asked[0]} --of last</code>" if asked else ""
    here = (
        f"<p>In a recorded step: <code>limpid explain --worked {name}</code>; in one of yours, after "
        f"<code>limpid train</code>: <code>limpid explain last {name}</code>{own}</p>"
    )
    return "\n\n".join([f"---\ntitle: {read.title}\n---", f"# {read.title}", about, *parts, here, ""])


def _with_headings(made: str) -> str:
    blocks = []
    for piece in re.split(r"(<h[1-6]>.*?</h[1-6]>)", made):
        if found := re.fullmatch(r"<h([1-6])>(.*)</h\1>", piece):
            blocks.append(f"{'#' * int(found[1])} {found[2]}")
        elif piece.strip():
            blocks.append(f'<div class="primer">{_whole(piece)}</div>')
    return "\n\n".join(blocks)


def _whole(made: str) -> str:
    """Without a blank line, at which Markdown would begin again."""
    return re.sub(r"\n\s*\n", "\n", made.strip())
