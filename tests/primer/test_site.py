"""The chapters as pages of the documentation: whole, and out of Markdown's hands."""

import functools
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "docs" / "site"))
import primer_pages
from limpid.primer.chapter import CHAPTERS, Equation, Figure, Practice, chapter
from limpid.primer.html import html

pages = functools.cache(primer_pages.pages)


def test_every_chapter_has_its_page_and_stands_in_the_index() -> None:
    assert list(pages()) == ["learn/index.md", *(f"learn/{name}.md" for name in CHAPTERS)]
    links = re.findall(r"\]\(([\w-]+)\.md\)", pages()["learn/index.md"])
    assert links == list(CHAPTERS)


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_part_is_lost_and_no_markup_is_read_as_markdown(name: str) -> None:
    page, read = pages()[f"learn/{name}.md"], chapter(name)
    for kind, mark in ((Equation, 'class="equation"'), (Practice, 'class="exercise"'), (Figure, "<figure ")):
        assert page.count(mark) == sum(isinstance(part, kind) for part in read.parts)
    assert page.count("<math") == "".join(html(read)).count("<math")
    headings = re.findall(r"<h([1-6])>", "".join(html(read)))
    assert len(re.findall(r"^##+ ", page, re.MULTILINE)) == len(headings)
    for block in page.strip().split("\n\n")[1:]:
        assert re.match(r"#+ |<(div|figure|p)\b", block), block[:80]
        assert block.count("<div") == block.count("</div>")
