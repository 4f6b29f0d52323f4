"""What other formats would do to a kept recording's loss: asked in the page, tried by a job, answered by the model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient
from tests.operations.test_compared import recorded
from tests.operations.test_folder import folder, typed
from tests.view.browser import offline
from tests.view.canned import serious
from tests.view.servers import served
from tests.view.test_runs import fits

from limpid.view.recording import write

Ask = Callable[..., TestClient]
TEXT = "hello world"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recording of a folder's model, and one of somebody's own step."""
    from limpid.api.operations import trace_model

    place = tmp_path_factory.mktemp("formats")
    model = folder(place / "bert", "BertForMaskedLM")
    trace_model(model, TEXT, keep=place / "runs" / "bert")
    recorded(place / "runs" / "own")
    return place / "runs"


def tried(client: TestClient, asked: dict[str, str]) -> dict[str, object]:
    """An answer once it was asked for."""
    words = {"asked": json.dumps(asked)}
    assert client.get("/api/recordings/bert/formats", params=words).json()["missing"] == "document"
    job = client.post("/api/recordings/bert/formats", json={"asked": asked}).json()
    client.get(f"/api/jobs/{job['job']}/events")
    state = client.get(f"/api/jobs/{job['job']}").json()
    if state["state"] == "failed":
        return dict(state)
    found = client.get("/api/recordings/bert/formats", params=words).json()
    fits(found, "FormatsDocument")
    return dict(found)


def test_formats_are_tried_when_asked_for_and_kept(runs: Path, ask: Ask) -> None:
    client = ask(runs)
    assert client.get("/api/recordings/bert/again").json()["why"] == ""
    found = tried(client, {"encoder.layer.0": "fp8", "cls": "bf16"})
    assert found["holds"] is True
    assert {part["module"] for part in found["parts"]} == {"bert.encoder.layer.0", "cls"}  # type: ignore[attr-defined]
    assert found["rows"] == []
    loss = json.loads((runs / "bert" / "recording.json").read_text())["document"]["loss"]
    assert found["loss"] == pytest.approx(loss, abs=1e-6)
    table = tried(client, {})
    assert table["predicted"] is None
    assert any(row["module"] == "cls" for row in table["rows"])  # type: ignore[attr-defined]


def test_what_cannot_be_is_said_in_a_line(runs: Path, ask: Ask) -> None:
    client = ask(runs)
    assert "code of its own" in client.get("/api/recordings/own/again").json()["why"]
    refused = client.get("/api/recordings/own/formats", params={"asked": '{"*": "fp8"}'})
    assert refused.status_code == 400
    assert "code of its own" in refused.json()["error"]
    assert "no format to try" in str(tried(client, {"cls": "int4"})["error"])
    for asked in ("[]", "{", '{"cls": 3}'):
        assert client.get("/api/recordings/bert/formats", params={"asked": asked}).status_code == 400


def test_a_model_that_went_or_changed_is_said(runs: Path, ask: Ask, tmp_path: Path) -> None:
    shutil.copytree(runs / "bert", tmp_path / "runs" / "bert")
    file = tmp_path / "runs" / "bert" / "recording.json"
    held = json.loads(file.read_text())
    held["document"]["loss"] += 0.25
    file.write_text(json.dumps(held))
    client = ask(tmp_path / "runs")
    assert "its weights are others now" in str(tried(client, {"cls": "bf16"})["error"])
    held["again"]["model"] = str(tmp_path / "gone")
    file.write_text(json.dumps(held))
    assert "is not in" in client.get("/api/recordings/bert/again").json()["why"]
    del held["again"]
    file.write_text(json.dumps(held))
    assert "code of its own" in client.get("/api/recordings/bert/again").json()["why"]


def test_the_command_line_tries_a_recording(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(["trace", runs / "bert", "--what-if", "layer.*=bf16", "--what-if", "cls=fp16"], capsys)
    assert code == 0
    assert "tried" in out
    assert "cls in fp16" in out
    code, _, err = typed(["trace", runs / "own", "--what-if", "blocks=fp8"], capsys)
    assert code == 2
    assert "code of its own" in err
    code, _, err = typed(["trace", runs / "bert", "--what-if", "cls=fp8", "--text", "hello"], capsys)
    assert code == 2
    assert "is a recording already" in err


def test_modules_and_formats_are_chosen_in_the_page(runs: Path, page: Page) -> None:
    page.set_default_timeout(90_000)
    with served(runs) as home:
        page.goto(f"{home}#/recording/bert")
        formats = page.locator(".formats")
        formats.get_by_label("modules").fill("encoder.layer.1.*")
        formats.get_by_label("format").select_option("e5m2")
        formats.get_by_role("button", name="add").click()
        formats.get_by_role("button", name="each module by itself").click()
        row = formats.locator(".by-module tr", has=page.get_by_role("rowheader", name="cls", exact=True))
        row.get_by_role("button").nth(1).click(timeout=90_000)
        expect(formats.locator(".changed li")).to_have_count(2)
        formats.get_by_role("button", name="try them at once").click()
        expect(formats.locator("dd.good")).to_contain_text("✓", timeout=90_000)
        expect(formats.get_by_role("region", name="what each part adds").locator("tr")).to_have_count(2)
        assert serious(page) == []


def test_a_file_says_what_it_cannot(runs: Path, browser: Browser, tmp_path: Path) -> None:
    from limpid.operations.kept import read

    write(read(runs / "bert").document, tmp_path / "recording.html")
    with offline(browser, viewport={"width": 360, "height": 800}) as context:
        page = context.new_page()
        page.goto((tmp_path / "recording.html").as_uri())
        expect(page.locator(".formats")).to_contain_text("a file runs no model")
        expect(page.locator(".formats input")).to_have_count(0)
