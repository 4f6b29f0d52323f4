"""The primer as one file that opens from the disk: every chapter, its signs explained, its solutions folded in."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path

from limpid.files import write_atomically
from limpid.primer.chapter import CHAPTERS, Chapter, chapter
from limpid.primer.html import html
from limpid.view import bundle
from limpid.view.file import POLICY

TITLE = "Learn it: the mathematics of a language model"


def write(file: Path) -> None:
    """Write the file.

    Raises  ConfigError where the page was not built
    """
    write_atomically(file, page().encode())


def page() -> str:
    """The file's text: it reads as it is, and with its script the signs speak and the figures move."""
    script = bundle.script("primer")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(digest=digest)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{bundle.style("primer")}</style>'
    chapters = [chapter(name) for name in CHAPTERS]
    inside = f"<main>{_contents(chapters)}{''.join(map(_chapter, chapters))}</main>"
    return bundle.document(head, f"<script>{script}</script>", title=TITLE, inside=inside)


def _contents(chapters: list[Chapter]) -> str:
    lines = "".join(
        f'<li value="{one.number}"><a href="#{one.name}">{escape(one.title)}</a> '
        f'<span class="quiet">{one.minutes} min</span><p>{escape(one.purpose)}</p></li>'
        for one in chapters
    )
    return (
        f'<nav class="learn" aria-label="contents"><h1>{TITLE}</h1>'
        "<p>Each chapter needs those before it alone. Rest on a sign of a formula, or reach it by Tab, to see what it "
        f'means.</p><ol class="chapters">{lines}</ol></nav>'
    )


def _chapter(read: Chapter) -> str:
    minutes = "1 minute" if read.minutes == 1 else f"{read.minutes} minutes"
    parts = "".join(f'<div class="part">{part}</div>' for part in html(read))
    return (
        f'<article class="learn" id="{read.name}"><h1>{read.number} {escape(read.title)}</h1>'
        f'<p>{escape(read.purpose)} <span class="quiet">About {minutes}.</span></p>{parts}'
        f"<p>In a recorded step: <code>limpid explain --worked {escape(read.opens)}</code></p></article>"
    )
