"""The engine against transformers, and against its own other paths: judged by a job, and shown down to each cell."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from safetensors.numpy import load
from starlette.testclient import TestClient
from tests.view.canned import serious
from tests.view.servers import served
from tests.view.test_runs import fits

import limpid
from limpid.cli import main
from limpid.comparison.verdict import Comparison
from limpid.reporter import SILENT
from limpid.view import alive, worker
from limpid.view.serving import listen
from limpid.view.variants import beside

Ask = Callable[..., TestClient]
BOTH = "a=001@20&b=001@20:transformers"
WEIGHTS = "blocks.1.attention.weights"


@pytest.fixture(scope="module")
def folder(trained: tuple[Path, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, whose comparisons are this module's."""
    found = tmp_path_factory.mktemp("variants") / "runs"
    shutil.copytree(trained[0], found)
    return found


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return limpid.compare(f"{folder}/001@20", f"{folder}/001@20:transformers")


def test_they_are_compared_when_asked_for_and_kept(folder: Path, ask: Ask, comparison: Comparison) -> None:
    client = ask(folder)
    assert client.get(f"/api/variants?{BOTH}").json()["missing"] == "document"
    job = client.post("/api/variants/made", json={"a": "001@20", "b": "001@20:transformers"}).json()
    fits(job, "JobDocument")
    client.get(f"/api/jobs/{job['job']}/events")
    found = client.get(f"/api/variants?{BOTH}").json()
    fits(found, "ComparedDocument")
    assert (found["a"], found["b"], found["kind"]) == ("001@20", "001@20:transformers", "variants")
    assert {row["name"]: row["share"] for row in found["rows"]} == {
        one.title: one.worst for one in comparison.differences
    }
    weights = next(row for row in found["rows"] if row["name"] == WEIGHTS)
    assert weights["axes"] == ["batch", "head", "query", "key"]
    assert any("transformers" in note for note in found["notes"])


def test_each_cell_is_that_of_both_and_its_share_that_of_its_vector(
    folder: Path, ask: Ask, comparison: Comparison
) -> None:
    client = ask(folder)
    client.get(f"/api/variants?{BOTH}")

    def side(word: str, entry: str) -> np.ndarray:
        answer = client.get(f"/api/variants/slice?{BOTH}&entry={entry}&side={word}")
        assert answer.status_code == 200, answer.text
        return load(answer.content)["data"]

    for title in (
        WEIGHTS,
        "blocks.0.attention.query",
        "grad(blocks.0.mlp.up.weight)",
        "grad(final_norm.weight)",
        "loss",
    ):
        one = next(one for one in comparison.differences if one.title == title)
        held = [seen.gradients if one.kind == "backward" else seen.values for seen in
                (comparison.first, comparison.second)]  # fmt: skip
        a, b = side("a", title), side("b", title)
        np.testing.assert_array_equal(a.ravel(), held[0][one.name].ravel())
        np.testing.assert_array_equal(b.ravel(), held[1][one.name].ravel())
        np.testing.assert_array_equal(side("difference", title), a.astype(float) - b)
        share = side("share", title)
        assert share.shape == a.shape
        assert share.max() == pytest.approx(one.worst, rel=1e-6)
        if a.ndim:
            np.testing.assert_array_equal(share, np.broadcast_to(share[..., :1], share.shape))


def test_the_cell_that_is_named_lies_in_the_vector_furthest_off(comparison: Comparison) -> None:
    found = beside(comparison, "a", "b")
    for one, row in zip(comparison.differences, found.document.rows, strict=True):
        pair = found.pairs[one.title]
        assert row.index[: len(one.index)] == one.index
        assert abs(row.a - row.b) == row.largest
        assert (row.a, row.b) == (np.asarray(pair.a)[row.index], np.asarray(pair.b)[row.index])


def test_a_fault_is_beyond_the_bound_at_its_cells(folder: Path) -> None:
    """Of two checkpoints the weights differ, and what follows from them."""
    found = beside(limpid.compare(f"{folder}/001@10", f"{folder}/001@20"), "a", "b")
    assert max(row.share or 0 for row in found.document.rows) > 1
    share = np.asarray(found.pairs["logits"].share())
    assert (share > 1).any()
    assert "embed.tokens.weight" in found.document.alone


def test_the_page_has_them_judged_and_shows_each_cell(page: Page, bundle: None, folder: Path) -> None:
    with served(folder) as home:
        page.goto(f"{home}#/001")
        page.get_by_role("link", name="the checkpoint after step 30, here and in transformers").click()
        expect(page.locator(".outcome.fits")).to_have_text("the same up to rounding", timeout=120_000)
        page.get_by_role("button", name=re.compile(r"^all \d+$")).click()
        page.get_by_role("button", name=WEIGHTS, exact=True).click()
        maps = page.locator(".beside-each-other .matrix")
        expect(maps).to_have_count(4)
        expect(page.locator(".sides")).to_contain_text("every vector within its bound, which is 1")
        maps.first.locator(".cells").focus()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(page.locator(".both")).to_contain_text("its vector is apart by")
        assert serious(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        expect(page.locator("html")).to_have_js_property("scrollWidth", 360)


@pytest.mark.parametrize(
    "both",
    [
        "a=001&b=001:transformers", "a=001@3&b=001@3:fast", "a=001@20:lora=x&b=001@20", "a=../x@20:fast&b=001@20",
        "a=001@20:processes=4&b=001@20", "a=001@20:fast&b=001/20", "a=001@20:fast",
    ],
)  # fmt: skip
def test_what_is_no_variant_is_said_in_one_line(folder: Path, ask: Ask, both: str) -> None:
    answer = ask(folder).get(f"/api/variants?{both}")
    assert answer.status_code in (400, 404)
    fits(answer.json(), "ErrorDocument")


def test_a_word_that_names_no_way_is_said_by_the_job(folder: Path) -> None:
    question = {"a": f"{folder}/001@20", "b": f"{folder}/001@20:quickly", "names": ["a", "b"], "file": "none"}
    with pytest.raises(limpid.errors.LimpidError, match="asks for 'quickly'"):
        worker.variants(question, SILENT.progress)


def test_the_verb_names_where_the_page_shows_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with listen("127.0.0.1", 0, 8000) as own:
        home = f"http://127.0.0.1:{own.getsockname()[1]}/"
        with alive.announced(folder, home):
            assert main(["compare", f"{folder}/001@20", f"{folder}/001@20:transformers"]) == 0
    assert capsys.readouterr().out.endswith(f"in the page: {home}#/compare/001@20/001@20:transformers\n")
