"""The step in the page: walked by clicks and by keys, read by a screen reader, on a phone, in the dark, on paper."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import offline
from playwright.sync_api import Browser, Page, expect

from limpid.tracing import Trace
from limpid.tracing.worked import opened
from limpid.view import file

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
FOUND = "found => found.violations.map((one) => [one.impact, one.id, one.nodes[0].html])"
ADDRESSES = ("#/worked/1", "#/worked/1/logits[0,3,2]", "#/worked", "#/equations")


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with opened() as found:
        yield found


@pytest.fixture(scope="module")
def worked(trace: Trace, bundle: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("page") / "worked.html"
    file.write(trace, where, home="#/worked/1")
    return where.as_uri()


@pytest.fixture(scope="module")
def step(browser: Browser, worked: str) -> Iterator[Page]:
    with offline(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as context:
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.goto(worked)
        page.locator(".cells").first.wait_for()
        yield page


def show(page: Page, address: str) -> None:
    page.evaluate("address => { location.hash = address }", address)


def written_out(page: Page, entry: str) -> None:
    """Wait until an entry is written out."""
    page.locator(".entry-panel h2", has_text=re.compile(f"^{re.escape(entry)}$")).wait_for()
    page.locator(".entry-panel .facts strong").wait_for()


def on_show(page: Page) -> str:
    return page.locator(".entry-panel h2").inner_text()


def test_every_station_says_what_it_is_and_how_well_it_agrees(step: Page, trace: Trace) -> None:
    show(step, "#/worked/1")
    for one in trace.step.quantities:
        section = step.locator(f'section[aria-label="{one.name}"]').first
        text = section.inner_text()
        assert one.branch in text
        assert str(one.shape[-1] if one.shape else "one number") in text
        passed = [line for line in one.adjoint if line and one.grad_norm is not None]
        assert section.locator("math").count() == 1 + len(passed)
        assert section.locator(".comparison").count() == 1 + (one.backward is not None)
    for station in trace.step.stations[:-2]:
        assert step.locator(".flow-row.forward .box", has_text=station.title).count() == 1
        assert step.locator(".flow-row.backward .box", has_text=station.title).count() == 1


def test_where_an_entry_stands_is_unfolded_and_gone_to(step: Page) -> None:
    show(step, "#/worked/1/blocks.0.mlp.up[0,2,5]")
    written_out(step, "blocks.0.mlp.up[0,2,5]")
    place = step.locator('section[aria-label="blocks.0.mlp.up"]')
    step.locator("details.station", has=place).locator("> summary").click()
    expect(place).to_have_count(0)
    step.get_by_role("link", name="where it stands").click()
    expect(place).to_be_in_viewport()
    comparison = place.locator(".comparison").first
    comparison.locator("summary").click()
    expect(comparison.locator("dl")).to_contain_text("allowed")


def test_a_walk_by_clicks_from_a_logit_back_to_a_token(step: Page, trace: Trace) -> None:
    show(step, "#/worked/1")
    grid = step.get_by_role("grid", name=re.compile(r"^logits\[0\]"))
    box = grid.bounding_box()
    assert box is not None
    grid.click(position={"x": box["width"] * 4.5 / 6, "y": box["height"] * 3.5 / 4})
    written_out(step, "logits[0,3,4]")
    shown = step.locator(".entry-panel .facts strong").get_attribute("data-value")
    assert float(shown or "nan") == float(trace.array("logits")[0, 3, 4])
    for _ in range(30):
        entry = on_show(step)
        name = entry.partition("[")[0]
        if name == "tokens":
            break
        links = step.locator('.entry-panel [aria-label="how it was made"] a[data-entry]')
        ways = [one for one in links.evaluate_all("all => all.map((one) => one.dataset.entry)") if ".weight" not in one]
        ways = ways or links.evaluate_all("all => all.map((one) => one.dataset.entry)")
        token = [one for one in ways if one.startswith("tokens")]
        to = (token or ways)[0]
        step.locator(f'.entry-panel [aria-label="how it was made"] a[data-entry="{to}"]').first.click()
        written_out(step, to)
    assert on_show(step).startswith("tokens[0,"), "the walk ends at a token"
    assert "'" in step.locator(".entry-panel .facts").inner_text()


def test_a_walk_by_keys_alone_from_the_loss_to_the_update_of_a_weight(step: Page, trace: Trace) -> None:
    show(step, "#/worked/1")
    grid = step.get_by_role("grid", name=re.compile(r"^grad\(logits\.weight\)"))
    grid.focus()
    for key in ("Home", "PageUp", "ArrowDown", "ArrowRight", "ArrowRight"):
        step.keyboard.press(key)
    cell = step.locator(f'[id="{grid.get_attribute("aria-activedescendant")}"]')
    assert (cell.get_attribute("aria-label") or "").startswith("grad(logits.weight)[1,2]: ")
    step.keyboard.press("Enter")
    written_out(step, "grad(logits.weight)[1,2]")
    update = step.locator('[aria-label="its update"] li').all_inner_texts()
    want = trace.entries.update("logits.weight", (1, 2))
    assert [" ".join(line.split()) for line in update] == [" ".join(line.split()) for line in want]
    assert len(want) > 8  # AdamW, written out
    for _ in range(40):  # the panel's heading has the focus: links follow by Tab
        step.keyboard.press("Tab")
        focused = step.evaluate("document.activeElement?.dataset?.entry ?? ''")
        if focused.startswith("grad(logits)"):
            break
    step.keyboard.press("Enter")
    written_out(step, focused)
    for _ in range(60):
        step.keyboard.press("Tab")
        focused = step.evaluate("document.activeElement?.dataset?.entry ?? ''")
        if focused == "grad(loss)":
            break
    step.keyboard.press("Enter")
    written_out(step, "grad(loss)")
    assert step.locator(".trail a").count() >= 2


def test_who_wrote_a_logit_adds_up_to_it(step: Page, trace: Trace) -> None:
    show(step, "#/worked/1/logits[0,2,5]")
    written_out(step, "logits[0,2,5]")
    step.locator(".writers", has_text="the entry on show").locator(".sum").wait_for()
    written = [float(one) for one in step.locator(".bars tr:not(.sum) [data-value]").evaluate_all(
        "all => all.map((one) => one.dataset.value)")]  # fmt: skip
    assert len(written) == 3  # attention, MLP, and the norm's shift
    assert sum(written) == pytest.approx(float(trace.array("logits")[0, 2, 5]), abs=1e-13)


def test_the_account_of_the_loss_adds_up(step: Page, trace: Trace) -> None:
    show(step, "#/worked/1")
    rows = step.locator(".account tbody tr")
    rows.first.locator("a").wait_for()
    parts = rows.evaluate_all("all => all.map((row) => Number(row.lastElementChild.firstElementChild.dataset.value))")
    assert sum(parts) == pytest.approx(trace.step.loss.value, abs=1e-12)
    assert rows.count() == 4


def test_names_and_equations_are_found(step: Page) -> None:
    show(step, "#/worked/1")
    search = step.get_by_role("searchbox", name="Find a quantity")
    search.fill("softmax probability weights")
    step.locator(".found button").first.wait_for()
    step.keyboard.press("Enter")
    step.locator(".entry-panel h2", has_text="attention.weights").wait_for()


def test_a_picture_is_saved_as_it_is_seen(step: Page) -> None:
    show(step, "#/worked/1")
    with step.expect_download() as saved:
        step.get_by_role("button", name="save blocks.0.attention.scores[0,1] as SVG").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    assert text.count("<rect") == 4 * 4 + 2  # its entries, the paper, the scale
    assert "transformers" in text
    with step.expect_download() as saved:
        step.get_by_role("button", name="save blocks.0.attention.scores[0,1] as PNG").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_a_screen_reader(browser: Browser, worked: str, scheme: str) -> None:
    with offline(browser, bypass_csp=True, color_scheme=scheme, reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(worked)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        for address in ADDRESSES:
            show(page, address)
            page.locator("h1").wait_for()
            page.wait_for_timeout(150)
            found = page.evaluate(f"async () => ({FOUND})(await axe.run())")
            assert [one for one in found if one[0] in ("serious", "critical")] == [], address


def test_it_fits_a_phone(browser: Browser, worked: str) -> None:
    with offline(browser, viewport={"width": 360, "height": 740}, reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(worked)
        for address in ADDRESSES:
            show(page, address)
            page.locator("h1").wait_for()
            page.wait_for_timeout(150)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, address


def test_it_prints(browser: Browser, worked: str) -> None:
    with offline(browser, reduced_motion="reduce", color_scheme="dark") as context:
        page = context.new_page()
        page.goto(f"{worked}#/worked")
        page.locator(".numbers").nth(60).wait_for()
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav[aria-label=views]").is_visible()
        paper = page.pdf(prefer_css_page_size=True)
        assert paper.startswith(b"%PDF")


HOSTILE = "<img src=x onerror=\"document.title='harmed'\"></script><script>document.title='harmed'</script>\x1b[31m"


def test_text_of_a_run_stays_text(browser: Browser, bundle: None, tmp_path: Path) -> None:
    where = tmp_path / "hostile.html"
    with opened() as trace:
        trace.record.meta["token_texts"]["5"] = HOSTILE
        trace.record.meta["run"] = f"a run</title>{HOSTILE}"
        file.write(trace, where, home="#/worked/1/tokens[0,3]")
    with offline(browser) as context:
        page = context.new_page()
        page.goto(where.as_uri())
        page.locator(".entry-panel em").wait_for()
        assert "<img src=x" in page.locator(".entry-panel em").inner_text()
        assert page.locator(".cells").count() > 20
        assert page.locator("img").count() == 0
        assert page.title() != "harmed"
        assert "\x1b" not in page.content()


def test_a_file_that_holds_a_corner_says_so(
    browser: Browser, bundle: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file.packed, "LARGEST", 10)
    monkeypatch.setattr(file, "HELD", 10)
    monkeypatch.setattr(file, "WAYS", 3)
    where = tmp_path / "corner.html"
    with opened() as trace:
        file.write(trace, where, home="#/run/1/loss")
        want = trace.explain("loss").value
    with offline(browser) as context:
        page = context.new_page()
        page.goto(where.as_uri())
        page.locator(".entry-panel .facts strong").wait_for()
        assert float(page.locator(".entry-panel .facts strong").get_attribute("data-value") or "nan") == want
        assert "48 × 16" in page.locator('[aria-label="blocks.0.mlp.up.weight"] .corner').first.inner_text()
        show(page, "#/run/1/blocks.0.mlp.up[0,0,0]")
        alert = page.get_by_role("alert")
        alert.wait_for()
        assert "limpid explain run@1 'blocks.0.mlp.up[0,0,0]'" in alert.inner_text()
