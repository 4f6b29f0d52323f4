"""Figures that are moved: by pointer and keyboard, with the numbers that limpid's mathematics has."""

import json
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests.view.canned import ROOT, beyond_the_edge, serious

from limpid.maths.foundations import cosine_similarity, dot, norm, softmax
from limpid.primer.figures import as_svg
from limpid.primer.figures.descent import places
from limpid.view import bundle as page_bundle

FIGURES: dict[str, dict[str, Any]] = {
    "angle": {"a": [4, 0], "b": [2, 3]},
    "temperature": {"z": [2, 1, 0.5], "temperatures": [0.5, 1, 2]},
    "descent": {"minimum": 1, "start": 3, "rate": 0.1, "steps": 8},
}
READ = """
import * as of from "./mathematics.mjs";
const cases = JSON.parse(process.argv[2]);
console.log(JSON.stringify(cases.map(([name, ...given]) => of[name](...given))));
"""


def test_the_page_computes_what_the_mathematics_does(bundle: None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cases: list[Any] = []
    wanted: list[Any] = []
    for _ in range(30):
        a, b = rng.normal(size=(2, 4))
        temperature, minimum, start, rate = (float(one) for one in rng.uniform(0.1, 2, 4))
        cases += [["dot", [*a], [*b]], ["norm", [*a]], ["cosine", [*a], [*b]], ["angle", [*a], [*b]]]
        cosine = float(cosine_similarity(a, b))
        wanted += [dot(a, b), norm(a), cosine, np.degrees(np.arccos(cosine))]
        cases += [["softmax", [*a], temperature], ["descent", minimum, start, rate, 5]]
        wanted += [softmax(a, temperature), places(minimum, start, rate, 5)]
    esbuild = ROOT / "web/node_modules/.bin/esbuild"
    source = ROOT / "web/src/learn/figures/mathematics.ts"
    subprocess.run([esbuild, source, f"--outfile={tmp_path}/mathematics.mjs"], check=True, capture_output=True)
    (tmp_path / "read.mjs").write_text(READ)
    from bundle import commands

    node, _ = commands()
    words = [*node, tmp_path / "read.mjs", json.dumps(cases)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    for case, one, there in zip(cases, found, wanted, strict=True):
        np.testing.assert_allclose(one, there, rtol=1e-7, atol=1e-9, err_msg=str(case))


@pytest.fixture
def moved(page: Page, bundle: None, tmp_path: Path) -> Page:
    """The three figures as a file has them."""
    figures = "".join(
        f'<figure data-figure="{name}" data-settings="{escape(json.dumps(settings))}">{as_svg(name, settings)}</figure>'
        for name, settings in FIGURES.items()
    )
    head = f"<style>{page_bundle.style('primer')}</style>"
    inside = f'<main class="learn"><h1>Figures</h1>{figures}</main>'
    text = page_bundle.document(head, f"<script>{page_bundle.script('primer')}</script>", inside=inside)
    (tmp_path / "figures.html").write_text(text, encoding="utf-8")
    page.goto((tmp_path / "figures.html").as_uri())
    return page


def test_vectors_are_dragged_and_moved_by_keys(moved: Page) -> None:
    figure = moved.locator("figure[data-figure=angle]")
    reads = figure.locator("output[data-is=dot]"), figure.locator("output[data-is=cosine]")
    expect(reads[0]).to_have_text("8")
    expect(reads[1]).to_have_text(f"{cosine_similarity([4, 0], [2, 3]):.4g}")
    figure.get_by_role("slider", name="b, right").focus()
    for _ in range(3):
        moved.keyboard.press("ArrowLeft")
    expect(reads[0]).not_to_have_text("8")
    grip = figure.locator(".grip").nth(1)
    box = grip.bounding_box()
    assert box is not None
    at = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    picture = figure.locator("svg").first.bounding_box()
    assert picture is not None
    moved.mouse.move(*at)
    moved.mouse.down()
    moved.mouse.move(picture["x"] + picture["width"] / 2, at[1] - 10, steps=4)  # straight up: at a right angle to a
    moved.mouse.up()
    expect(reads[1]).to_have_text("0")
    expect(figure.locator("output[data-is=angle]")).to_have_text("90°")


def test_sliders_move_a_temperature_and_a_descent(moved: Page) -> None:
    figure = moved.locator("figure[data-figure=temperature]")
    for power in (-1, 0, 1):
        figure.get_by_role("slider").fill(str(power))
        wanted = ", ".join(f"{share:.3f}" for share in softmax(FIGURES["temperature"]["z"], 10.0**power))
        expect(figure.locator("output[data-is=shares]")).to_have_text(wanted)
    figure = moved.locator("figure[data-figure=descent]")
    for rate, said in ((0.1, "nearer"), (0.9, "leaps over the minimum, and lands nearer"), (1.05, "farther away")):
        figure.get_by_role("slider", name="step size").fill(str(rate))
        expect(figure.locator(".reads")).to_contain_text(said)
        last = places(1, 3, rate, 8)[-1]
        assert float(figure.locator("output[data-is=weight]").inner_text().replace("−", "-")) == pytest.approx(
            last, 1e-3
        )


def test_everybody_sees_them_and_paper_has_those_that_stand_still(moved: Page) -> None:
    assert serious(moved) == []
    moved.emulate_media(color_scheme="dark")
    assert serious(moved) == []
    moved.set_viewport_size({"width": 360, "height": 740})
    assert beyond_the_edge(moved) == []
    assert moved.locator("figure > svg:visible").count() == 0
    moved.emulate_media(media="print")
    assert moved.locator("figure > svg:visible").count() == len(FIGURES)
    assert moved.locator(".moving:visible").count() == 0
