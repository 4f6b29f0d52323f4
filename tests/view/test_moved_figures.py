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
from limpid.primer.cases.depth import BENDS, gradient_norms
from limpid.primer.figures import as_svg
from limpid.primer.figures.descent import places
from limpid.primer.figures.rotation import turned
from limpid.primer.stored import bits, formats, gap, stored
from limpid.view import bundle as page_bundle

FIGURES: dict[str, dict[str, Any]] = {
    "angle": {"a": [4, 0], "b": [2, 3]},
    "temperature": {"z": [2, 1, 0.5], "temperatures": [0.5, 1, 2]},
    "descent": {"minimum": 1, "start": 3, "rate": 0.1, "steps": 8},
    "rotation": {"q": [2, 1], "k": [1, 1], "places": [[3, 1], [7, 5]]},
    "gradient-flow": {"bend": "tanh", "scale": 0.7, "depth": 24},
    "bits": {"value": 6.5, "formats": ["float32", "bfloat16", "float16", "float8 e4m3", "float8 e5m2"]},
}
READ = """
import { readFileSync } from "node:fs";
import * as mathematics from "./mathematics";
import * as layers from "./layers";
import * as rounding from "./rounding";
const of = { ...mathematics, ...layers, ...rounding };
const cases = JSON.parse(readFileSync(0, "utf8"));
// an infinite number is no JSON
const said = (key, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
console.log(JSON.stringify(cases.map(([name, ...given]) => of[name](...given)), said));
"""
SOURCES = ROOT / "web/src/learn/figures"


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
    for position in range(20):
        vector = [float(one) for one in rng.normal(size=2)]
        cases.append(["turned", vector, position])
        wanted.append(turned(vector, position))
    for bend in BENDS:
        for scale, depth, added in ((0.7, 24, True), (1.4, 48, False), (4, 9, True)):
            cases.append(["gradientNorms", bend, scale, depth, added])
            wanted.append(gradient_norms(bend, scale, depth, added))
    for case, one, there in zip(cases, asked_of_the_page(cases, tmp_path), wanted, strict=True):
        np.testing.assert_allclose(one, there, rtol=1e-7, atol=1e-9, err_msg=str(case))


@pytest.mark.parametrize("name", FIGURES["bits"]["formats"])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_the_page_rounds_as_the_formats_do_to_the_last_bit(name: str, bundle: None, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    drawn = [float(one) for one in rng.normal(size=800) * 10.0 ** rng.integers(-46, 40, 800)]
    near = [stored(float(one), name) for one in rng.normal(size=300) * 10.0 ** rng.integers(-9, 4, 300)]
    middles = [(one + half * gap(one, name)) * nudge for one in near if np.isfinite(one) and one
               for half in (0.5, -0.5) for nudge in (1, 1 + 1e-9, 1 - 1e-12)]  # fmt: skip
    largest = next(one.largest for one in formats() if one.name == name)
    edges = [0.0, -0.0, 1.0, -1.0, 0.1, *(sign * largest * by for sign in (1, -1) for by in (1, 1.01, 1.03, 1.07, 2))]
    numbers = [*drawn, *middles, *edges]
    found = asked_of_the_page([["bits", one, name] for one in numbers], tmp_path)
    for number, there in zip(numbers, found, strict=True):
        wanted = bits(number, name)
        assert (there["sign"], there["exponent"], there["fraction"]) == wanted[:3], number
        assert float(there["value"]) == wanted.value or np.isnan(wanted.value), number


def asked_of_the_page(cases: list[Any], folder: Path) -> list[Any]:
    """What the figures' own mathematics gives, run by Node."""
    from bundle import commands

    built = folder / "read.mjs"
    words = [
        str(ROOT / "web/node_modules/.bin/esbuild"),
        "--bundle",
        "--platform=node",
        "--format=esm",
        f"--outfile={built}",
    ]
    subprocess.run(words, check=True, capture_output=True, input=READ, text=True, cwd=SOURCES)
    run = [*commands()[0], str(built)]
    done = subprocess.run(run, check=True, capture_output=True, input=json.dumps(cases), text=True)
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def moved(page: Page, bundle: None, tmp_path: Path) -> Page:
    """The figures as a file has them."""
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


def test_a_score_follows_the_distance_alone(moved: Page) -> None:
    figure = moved.locator("figure[data-figure=rotation]")
    score = figure.locator("output[data-is=score]")
    expect(score).to_have_text(f"{dot(turned([2, 1], 3), turned([1, 1], 1)):.4g}".replace("-", "−"))
    before = score.inner_text()
    figure.get_by_role("button", name="both one on").press("Enter")
    expect(figure.locator(".reads")).to_contain_text("Query at 4, key at 2: distance 2")
    expect(score).to_have_text(before)
    figure.get_by_role("slider", name="position of the key").press("ArrowRight")
    expect(figure.locator("output[data-is=distance]")).to_have_text("1")
    expect(score).to_have_text(f"{dot(turned([2, 1], 4), turned([1, 1], 3)):.4g}")
    assert figure.get_by_text("At the same distance").inner_text().count(score.inner_text()) == 3
    figure.get_by_role("slider", name="position of the key").fill("16")  # the key behind the query
    expect(figure.get_by_text("At the same distance")).to_contain_text("6 and 18 give")
    expect(figure.get_by_role("button", name="both one on")).to_be_disabled()


def test_a_gradient_dies_without_the_stream(moved: Page) -> None:
    figure = moved.locator("figure[data-figure=gradient-flow]")
    reads = figure.locator(".reads")
    expect(reads).to_contain_text("it lasts")
    figure.get_by_role("checkbox", name="added to the stream").press("Space")
    expect(reads).to_contain_text("it vanishes")
    figure.get_by_label("behind each matrix").select_option("nothing")
    figure.get_by_role("slider", name="scale of the weights").fill("1")
    expect(reads).to_contain_text("it explodes")
    figure.get_by_role("slider", name="layers").fill("3")
    wanted = gradient_norms("nothing", 2, 3, False)[-1]
    expect(figure.locator("output[data-is=length]")).to_have_text(f"{wanted:.3g}")


def test_a_number_is_typed_and_its_bits_are_those_of_each_format(moved: Page) -> None:
    figure = moved.locator("figure[data-figure=bits]")
    for typed, number in (("0,1", 0.1), ("−3e-8", -3e-8), ("70000", 70000.0), ("500", 500.0)):
        figure.get_by_label("number", exact=True).fill(typed)
        for name in FIGURES["bits"]["formats"]:
            row, wanted = figure.locator(f"li[data-format='{name}']"), bits(number, name)
            said = f"sign {wanted.sign}, exponent {wanted.exponent}, fraction {wanted.fraction}"
            expect(row.get_by_role("img")).to_have_attribute("aria-label", said)
    expect(figure.locator("li[data-format='float8 e4m3']")).to_contain_text("not a number")
    figure.get_by_label("number", exact=True).fill("many")
    expect(figure.locator(".reads")).to_contain_text("“many” is no number")
    figure.get_by_role("slider").fill("1")
    expect(figure.get_by_label("number", exact=True)).to_have_value("2")
    expect(figure.locator("li[data-format='float8 e4m3'] [data-is=error]")).to_have_text("0")


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
