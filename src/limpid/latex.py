"""LaTeX in characters that a terminal has."""

from __future__ import annotations

import re
from functools import cache

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec
from pylatexenc.latex2text import get_default_latex_context_db as written_macros
from pylatexenc.latexwalker import LatexWalker
from pylatexenc.latexwalker import get_default_latex_context_db as read_macros
from pylatexenc.macrospec import std_macro

FUNCTIONS = ("sin", "cos", "log", "ln", "exp", "max", "min", "tanh", "det", "arg")
SPACED = {"sum": "∑", "prod": "∏", "leftarrow": "←", "sim": "∼", "odot": "⊙", "in": "∈"}


@cache
def readable(latex: str) -> str:
    """An equation as one line of text."""
    reading, writing = read_macros(), written_macros()
    reading.add_context_category("ours", macros=[std_macro("tfrac", "{{")], prepend=True)
    words = {name: f" {name}" for name in FUNCTIONS} | {name: f" {sign}" for name, sign in SPACED.items()}
    macros = [MacroTextSpec(name, shown) for name, shown in words.items()]
    macros += [MacroTextSpec(name, "%s/%s ") for name in ("frac", "tfrac")]
    writing.add_context_category("ours", macros=macros, prepend=True)
    text = LatexNodes2Text(
        latex_context=writing,
        keep_braced_groups=True,
        keep_braced_groups_minlen=3,
        strict_latex_spaces="based-on-source",
    )
    latex = re.sub(r"\\operatorname\*?\{(\w+)\}", r"\\text{\1}", latex)
    nodes = LatexWalker(latex, latex_context=reading).get_latex_nodes()[0]
    line = " ".join(str(text.nodelist_to_text(nodes)).split())
    return re.sub(r" (?=[),])|(?<=[({]) ", "", line)
