"""A result as the last line of a notebook cell: the page in a frame, answered by a kernel."""

import queue
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from browser import offline
from jupyter_client import BlockingKernelClient
from nbclient import NotebookClient
from playwright.sync_api import Browser, FrameLocator, Page, expect
from tests.comparison.compared import a_folder, compared
from tests.view.cell import HOME, Answers, drawn
from tests.view.examples import HOSTILE
from tests.view.folders import add_steps, made_run

import limpid
from limpid.config import ModelConfig
from limpid.doctor.finding import Finding
from limpid.lock import hold, release
from limpid.primer.chapter import chapter
from limpid.primer.progress import sittings
from limpid.tracing import Trace
from limpid.tracing.worked import opened
from limpid.view import shown, widget

Cell = Callable[..., FrameLocator]
FINDING = Finding(
    rule="scores-overflow-half", severity="fault", step=180, where=f"blocks.1 {HOSTILE}", says=HOSTILE, cause=HOSTILE,
    fix="Train in bf16.", refuted_by=HOSTILE, evidence={"largest": 97000.0, "text": HOSTILE},
)  # fmt: skip


class Kernel:
    """A widget without a notebook: what it sends is kept."""

    def __init__(self, result: Any) -> None:
        self.view = widget.View(result)
        self.sent: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
        self.view.send = lambda said, buffers=(): self.sent.put((said, bytes(buffers[0])))

    def __call__(self, asked: dict[str, Any]) -> Answers:
        """Ask, and wait for the whole answer; of one that comes over time for the first part."""
        self.view._heard(self.view, asked, [])
        found: Answers = []
        while not asked.get("stop") and not (found and (not found[-1][0]["more"] or found[-1][1])):
            found.append(self.sent.get(timeout=30))
        return found


@pytest.fixture
def cell(page: Page, bundle: None) -> Cell:
    """Show a result."""

    def show(result: Any, paper: str = "white") -> FrameLocator:
        kernel = Kernel(result)
        page.set_default_timeout(20_000)
        return drawn(page, kernel.view.home, kernel.view.still, kernel, paper)

    return show


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with opened() as found:
        yield found


def written_out(frame: FrameLocator, entry: str) -> None:
    frame.locator(".entry-panel h2", has_text=re.compile(f"^{re.escape(entry)}$")).wait_for()
    frame.locator(".entry-panel .facts strong").wait_for()


def walked(frame: FrameLocator, trace: Trace) -> None:
    """From a logit back to a token."""
    frame.locator(".cells").first.wait_for()
    frame.locator(".flow-row.forward .box", has_text="logits").click()
    grid = frame.get_by_role("grid", name=re.compile(r"^logits\[0\]"))
    for key in ("Home", "ArrowDown", "Enter"):
        grid.press(key)
    written_out(frame, "logits[0,1,0]")
    said = frame.locator(".entry-panel .facts strong").get_attribute("data-value")
    assert float(said or "nan") == float(trace.array("logits")[0, 1, 0])
    for _ in range(30):
        made = frame.locator('.entry-panel [aria-label="how it was made"] a[data-entry]')
        ways = made.evaluate_all("all => all.map((one) => one.dataset.entry)")
        if not ways:
            break
        to = next((one for one in ways if one.startswith("tokens")), None)
        to = to or next((one for one in ways if ".weight" not in one), ways[0])
        made.and_(frame.locator(f'[data-entry="{to}"]')).first.click()
        written_out(frame, to)
    assert frame.locator(".entry-panel h2").inner_text().startswith("tokens[0,"), "the walk ends at a token"


def test_an_array_is_that_of_the_trace(trace: Trace, bundle: None) -> None:
    kernel, at = Kernel(trace), shown.shown(trace).address.removeprefix("#/").partition("/")[0]
    path = f"api/runs/{at}/steps/1/slice?entry=blocks.0.attention.scores[0]&kind=value"
    [(said, content)] = kernel({"id": "a", "method": "GET", "path": path})
    assert said == {"id": "a", "status": 200, "packed": False, "more": False}
    from safetensors.numpy import load

    assert np.array_equal(load(content)["data"], trace.array("blocks.0.attention.scores", (0,)))


def test_a_run_is_live_and_stops_when_it_is_no_longer_looked_at(tmp_path: Path, bundle: None) -> None:
    run = made_run(tmp_path, "001", 3)
    hold(run.path)
    try:
        kernel = Kernel(run)
        kernel({"id": "a", "method": "GET", "path": "api/runs/001/events?after=0-0-0"})
        add_steps(run, 4, [1.25])
        while b'"step": 4' not in kernel.sent.get(timeout=30)[1]:
            pass
        kernel({"id": "a", "stop": True})
        for _ in range(300):
            if not kernel.view._stops:
                break
            time.sleep(0.1)
        assert not kernel.view._stops
    finally:
        release(run.path)


def test_a_run_is_drawn_and_led_on_from(cell: Cell, tmp_path: Path) -> None:
    frame = cell(made_run(tmp_path, "001", 30))
    frame.locator(".u-over").first.wait_for()
    frame.get_by_role("link", name="runs").click()
    frame.get_by_role("link", name="001").wait_for()


def test_a_plan_is_asked_again(cell: Cell) -> None:
    frame = cell(limpid.plan("gpt2", devices=2, device="h100", tokens=1e9))
    expect(frame.get_by_label("devices", exact=True)).to_have_value("2")
    expect(frame.get_by_label("tokens", exact=True)).to_have_value("1B")
    before = frame.locator(".headlines").inner_text()
    frame.get_by_label("devices", exact=True).fill("4")
    expect(frame.locator(".headlines")).not_to_have_text(before)


def test_a_chapter_is_read_tried_and_led_on_from(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPID_LEARN", str(tmp_path / "learn.json"))
    frame = cell(chapter("vectors"))
    expect(frame.get_by_role("heading", level=1)).to_have_text("1 Vectors")
    frame.locator("[data-says='the first entry of the vector v']").first.hover()
    expect(frame.get_by_role("tooltip")).to_contain_text("the first entry of the vector v")
    length = frame.get_by_role("region", name="Exercise: length", exact=True)
    for typed, says in (("49", "49 is the sum of the squares"), ("√49", "Right: 7.")):
        length.get_by_label("Answer").fill(typed)
        length.get_by_label("Answer").press("Enter")
        expect(length.get_by_role("status")).to_contain_text(says)
    frame.get_by_role("link", name="contents").click()
    expect(frame.locator("ol.chapters")).to_contain_text("length (right)")
    assert [one.tries for one in sittings()] == [("no-root", "right")]


def test_a_comparison_says_where_two_ways_part(cell: Cell, tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    found = compared(str(folder), f"{folder}:bf16")
    frame = cell(found)
    frame.get_by_text("the same up to rounding").wait_for()
    worst = max(found.differences, key=lambda one: one.worst)
    assert worst.title in frame.locator("main").inner_text()
    frame.get_by_role("button", name=worst.title, exact=True).first.click()
    expect(frame.locator(".beside-each-other .matrix")).to_have_count(4)
    expect(frame.locator(".both")).to_contain_text("its vector is apart by")


def test_hostile_text_stays_text(cell: Cell) -> None:
    frame = cell(FINDING)
    frame.locator(".finding").wait_for()
    text = HOSTILE.partition("\x1b")[0]
    assert frame.locator(".finding").inner_text().count(text) >= 4
    assert frame.locator("img").count() == 0


def test_a_notebook_without_a_kernel_shows_what_is_left(page: Page, bundle: None) -> None:
    frame = drawn(page, "#/given", FINDING._repr_html_(), lambda asked: [])
    frame.get_by_text("Train in bf16.").wait_for()
    assert frame.locator("img").count() == 0


def test_it_follows_the_theme_and_fills_the_window(browser: Browser, bundle: None) -> None:
    kernel = Kernel(limpid.plan(ModelConfig(d_model=64, num_heads=4)))  # which no name says: figures without a form
    with offline(browser, viewport={"width": 1280, "height": 900}, color_scheme="null") as context:
        page = context.new_page()
        frame = drawn(page, kernel.view.home, kernel.view.still, kernel, "rgb(17, 17, 17)")
        frame.locator(".headlines").wait_for()
        assert frame.locator("input").count() == 0
        root = frame.locator("html")
        expect(root).to_have_css("background-color", "rgb(20, 23, 27)")
        page.evaluate("document.body.style.background = 'white'")
        expect(root).to_have_css("background-color", "rgb(255, 255, 255)")
        box = page.locator("#cell > div")
        small = box.bounding_box()
        frame.get_by_role("button", name="full size").click()
        frame.get_by_role("button", name="back to the cell").wait_for()
        assert box.bounding_box() == {"x": 0, "y": 0, "width": 1280, "height": 900}
        page.keyboard.press("Escape")
        frame.get_by_role("button", name="full size").wait_for()
        assert box.bounding_box() == small


def test_outside_of_a_kernel_nothing_is_live(trace: Trace) -> None:
    assert trace._repr_mimebundle_() == {}
    assert "scores-overflow-half" in FINDING._repr_html_()


CELLS = (
    "import limpid\nlimpid.plan('gpt2')",
    "from limpid.tracing import Trace\nTrace.open({record!r})",
    "import sys; sys.modules['anywidget'] = None\nlimpid.plan('gpt2')",
)


def answers(talk: BlockingKernelClient, model: str, asked: dict[str, Any]) -> Answers:
    """What a kernel answers to a message of a widget."""
    data = {"method": "custom", "content": asked}
    talk.shell_channel.send(talk.session.msg("comm_msg", {"comm_id": model, "data": data}))
    found: Answers = []
    while not found or found[-1][0]["more"]:
        heard = talk.get_iopub_msg(timeout=60)
        said = heard["content"].get("data", {})
        if heard["msg_type"] == "comm_msg" and said.get("content", {}).get("id") == asked["id"]:
            found.append((said["content"], bytes(heard["buffers"][0])))
    return found


def test_a_step_in_a_real_notebook_is_walked_from_a_logit_to_a_token(
    page: Page, trace: Trace, bundle: None, tmp_path: Path
) -> None:
    cells = [nbformat.v4.new_code_cell(one.format(record=str(trace.record.path))) for one in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        for at, one in enumerate(cells):
            client.execute_cell(one, at)
        outputs = [one.outputs[-1].data for one in cells]
        assert [widget.MIME in data for data in outputs] == [True, True, False]
        assert all("<table" in data["text/html"] and data["text/plain"] for data in outputs)
        model = outputs[1][widget.MIME]["model_id"]
        state = client.widget_state[model]
        assert len(str(state)) - len(state["still"]) < 10_000, "a saved notebook holds no page"

        talk = client.km.blocking_client()
        talk.start_channels()
        frame = drawn(page, state["home"], state["still"], lambda asked: answers(talk, model, asked))
        walked(frame, trace)
        assert page.url == HOME, "the notebook stays where it is"
        assert frame.locator("h1").evaluate("one => getComputedStyle(one).color") != "rgb(255, 0, 0)"
        page.close()
        talk.stop_channels()
