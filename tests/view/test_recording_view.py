"""A recording in the page: a file of its own and among the runs of a server; read by everybody, without a mouse too."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.custom_functions.deliberate import Kept, Reversed
from browser import offline
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient
from tests.operations.test_compared import Planted, recorded
from tests.view.canned import everybody_reads, opened
from tests.view.examples import ANSWERS

import limpid
from limpid.jsonable import to_json
from limpid.operations.document import RecordingDocument, RegionDocument
from limpid.operations.kept import read
from limpid.view.recording import write


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    recorded(folder / "faulty", below=Planted("aten.gelu.default", 1))
    return folder / "faulty"


@pytest.fixture(scope="module")
def recording(kept: Path) -> RecordingDocument:
    return read(kept).document


@pytest.fixture
def file(browser: Browser, recording: RecordingDocument, tmp_path: Path) -> Iterator[Page]:
    write(recording, tmp_path / "recording.html")
    with offline(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto((tmp_path / "recording.html").as_uri())
        yield page


def test_a_file_shows_verdict_and_share_first_and_opens_at_the_call_that_is_wrong(file: Page) -> None:
    expect(file.locator(".headlines")).to_contain_text("100 %")
    expect(file.locator(".headlines")).to_contain_text("beyond rounding in 1 call")
    call = file.locator("aside")
    expect(call.locator("h2")).to_contain_text("gelu")
    expect(call).to_contain_text("blocks.1")
    expect(call).to_contain_text("test_compared.py:")
    engine, expected = (float(call.locator("dd .number").nth(at).get_attribute("data-value") or "") for at in (0, 1))
    assert engine == pytest.approx(1.03 * expected, rel=1e-5)
    assert Path(file.url.removeprefix("file://").partition("#")[0]).stat().st_size < 200_000


def test_backward_passes_by_hand_stand_below_the_verdict(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with limpid.recording(torch.nn.Identity()) as found:
        x = torch.linspace(1, 2, 5, requires_grad=True)
        (Kept.apply(x) + Reversed.apply(x, 0.5)).sum().backward()
    write(found.verify().document(), tmp_path / "recording.html")
    with offline(browser, viewport={"width": 360, "height": 800}) as context:
        page = context.new_page()
        page.goto((tmp_path / "recording.html").as_uri())
        expect(page.locator(".headlines")).to_contain_text("not the adjoint: 1 of 2")
        rows = page.locator(".adjoints tbody tr")
        expect(rows.nth(0)).to_contain_text("is 0.5 times that along all directions")
        expect(rows.nth(1)).to_contain_text("surrogate")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_who_moved_a_gradient_is_chosen_beside_the_loss(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).bfloat16()
    with limpid.recording(model, errors_of=["grad(0.weight)"]) as found:
        model(torch.ones(2, 4).bfloat16()).float().square().mean().backward()
        found.in_float64(lambda: model(torch.ones(2, 4).bfloat16()).float().square().mean(), "grad(0.weight)")
    account = found.verify().error_of("grad(0.weight)")
    write(found.verify().document(), tmp_path / "recording.html")
    with offline(browser, viewport={"width": 360, "height": 800}) as context:
        page = context.new_page()
        page.goto((tmp_path / "recording.html").as_uri())
        expect(page.get_by_role("heading", name="Who moved the loss")).to_be_visible()
        page.get_by_label("the number that was moved").select_option("grad(0.weight)")
        section = page.locator("section", has=page.get_by_role("heading", name="Who moved grad(0.weight)"))
        expect(section).to_contain_text(f"against float64 +{account.measured:.4f}")
        count = sum(map(bool, found.projected[account.of].errors.values()))
        expect(section.locator("tbody tr")).to_have_count(count)
        expect(section.locator("tbody")).to_contain_text(", backward")
        expect(section.locator("output")).to_contain_text("the whole step: +")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_compiled_regions_stand_below_the_verdict(
    browser: Browser, recording: RecordingDocument, tmp_path: Path
) -> None:
    held = RegionDocument("Block", "blocks.0", "step.py:8", 1, "holds", "results and gradients of the code as written")
    other = replace(
        held, module="blocks.1", verdict="compiled otherwise", said="another result: off by 0.03 of its size"
    )
    write(replace(recording, regions=(held, other)), tmp_path / "recording.html")
    with offline(browser, viewport={"width": 360, "height": 800}) as context:
        page = context.new_page()
        page.goto((tmp_path / "recording.html").as_uri())
        expect(page.locator(".recording")).to_contain_text("1 of 2 compiled regions")
        expect(page.locator(".unchecked-calls .bad")).to_contain_text("blocks.1, step.py:8: another result")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_module_opens_and_a_call_in_it_is_chosen(file: Page) -> None:
    file.get_by_role("button", name="head", exact=True).click()
    file.locator(".modules").get_by_role("button", name="addmm", exact=True).first.click()
    expect(file.locator("aside")).to_contain_text("head")
    expect(file.locator(".modules tr.chosen")).to_have_count(1)


def test_the_flame_is_walked_without_a_mouse(file: Page) -> None:
    flame = file.locator(".flame")
    flame.locator('g[tabindex="0"]').focus()
    expect(flame.locator("output")).to_contain_text("the whole step")
    file.keyboard.press("ArrowDown")
    expect(flame.locator("output")).to_contain_text("blocks: +0.00")
    file.keyboard.press("ArrowDown")
    file.keyboard.press("ArrowDown")
    file.keyboard.press("Enter")
    expect(flame.locator("output")).to_contain_text("blocks.1: gelu")
    expect(flame.locator('g[tabindex="0"]')).to_have_count(1)
    file.keyboard.press("Escape")
    expect(flame.locator("output")).to_contain_text("the whole step")


def test_everybody_can_read_it(page: Page, recording: RecordingDocument) -> None:
    opened(page, "#/recording/faulty", {**ANSWERS, "recordings/faulty": to_json(recording)})
    expect(page.locator(".flame svg")).to_be_visible()
    everybody_reads(page, "input, select, textarea")


def test_a_server_lists_recordings_beside_the_runs(
    kept: Path, recording: RecordingDocument, ask: Callable[..., TestClient], tmp_path: Path
) -> None:
    client = ask(kept.parent)
    assert client.get("/api/runs").json()["recordings"] == ["faulty"]
    assert client.get("/api/recordings/faulty").json()["title"] == recording.title
    for name in ("nowhere", "..", "%2e%2e%2fx"):
        assert client.get(f"/api/recordings/{name}").status_code in (400, 404)
    (kept.parent / "away").symlink_to(tmp_path)
    (tmp_path / "recording.json").write_text("{}")
    assert client.get("/api/recordings/away").status_code in (400, 404)
