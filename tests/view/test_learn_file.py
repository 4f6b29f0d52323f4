"""All chapters as one file, opened from the disk."""

from html import escape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.view.canned import beyond_the_edge, serious

from limpid.cli import main
from limpid.primer.chapter import CHAPTERS, chapter


@pytest.fixture
def file(bundle: None, tmp_path: Path) -> Path:
    assert main(["learn", "--html", str(tmp_path / "primer.html")]) == 0
    return tmp_path / "primer.html"


def test_it_is_all_there_and_needs_nothing_else(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for name in CHAPTERS:
        assert (
            f'<article class="learn" id="{name}"><h1>{chapter(name).number} {escape(chapter(name).title)}</h1>' in text
        )
        assert f'href="#{name}"' in text
    assert 'src="http' not in text
    assert "<link" not in text
    assert 'style="' not in text


def test_it_reads_on_a_screen_a_phone_and_paper(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    page.get_by_role("link", name="Vectors").click()
    expect(page.get_by_role("heading", name="1 Vectors")).to_be_in_viewport()
    page.locator("#vectors [data-says='the first entry of the vector v']").first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("the first entry of the vector v")
    solution = page.locator("[data-exercise='length'] details").first
    expect(solution).not_to_have_attribute("open", "")
    solution.locator("summary").press("Enter")
    expect(solution).to_contain_text("= 7")
    assert serious(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert beyond_the_edge(page) == []
    page.emulate_media(media="print")
    assert page.locator("button:visible, input:visible").count() == 0


def test_solutions_are_open_on_paper_and_folded_again(page: Page, file: Path) -> None:
    page.goto(file.as_uri())
    page.locator("#softmax summary").first.click()
    folded, solved = page.locator("details:not([open])"), page.locator("#vectors details p").first
    before = folded.count()
    assert before > 20
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(folded).to_have_count(0)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(folded).to_have_count(before)
    page.emulate_media(media="print")  # as where no script runs
    assert solved.evaluate("(one) => one.checkVisibility({contentVisibilityAuto: true})")


def test_it_takes_no_other_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "vectors", "--html", "x.html"]) == 2
    assert "leave out vectors" in capsys.readouterr().err
    assert main(["learn", "--seed", "3", "--html", "x.html"]) == 2
