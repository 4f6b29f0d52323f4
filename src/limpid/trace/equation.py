"""LaTeX in characters that a terminal has."""

from __future__ import annotations

from functools import cache

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec
from pylatexenc.latex2text import get_default_latex_context_db as written_macros
from pylatexenc.latexwalker import LatexWalker
from pylatexenc.latexwalker import get_default_latex_context_db as read_macros
from pylatexenc.macrospec import std_macro


@cache
def readable(latex: str) -> str:
    """An equation as one line of text."""
    reading, writing = read_macros(), written_macros()
    reading.add_context_category("ours", macros=[std_macro("tfrac", "{{")], prepend=True)
    writing.add_context_category("ours", macros=[MacroTextSpec("tfrac", "%s/%s")], prepend=True)
    text = LatexNodes2Text(latex_context=writing, keep_braced_groups=True, keep_braced_groups_minlen=3)
    nodes = LatexWalker(latex, latex_context=reading).get_latex_nodes()[0]
    return " ".join(str(text.nodelist_to_text(nodes)).split())
