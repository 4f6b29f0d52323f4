"""The primer in the page: read, tried and moved with the pointer and with the keyboard."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from starlette.testclient import TestClient
from tests.view.canned import HOME, TIMEOUT, beyond_the_edge, everybody_reads, serious
from tests.view.folders import made_run

from limpid.primer.chapter import chapter
from limpid.primer.exercise import numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.progress import sittings
from limpid.primer.puzzles import PUZZLES
from limpid.tracing import worked

Open = Callable[[str], Page]


@pytest.fixture
def learn(page: Page, tmp_path: Path, ask: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> Open:
    """The page of a folder with one recorded step, answered by the server without a socket, its policy included."""
    run = made_run(tmp_path, "001", 1)
    run.recorded_step(1).parent.mkdir()
    worked.record(run.recorded_step(1))
    monkeypatch.setenv("LIMPID_LEARN", str(tmp_path / "learn.json"))
    client = ask(tmp_path)

    def answer(route: Route) -> None:
        path, asked = route.request.url.removeprefix(HOME), route.request
        found = client.request(asked.method, f"/{path}", content=asked.post_data, headers={
            "Content-Type": asked.headers.get("content-type", ""),
        })  # fmt: skip
        left = {"content-encoding", "content-length", "transfer-encoding"}
        headers = {name: value for name, value in found.headers.items() if name not in left}
        route.fulfill(status=found.status_code, body=found.content, headers=headers)

    page.route(f"{HOME}**", answer)
    page.set_default_timeout(TIMEOUT)

    def opened(address: str) -> Page:
        page.goto(f"{HOME}{address}")
        return page

    return opened


def exercise(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=f"Exercise: {name}")


def test_one_walks_from_the_contents_through_the_chapters(learn: Open) -> None:
    page = learn("#/learn")
    expect(page.locator("ol.chapters li").first).to_contain_text(re.compile(r"Notation.*\d+ min"))
    assert serious(page) == []
    page.get_by_role("link", name="Notation").click()
    page.get_by_role("link", name=re.compile("Vectors →")).click()
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("1 Vectors")
    expect(heading).to_be_focused()
    expect(page.get_by_role("link", name=re.compile("← Notation"))).to_be_visible()


def test_a_sign_says_what_it_means_to_pointer_and_keyboard(learn: Open) -> None:
    page = learn("#/learn/vectors")
    sign = page.locator("[data-says='the first entry of the vector v']").first
    sign.hover()
    note = page.get_by_role("tooltip")
    expect(note).to_contain_text("the first entry of the vector v")
    page.keyboard.press("Escape")
    expect(note).to_be_hidden()
    page.get_by_role("heading", level=1).focus()
    while page.evaluate("document.activeElement.localName") != "math":
        page.keyboard.press("Tab")
    expect(note).to_contain_text("a vector: a list of numbers in an order")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == note.get_attribute("id")
    equation = page.locator(".equation math[tabindex]").first
    equation.focus()
    expect(note.locator("dt")).to_have_count(len(set(equation.locator("[data-says]").evaluate_all(
        "all => all.map((one) => one.dataset ? one.dataset.says : one.getAttribute('data-says'))"
    ))))  # fmt: skip
    assert serious(page) == []


def test_an_exercise_by_keyboard(learn: Open) -> None:
    page = learn("#/learn/vectors")
    page.get_by_role("button", name="length", exact=True).press("Enter")
    answer = exercise(page, "length").get_by_label("Answer")
    expect(answer).to_be_focused()
    page.keyboard.type("49")
    page.keyboard.press("Enter")
    said = exercise(page, "length").get_by_role("status")
    expect(said).to_contain_text("49 is the sum of the squares")
    assert said.get_attribute("aria-live") == "polite"
    answer.fill("many")
    answer.press("Enter")
    expect(said).to_contain_text("type a number")
    exercise(page, "length").get_by_role("button", name="hint").press("Enter")
    expect(exercise(page, "length").locator(".hints li")).to_have_text([EXERCISES["length"].hints[0]])
    exercise(page, "length").get_by_role("button", name="solution").press("Enter")
    expect(exercise(page, "length").locator(".solution")).to_contain_text("= 7")
    answer.fill("7")
    answer.press("Enter")
    expect(said).to_have_text("Right: 7.")
    exercise(page, "length").get_by_role("button", name="other numbers").press("Enter")
    expect(page).to_have_url(re.compile(re.escape("length=")))
    seed = int(page.url.rpartition("=")[2])
    asked = EXERCISES["length"].question(numbers_of(EXERCISES["length"], seed))
    expect(exercise(page, "length").locator(".lines").first).to_have_text(asked)
    page.reload()
    expect(exercise(page, "length").locator(".lines").first).to_have_text(asked)
    page.get_by_role("link", name="contents").click()
    expect(page.locator("ol.chapters")).to_contain_text("length (tried)")  # for the solution was looked at
    assert [one.tries for one in sittings()] == [("no-root",)]


def test_numbers_of_ones_own_step_once_a_run_was_opened(learn: Open) -> None:
    page = learn("#/learn/cross-entropy")
    offered = exercise(page, "perplexity").get_by_role("button", name=re.compile("with numbers of"))
    expect(offered).to_have_text("with numbers of the worked model's step")
    page.evaluate("location.hash = '#/001/1'")
    page.get_by_role("link", name="learn").click()
    page.get_by_role("link", name="Cross-entropy").click()
    expect(offered).to_have_text("with numbers of my step")
    offered.click()
    expect(page).to_have_url(re.compile(re.escape("perplexity=0@001/1")))
    expect(exercise(page, "perplexity")).to_contain_text("of step 1 of 001")
    expect(exercise(page, "perplexity").get_by_role("link")).to_have_count(0)  # before it is answered
    exercise(page, "perplexity").get_by_role("button", name="solution").press("Enter")
    entry = exercise(page, "perplexity").get_by_role("link", name="loss", exact=True)
    expect(entry).to_have_attribute("href", "#/001/1/loss")
    expect(page.get_by_role("link", name=re.compile("of step 1 of 001"))).to_have_attribute(
        "href", re.compile("#/001/1/")
    )


def test_a_broken_step_by_keyboard_from_the_contents_to_a_step_of_ones_own(learn: Open) -> None:
    page = learn("#/001/1")
    page.evaluate("location.hash = '#/learn'")
    page.get_by_role("link", name="broken-step").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(exercise(page, "broken-step")).to_contain_text("scores        q kᵀ / √2")
    said = exercise(page, "broken-step").get_by_role("status")
    looks = PUZZLES["broken-step"](0).looks
    written = exercise(page, "broken-step").locator(".written")
    expect(written).to_have_text(looks["scores[0, 0]"])
    page.get_by_label("entry").press("ArrowDown")
    expect(written).to_have_text(looks["scores[0, 1]"])
    page.get_by_label("Look into the trace: quantity").press("b")
    expect(written).to_have_text(looks["b after[0]"])
    page.get_by_role("radio", name="7 loss").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(said).to_contain_text("was wrong already")
    for _ in range(6):
        page.keyboard.press("ArrowUp")
    expect(page.get_by_role("radio", name="1 scores")).to_be_checked()
    page.keyboard.press("Enter")
    expect(said).to_have_text("Right: 1.")
    link = exercise(page, "broken-step").get_by_role("link", name="blocks.0.attention.scores of step 1 of 001")
    expect(link).to_have_attribute("href", "#/001/1/blocks.0.attention.scores")
    assert [(one.how, one.tries) for one in sittings()] == [("broken-step --seed 0", ("not-loss", "right"))]
    page.get_by_role("button", name="other numbers").press("Enter")
    expect(page).to_have_url(re.compile(re.escape("longer/broken-step?broken-step=")))
    seed = int(page.url.rpartition("=")[2])
    expect(exercise(page, "broken-step").locator(".given")).to_have_text(
        PUZZLES["broken-step"](seed).asked.partition("\n")[2]
    )
    page.get_by_role("link", name="contents").click()
    expect(page.locator("ul.chapters")).to_contain_text("broken-step (right)")


def test_a_gradient_is_typed_and_judged_by_keyboard(learn: Open) -> None:
    page, derive = learn("#/learn/longer/derive"), PUZZLES["derive"](0)
    expect(exercise(page, "derive")).to_contain_text(derive.question.splitlines()[0])
    expect(exercise(page, "derive").get_by_role("radio")).to_have_count(0)
    answer = exercise(page, "derive").get_by_role("textbox", name="Answer")
    said = exercise(page, "derive").get_by_role("status")
    answer.focus()
    for typed in ("g * p", "g * nothing", derive.answer):
        answer.fill("")
        page.keyboard.type(typed)
        page.keyboard.press("Enter")
        if typed == "g * nothing":
            expect(said).to_contain_text("nothing")
        else:
            expect(said).to_have_text(derive.judged(typed).says)
        expect(answer).to_be_focused()
        expect(answer).to_have_value(typed)
    link = exercise(page, "derive").get_by_text(f"limpid explain --worked {derive.opens}")
    expect(link).to_be_visible()
    assert [(one.how, one.tries) for one in sittings()] == [("derive --seed 0", ("no-sum", "right"))]


@pytest.mark.parametrize("name", PUZZLES)
def test_everybody_can_do_the_longer_ones(name: str, learn: Open) -> None:
    page = learn(f"#/learn/longer/{name}?{name}=7")
    expect(exercise(page, name).get_by_role("radio")).to_have_count(len(PUZZLES[name](7).choices))
    page.get_by_role("button", name="solution").click()
    assert serious(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert beyond_the_edge(page) == []


def test_a_teacher_chooses_a_sheet_and_prints_it(learn: Open) -> None:
    page = learn("#/learn")
    page.get_by_role("link", name="a sheet of exercises to print").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.get_by_role("button", name="print")).to_be_disabled()
    similarity = page.get_by_role("group", name=chapter("similarity").title)
    similarity.get_by_role("checkbox", name=chapter("similarity").title).press("Space")
    expect(similarity.get_by_role("checkbox", name="dot", exact=True)).to_be_checked()
    page.get_by_role("checkbox", name="length", exact=True).press("Space")
    page.get_by_label("seeds, such as").fill("7, 8")
    expect(page.locator(".sheet-paper section")).to_have_count(4)
    expect(page.locator(".sheet-paper section h1")).to_have_text(["Exercises", "Exercises", "Answers", "Answers"])
    asked = EXERCISES["length"].question(numbers_of(EXERCISES["length"], 8)).splitlines()
    expect(page.locator(".sheet-paper section").nth(1)).to_contain_text(asked[0])
    page.get_by_role("checkbox", name="with answers").press("Space")
    expect(page.locator(".sheet-paper section")).to_have_count(2)
    page.reload()
    expect(page.locator(".sheet-paper section")).to_have_count(2)
    page.get_by_role("checkbox", name="with the likely slips").press("Space")
    expect(page.locator(".sheet-paper section")).to_have_count(4)
    assert serious(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert beyond_the_edge(page) == []
    page.emulate_media(media="print")
    expect(page.get_by_role("heading", level=1).first).to_have_text("Exercises")
    assert page.locator("input:visible, button:visible").count() == 0


def test_a_wide_table_is_reached_by_keys_while_it_scrolls(learn: Open) -> None:
    page = learn("#/learn/precision")
    table = page.locator("article table").filter(has_text="exponent").first
    expect(table).not_to_have_attribute("tabindex", "0")
    page.set_viewport_size({"width": 360, "height": 740})
    expect(table).to_have_attribute("tabindex", "0")
    assert serious(page) == []
    table.focus()
    page.keyboard.press("ArrowRight")
    expect(table).not_to_have_js_property("scrollLeft", 0)
    page.set_viewport_size({"width": 1280, "height": 740})
    expect(table).not_to_have_attribute("tabindex", "0")


def test_everybody_can_read_a_chapter(learn: Open) -> None:
    page = learn("#/learn/similarity")
    expect(exercise(page, "dot").locator(".lines").first).to_be_visible()
    everybody_reads(page, "input, button")
