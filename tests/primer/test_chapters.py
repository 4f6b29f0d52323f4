"""Every chapter: nothing before its explanation, no number typed, readable in a terminal and as HTML."""

import io
import re
import xml.etree.ElementTree as xml
from functools import cache

import pytest
from rich.cells import cell_len

from limpid.cli import main
from limpid.console import Console
from limpid.primer.chapter import CHAPTERS, Chapter, Equation, Example, Figure, Practice, Text, chapter, known_symbols
from limpid.primer.exercises import EXERCISES
from limpid.primer.figures import FIGURES
from limpid.primer.html import html
from limpid.primer.own.step import DRAWN
from limpid.primer.symbols import INLINE, fragment, unexplained, used
from limpid.primer.terminal import show
from limpid.tracing.worked import opened

LONGEST = 15
"""Minutes that a chapter may take."""


def equations(read: Chapter) -> list[tuple[str, bool]]:
    """Every formula in the order of reading, and whether it stands within text."""
    found: list[tuple[str, bool]] = []
    for part in read.parts:
        if isinstance(part, Text):
            found += [(latex, True) for latex in INLINE.findall(part.markdown)]
        elif isinstance(part, Equation):
            found.append((part.latex, False))
    return found


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_sign_is_used_before_its_explanation(name: str) -> None:
    read, known = chapter(name), known_symbols(name)
    assert not {latex: signs for latex, _ in equations(read) if (signs := unexplained(latex, known))}
    first = {symbol: in_text for latex, in_text in reversed(equations(read)) for symbol in used(latex, known)}
    late = [symbol.latex for symbol in read.symbols if not first.get(symbol, False)]
    assert not late, f"not introduced by a sentence before an equation has them, or never used: {late}"


def test_a_sign_between_two_sides_stands_in_a_sentence_before_an_equation_has_it() -> None:
    """Inequalities, arrows and infinity are no letters, and so no chapter's list of symbols has them."""
    first: dict[str, bool] = {}
    for name in CHAPTERS:
        for latex, in_text in equations(chapter(name)):
            for sign in re.findall(r"\\(?:le|ge|approx|Rightarrow|propto|infty)(?![a-z])", latex):
                first.setdefault(sign, in_text)
    assert len(first) == 6
    assert all(first.values()), first


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_number_is_typed(name: str) -> None:
    from importlib.resources import files

    source = (files("limpid.primer") / "chapters" / f"{name}.md").read_text(encoding="utf-8").split("+++\n", 2)[2]
    prose = re.sub(r"```.*?```|<<.*?>>|<%.*?%>|\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\]\([^)]*\)", "", source, flags=re.DOTALL)
    assert not re.findall(r"\S*\d\S*", prose)
    decimals = [
        found for found in re.findall(r"\$([^$]*)\$", re.sub(r"<<.*?>>", "", source)) if re.search(r"\d\.\d", found)
    ]
    assert not decimals


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_has_its_exercises_and_ends_in_a_step(name: str) -> None:
    read = chapter(name)
    tried = [part.exercise.name for part in read.parts if isinstance(part, Practice)]
    assert sorted(tried) == sorted(one.name for one in EXERCISES.values() if one.chapter == name)
    assert read.minutes <= LONGEST
    assert all(part.name in FIGURES for part in read.parts if isinstance(part, Figure))
    assert read.opens in step_names()


@cache
def step_names() -> frozenset[str]:
    with opened() as trace:
        return frozenset(trace.names())


@pytest.mark.parametrize("name", CHAPTERS)
def test_it_reads_in_a_terminal_and_as_html(name: str) -> None:
    read, printed = chapter(name), io.StringIO()
    show(read, Console(file=printed, width=80))
    text = printed.getvalue()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert not re.search(r"<<|>>|\$|\\[a-z]+", text), text
    made = "".join(html(read))
    assert not re.search(r"<<|&lt;&lt;|\$|<merror|<th[^>]*></th>", made)
    assert len(xml.fromstring(f"<div>{made}</div>").findall(".//math")) == made.count("<math")
    for part in read.parts:
        if isinstance(part, Example):
            assert part.question.split("\n")[0][:30] in text


def test_every_exercise_belongs_to_a_chapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*CHAPTERS, *EXERCISES))
    assert main(["learn", "vectors"]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[said.index("‖v‖ = √(3² + 4²)") :][:3] == ["‖v‖ = √(3² + 4²)", "= √25", "= 5"]
    assert main(["learn", "vectors", "--seed", "3"]) == 2
    assert "--seed is 3, and vectors is a chapter" in capsys.readouterr().err


def test_a_chapter_ends_at_a_step_and_at_an_exercise_with_its_numbers() -> None:
    for name in CHAPTERS:
        printed = io.StringIO()
        show(chapter(name), Console(file=printed, width=100))
        last = printed.getvalue().split("In a recorded step: ")[1]
        asked = [part.exercise.name for part in chapter(name).parts if isinstance(part, Practice)]
        assert f"limpid explain last {chapter(name).opens}" in last
        assert bool(set(asked) & DRAWN.keys()) == ("An exercise with numbers of it" in last), name


def test_a_sign_is_found_in_a_longer_one_first() -> None:
    symbols = [one for one in known_symbols("vectors") if one.latex in (r"\lVert v \rVert", "v")]
    assert [one.latex for one in used(r"\lVert v \rVert + v", symbols)] == [r"\lVert v \rVert", "v"]
    assert unexplained(r"\lVert w \rVert", symbols) == ["&#x02016;", "w", "&#x02016;"]
    assert fragment("v_1") == "<msub><mi>v</mi><mn>1</mn></msub>"
