"""Steps in the page of a real server: logit lens, an entry over steps, pins, two steps side by side, what if."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.view.canned import serious
from tests.view.folders import made_run
from tests.view.servers import served

from limpid.doctor.finding import Finding
from limpid.reporter import SILENT
from limpid.tracing import Trace, worked
from limpid.view import bundle, worker

SCORES, UP = "blocks.0.attention.scores", "blocks.0.mlp.up"
FINDINGS = {"blocks.0.mlp": "block 0 mlp", "row 0, position 2 on": "embedding", "learning rate": "update"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worked step as three of a run: as it is, with a score that is another, with an entry that is not finite."""
    folder = tmp_path_factory.mktemp("served")
    run = made_run(folder, "001", 3)
    run.recorded_step(1).parent.mkdir()
    for step, name, index, value in (
        (1, SCORES, (0, 0, 0, 0), 0.0),
        (2, SCORES, (0, 1, 3, 2), 0.25),
        (3, UP, (0, 2, 5), np.nan),
    ):
        file = worked.record(run.recorded_step(step))
        if step > 1:
            with safe_open(file, "numpy") as record:
                tensors, meta = {one: record.get_tensor(one) for one in record.keys()}, record.metadata()  # noqa: SIM118
            tensors[f"plain/{name}"][index] += value
            save_file(tensors, file, meta)
        worker.record({"run": str(run.path), "step": step}, SILENT.progress)
    found = (
        Finding(rule="rule", severity="fault", step=2, where=where, says="it is so", cause="c", fix="f", refuted_by="r")
        for where in FINDINGS
    )
    (run.path / "findings.jsonl").write_text("".join(f"{one.as_json()}\n" for one in found))
    return folder


@pytest.fixture(scope="module")
def trace(runs: Path) -> Trace:
    return Trace.open(runs / "001/steps/000001.safetensors")


@pytest.fixture(scope="module")
def home(runs: Path) -> Iterator[str]:
    with served(runs) as address:
        yield address


def test_the_logit_lens_ends_at_the_models_own_prediction(page: Page, home: str, trace: Trace) -> None:
    page.goto(f"{home}#/001/1")
    lens = page.get_by_role("region", name="layers down, positions across")
    expect(lens.locator(".lens-cell")).to_have_count(2 * 4)
    logits = trace.array("logits")[0, 2]
    shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    words = trace.record.meta["token_texts"]
    lens.get_by_role("button", name="block 0, position 2").click()
    likeliest = page.locator(".lens-chosen tbody tr")
    for row, token in zip(likeliest.all(), np.argsort(-shares)[:5], strict=True):
        assert words[str(token)] in row.inner_text()
        assert float(row.locator("[data-value]").get_attribute("data-value") or 0) == pytest.approx(
            shares[token], rel=1e-12
        )
    page.get_by_role("grid", name="blocks.0.norm2[0,2]").click(position={"x": 5, "y": 5})
    expect(page.locator(".entry-panel h2")).to_have_text("blocks.0.norm2[0,2,0]")
    picture = saved(page, "logit lens")
    assert words[str(int(np.argmax(shares)))] in "".join(picture.itertext())


def test_another_entry_leaves_what_does_not_show_it_as_it_is(page: Page, home: str) -> None:
    page.goto(f"{home}#/001/1/{SCORES}[0,0,1,1]")
    written_out = page.locator(".entry-panel .facts strong")
    written_out.wait_for()
    profile = page.context.new_cdp_session(page)
    profile.send("Profiler.enable")
    profile.send("Profiler.startPreciseCoverage", {"callCount": True})
    page.locator('.entry-panel [aria-label="how it was made"] a[data-entry]').first.click()
    expect(page.locator(".entry-panel h2")).not_to_contain_text(SCORES)
    written_out.wait_for()
    calls = profile.send("Profiler.takePreciseCoverage")["result"]
    assert drawn(calls, "one entry, written out") > 0
    for part in ("the stations of the step", "row of the batch", "numbers of"):
        assert drawn(calls, part) == 0, part


def drawn(calls: list[dict[str, Any]], words: str) -> int:
    """How often the function was called that some words of the page stand in."""
    for script in calls:
        file = bundle.STATIC / script["url"].rpartition("/")[2]
        at = file.read_text(encoding="utf-8").find(words) if file.is_file() else -1
        ranges = [one["ranges"][0] for one in script["functions"]]
        around = [one for one in ranges if one["startOffset"] <= at < one["endOffset"]]
        if at >= 0:
            return int(min(around, key=lambda one: one["endOffset"] - one["startOffset"])["count"]) if around else 0
    raise AssertionError(f"no script that ran holds {words!r}")


def test_of_a_larger_step_what_comes_near_the_screen_is_made(page: Page, home: str, trace: Trace) -> None:
    def larger(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "record_bytes": 10**9})

    page.route("**/api/runs/001/steps/1", larger)
    page.goto(f"{home}#/001/1")
    page.locator(".quantity .facts").first.wait_for()
    for one in trace.step.quantities:
        expect(page.locator(f'section[aria-label="{one.name}"] h3')).to_have_count(1)
    logits = page.locator('section[aria-label="logits"]')
    expect(logits.locator("math")).to_have_count(0)
    expect(page.locator(".chain li, .station.update .moved")).to_have_count(0)
    logits.scroll_into_view_if_needed()
    expect(logits.locator("math").first).to_be_visible()
    expect(logits.get_by_role("grid").first).to_be_visible()
    page.locator("#station-update").scroll_into_view_if_needed()
    expect(page.locator(".station.update .moved")).to_have_count(len(trace.step.parameters))


def test_an_entry_over_the_steps_leads_to_the_same_entry_of_another_step(page: Page, home: str, trace: Trace) -> None:
    page.goto(f"{home}#/001/1/{SCORES}[0,1,3,2]")
    points = page.locator(".spark-over a")
    expect(points).to_have_count(3)
    value = float(trace.array(SCORES)[0, 1, 3, 2])
    labels = [float((one.get_attribute("aria-label") or "").partition(": ")[2]) for one in points.all()]
    assert labels == [value, value + 0.25, value]
    points.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(re.escape(f"#/001/2/{SCORES}[0,1,3,2]")))
    expect(page.locator(".entry-panel .facts strong")).to_have_attribute("data-value", repr(value + 0.25))
    page.locator(".over-steps").get_by_role("button", name="norm").click()
    expect(page.locator(f'.spark-over[aria-label^="‖{SCORES}‖, 3 recorded"]')).to_be_visible()
    norms = [float((one.get_attribute("aria-label") or "").partition(": ")[2]) for one in points.all()]
    assert norms[0] == pytest.approx(np.linalg.norm(trace.array(SCORES)), rel=1e-12)
    assert saved(page, f"‖{SCORES}‖ over the steps").tag.endswith("svg")


def test_findings_stand_at_their_stations_and_lead_to_the_runs(page: Page, home: str) -> None:
    page.goto(f"{home}#/001/1")
    for station in FINDINGS.values():
        pins = page.locator("details.station", has=page.get_by_role("heading", name=station, exact=True)).first
        expect(pins.locator(".pin-of").first).to_be_visible()
    page.locator(".pin-of").first.click()
    expect(page.locator(".found-here .finding")).to_contain_text("it is so")
    assert serious(page) == []
    page.get_by_role("link", name="tokens[0,2]").click()
    expect(page.locator(".entry-panel h2")).to_have_text("tokens[0,2]")
    page.get_by_role("link", name="among the findings of the run").click()
    expect(page.locator(".finding.marked")).to_contain_text("row 0, position 2 on")


def test_what_is_not_finite_is_pinned_and_leads_to_where_it_begins(page: Page, home: str) -> None:
    page.goto(f"{home}#/001/3")
    begins = page.locator(".begins a")
    expect(begins).to_have_text(f"{UP}[0,2,5]")
    expect(page.get_by_role("img", name="numbers first stop being finite here").first).to_be_visible()
    expect(page.locator(f'section[aria-label="{UP}"] .cell-pin').first).to_be_visible()
    begins.click()
    expect(page.locator(".entry-panel h2")).to_have_text(f"{UP}[0,2,5]")


def test_two_steps_are_painted_at_once_and_judged_when_bounds_are_there(page: Page, home: str, trace: Trace) -> None:
    page.goto(f"{home}#/compare/001%2F1/001%2F2")
    maps = page.locator(".beside-each-other .matrix")
    expect(maps).to_have_count(4, timeout=60_000)
    expect(page.locator(".outcome.not")).to_have_text("not rounding")
    both = page.locator(".both")
    expect(both).to_contain_text(f"{SCORES}[0,1,3,2]")
    value = float(trace.array(SCORES)[0, 1, 3, 2])
    assert [float(one.get_attribute("data-value") or 0) for one in both.locator("a [data-value]").all()] == [
        value,
        value + 0.25,
    ]
    assert [one.get_attribute("href") for one in both.locator("a").all()] == [
        f"#/001/{step}/{SCORES}[0,1,3,2]" for step in (1, 2)
    ]
    expect(page.locator(".beside-each-other .beyond").first).to_have_text("1 of 16 entries beyond the bound")
    maps.first.locator(".cells").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(both).to_contain_text(f"{SCORES}[0,1,3,0]")
    assert serious(page) == []
    assert "forward" in "".join(saved(page, "differences along the step").itertext())


def test_a_change_is_painted_before_and_after(page: Page, home: str, trace: Trace) -> None:
    changes = quote('[{"kind":"weight","entry":"blocks.0.mlp.up.weight[3,5]","value":2}]')
    page.goto(f"{home}#/what-if/001/1?changes={changes}")
    expect(page.locator(".beside-each-other .matrix")).to_have_count(3)
    page.get_by_role("button", name="update(blocks.0.mlp.up.weight)", exact=True).click()
    both = page.locator(".both")
    expect(both).to_contain_text("update(blocks.0.mlp.up.weight)[3,5]: after 1.99898")
    before = both.locator("a [data-value]")
    assert float(before.get_attribute("data-value") or 0) == float(trace.array("update(blocks.0.mlp.up.weight)")[3, 5])


def test_a_server_that_is_gone_is_said_where_one_looks(page: Page, home: str) -> None:
    page.goto(f"{home}#/001/1")
    page.locator(".lens-cell").first.wait_for()
    page.route("**/api/**", lambda route: route.abort())
    page.get_by_role("grid", name="logits[0]").first.click()
    expect(page.get_by_role("alert")).to_contain_text("the server does not answer: start limpid serve again")
    expect(page.get_by_role("alert")).to_be_in_viewport()
    expect(page.get_by_text("working it out")).to_be_hidden()


def saved(page: Page, name: str) -> ElementTree.Element:
    """A picture as the file that it is saved as: SVG that any program reads."""
    with page.expect_download() as found:
        page.get_by_role("button", name=f"save {name} as SVG").first.click()
    return ElementTree.fromstring(Path(found.value.path()).read_text(encoding="utf-8"))
