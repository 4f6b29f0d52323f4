"""Photograph the page into docs/pictures: a run is trained in FOLDER where it is missing, then served and looked at.

python docs/pictures.py FOLDER [VIEW …]                       1280 pixels wide, light: the pictures of the documentation
python docs/pictures.py FOLDER [VIEW …] --everywhere OTHER    into OTHER, at 1280 and at 360 pixels, light and dark
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/view")]
from browser import launched, offline
from tests.view.servers import served

PICTURES = Path(__file__).parent / "pictures"
SIZE = "--max-steps 400 --d-model 96 --num-layers 3 --num-heads 4 --context-length 64 --batch-size 16 --threads 1"
HOT = "--max-steps 200 --d-model 48 --num-layers 2 --num-heads 4 --context-length 64 --batch-size 8 --threads 1"
MAKE = {
    "runs/base/config.toml": f"train --name base {SIZE} --save-steps 100 --eval-steps 50",
    "runs/base/steps/000300.safetensors": "trace base --step 300 --brief",
    "runs/hot/config.toml": f"train --name hot {HOT} --learning-rate 0.2 --eval-steps 25",
    "runs/bf16": "trace runs/base/model --operations --precision bf16 --keep runs/bf16 --text",
}
"""What has to be there, and the command that makes it."""
TEXT = "def read(self, name):"
WEIGHTS = "blocks.1.attention.weights"
CHANGES = quote('[{"kind":"token","row":0,"position":12,"token":300}]')
PATIENCE = 60_000


@dataclass(frozen=True)
class View:
    """One picture: where it is taken, what has to be painted, and what is done first."""

    address: str
    painted: str
    height: int = 900
    first: Callable[[Page], object] = lambda page: None


def _weights(page: Page) -> None:
    """The attention weights of both, and the cell that is furthest off."""
    page.get_by_role("button", name="block 1 attention, forward").click()
    page.get_by_role("button", name=WEIGHTS, exact=True).click()


def _station(page: Page) -> None:
    page.get_by_role("button", name="block 1 attention, forward").click()


VIEWS = {
    "run": View("#/hot", ".u-over", 1000),
    "step": View("#/base/300/blocks.0.attention.weights[0,1,20,12]", ".entry-panel .facts strong", 860),
    "compare": View("#/compare/base@400/base@400:transformers", ".beside-each-other .matrix canvas", 1240, _weights),
    "what-if": View(f"#/what-if/base/300?changes={CHANGES}", ".beside-each-other .matrix canvas", 1080, _station),
    "recording": View("#/recording/bf16", ".flame svg g", 1280),
    "learn": View("#/learn/vectors", ".learn figure, .learn svg", 1000),
    "play": View("#/play/base@400?prompt=def+read%28self", ".heads-of button", 980),
    "plan": View("#/plan?what=llama-3-8b&device=h100&devices=8&tokens=1T", ".headlines", 1460),
}


def make(folder: Path) -> None:
    """Train, record, and keep the calls of a step, where that was not done."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, command in MAKE.items():
        if not (folder / place).exists():
            words = [*command.split(), *([TEXT] if command.endswith("--text") else [])]
            subprocess.run([sys.executable, "-m", "limpid", *words], cwd=folder, check=True)


def taken(page: Page, home: str, view: View, file: Path, whole: bool) -> None:
    """One photograph."""
    page.goto(f"{home}{view.address}")
    page.locator(view.painted).first.wait_for(timeout=PATIENCE)
    view.first(page)
    page.locator(view.painted).first.wait_for()
    page.wait_for_load_state("networkidle")
    page.locator(".beside-each-other .loading").first.wait_for(state="detached")
    page.mouse.move(0, 0)
    page.wait_for_timeout(3000)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(400)
    page.screenshot(path=file, full_page=whole)
    print(file)


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("folder", type=Path)
    said.add_argument("views", nargs="*", choices=[[], *VIEWS])
    said.add_argument("--everywhere", type=Path)
    asked = said.parse_args()
    make(asked.folder)
    views = {name: VIEWS[name] for name in asked.views or VIEWS}
    ways = [(1280, "light")] if asked.everywhere is None else [(w, s) for w in (1280, 360) for s in ("light", "dark")]
    with served((asked.folder / "runs").absolute()) as home, sync_playwright() as playwright:
        browser = launched(playwright)
        for name, view in views.items():
            for width, scheme in ways:
                size = {"width": width, "height": view.height}
                with offline(browser, viewport=size, color_scheme=scheme, reduced_motion="reduce") as context:
                    page = context.new_page()
                    page.set_default_timeout(PATIENCE)
                    at = PICTURES / f"{name}.png"
                    if asked.everywhere is not None:
                        asked.everywhere.mkdir(parents=True, exist_ok=True)
                        at = asked.everywhere / f"{name}-{width}-{scheme}.png"
                    taken(page, home, view, at, whole=asked.everywhere is not None)
        browser.close()


main()
