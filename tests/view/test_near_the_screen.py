"""What of a step is asked for and drawn: what stands near the screen, once, and where it will stand."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect
from tests.view.servers import served

import limpid
import small
from limpid.reporter import SILENT
from limpid.run import Run
from limpid.tracing import Trace
from limpid.view import worker

SCORES, LENGTH = "blocks.1.attention.scores", 256


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two rows of 256 bytes, so that logits are sent as tiles and others folded; its second step recorded."""
    folder = tmp_path_factory.mktemp("near")
    sizes = {"context_length": LENGTH, "d_model": 24}
    data, update = small.corpus(folder / "text"), {"warmup_steps": 1}
    config = small.config(data, model=sizes, update=update, batch_size=2, max_steps=2, save_steps=1)
    made = limpid.train(config, str(folder / "runs/001"))
    worker.record({"run": str(made.path), "step": 2}, SILENT.progress)
    return made


@pytest.fixture(scope="module")
def home(run: Run) -> Iterator[str]:
    with served(run.path.parent) as address:
        yield address


@pytest.fixture
def asked(page: Page) -> list[str]:
    """What the page asks the server for of the step, in its order."""
    found: list[str] = []
    page.on("request", lambda request: found.append(unquote(request.url.rpartition("/steps/2")[2] or request.url)))
    return found


def test_another_row_is_asked_for_where_one_looks(page: Page, home: str, asked: list[str]) -> None:
    page.goto(f"{home}#/001/2")
    logits = page.locator('section[aria-label="logits"]')
    logits.scroll_into_view_if_needed()
    expect(logits.get_by_role("grid", name="logits[0]").first).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_load_state("networkidle")
    asked.clear()
    page.get_by_label("row of the batch").select_option("1")
    expect(page.locator(".surprise .token").first).to_be_visible()
    page.wait_for_timeout(500)
    assert not [one for one in asked if "logits" in one or "lens" in one or "weight" in one], asked
    logits.scroll_into_view_if_needed()
    expect(logits.get_by_role("grid", name="logits[1]").first).to_be_visible()
    assert [one for one in asked if "name=logits&index=1" in one]


def test_a_cell_is_asked_for_once(page: Page, home: str, asked: list[str]) -> None:
    page.goto(f"{home}#/001/2/{SCORES}[0,1,5,3]")
    page.locator(".over-steps, .ways").first.wait_for()
    page.wait_for_load_state("networkidle")
    of_step = [one.partition("?")[0] for one in asked]
    assert of_step.index("/explain") < of_step.index(next(one for one in of_step if one in ("/slice", "/tiles")))
    asked.clear()
    with page.expect_response(re.compile("over-steps")):  # asked for once the entry is drawn, which may take its time
        page.locator('.entry-panel [aria-label="how it was made"] a[data-entry]').first.click()
    expect(page.locator(".entry-panel h2")).not_to_contain_text(SCORES)
    page.locator(".entry-panel .facts strong").wait_for()
    page.wait_for_load_state("networkidle")
    assert [re.search(r"explain|over-steps", one).group() for one in asked] == ["explain", "over-steps"]  # type: ignore[union-attr]
    asked.clear()
    page.go_back()
    expect(page.locator(".entry-panel h2")).to_contain_text(SCORES)
    page.locator(".entry-panel .facts strong").wait_for()
    page.wait_for_load_state("networkidle")
    assert not [one for one in asked if "explain" in one]


def test_a_folded_station_opens_at_the_top_of_the_screen(page: Page, home: str, asked: list[str]) -> None:
    page.goto(f"{home}#/001/2")
    page.wait_for_load_state("networkidle")
    station = page.locator("#station-block-0-mlp")
    expect(station).not_to_have_attribute("open", "")
    asked.clear()
    page.locator('.flow-row.forward a[href="#station-block-0-mlp"]').click()
    expect(station.get_by_role("grid").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert 0 <= station.evaluate("one => one.getBoundingClientRect().top") < 60
    every = station.locator("section.quantity").evaluate_all("all => all.map((one) => one.ariaLabel)")
    named = {name for name in every for one in asked if re.search(rf"={re.escape(name)}[\[&]", one)}
    assert 0 < len(named) < len(every) / 2, named


def test_what_is_read_takes_the_room_that_it_will_have(page: Page, home: str) -> None:
    held: list[Route] = []
    page.route("**/tiles?**", lambda route: held.append(route))
    page.goto(f"{home}#/001/2")
    logits = page.locator('section[aria-label="logits"]')
    logits.scroll_into_view_if_needed()
    expect(logits.get_by_text("reading logits …").first).to_be_visible()
    before = logits.evaluate("one => one.getBoundingClientRect().height")
    for one in held:
        one.continue_()
    page.unroute("**/tiles?**")
    expect(logits.get_by_role("grid")).to_have_count(2)
    assert logits.evaluate("one => one.getBoundingClientRect().height") == pytest.approx(before, abs=16)


def test_a_heat_map_has_a_colour_for_each_number(page: Page, home: str, run: Run) -> None:
    page.goto(f"{home}#/001/2/{SCORES}[0,1,5,3]")
    shown = page.get_by_role("grid", name=f"{SCORES}[0,1]").first
    expect(shown).to_be_visible()
    pixels = np.array(shown.locator("canvas").evaluate(
        "one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
    )).reshape(LENGTH, LENGTH, 4)  # fmt: skip
    scores = Trace.open(run.recorded_step(2)).array(SCORES)[0, 1]
    seen = np.tril(np.ones((LENGTH, LENGTH), bool))
    assert (pixels[~seen][:, 3] == 60).all()
    assert (pixels[seen][:, 3] == 255).all()
    largest = np.unravel_index(np.argmax(np.abs(np.where(seen, scores, 0))), scores.shape)
    strongest = [0, 60, 48] if scores[largest] > 0 else [84, 48, 5]
    assert list(pixels[largest][:3]) == strongest
    teal, brown = (np.abs(pixels[..., :3].astype(int) - side).sum(-1) for side in ([0, 60, 48], [84, 48, 5]))
    for sign, to_strongest in ((1, teal), (-1, brown)):
        one = seen & (np.sign(scores) == sign)
        order = np.argsort(np.abs(scores[one]))
        assert (np.diff(to_strongest[one][order]) <= 0).all()  # the larger, the nearer to the strongest colour
