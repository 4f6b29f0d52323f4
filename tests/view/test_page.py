"""The page itself: it is built, drawn by a browser, and small enough."""

import re
import subprocess
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from playwright.sync_api import Page
from tests.view.canned import opened
from tests.view.examples import ANSWERS

from limpid.errors import ConfigError
from limpid.tracing.schema import to_json
from limpid.view import bundle as page_bundle
from limpid.view import schema, typescript
from limpid.view.equations import equations_view
from limpid.view.questions import WhatIfQuestion
from limpid.view.what_if import TAKE

ROOT = Path(__file__).parents[2]


def test_types_and_schema_are_those_of_the_documents() -> None:
    assert typescript.FILE.read_text(encoding="utf-8") == typescript.written(), "run python -m limpid.view"
    assert schema.FILE.read_text(encoding="utf-8") == schema.written(), "run python -m limpid.view"


def test_every_change_that_may_be_asked_for_has_its_type() -> None:
    changes = get_args(get_args(get_type_hints(WhatIfQuestion)["changes"])[0])
    assert {kind for change in changes for kind in get_args(get_type_hints(change)["kind"])} == set(TAKE)


def test_typescript_is_strict_and_right(bundle: None) -> None:
    done = subprocess.run(
        [ROOT / "web/node_modules/.bin/tsc", "--project", ROOT / "web"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_script_and_style_are_small(bundle: None) -> None:
    first = [*asked_for_at_once("limpid.js"), "limpid.css"]
    assert sum((page_bundle.STATIC / name).stat().st_size for name in first) <= 250_000
    later = {one.name for one in page_bundle.parts()} - {
        *first,
        "cell.js",
        "cell.css",
        "step.js",
        "step.css",
        "primer.js",
        "primer.css",
    }
    assert max((page_bundle.STATIC / name).stat().st_size for name in later) <= 60_000
    assert len(page_bundle.script("cell").encode()) + len(page_bundle.style("cell").encode()) <= 325_000


def asked_for_at_once(script: str) -> set[str]:
    """A script, and those that it imports before it begins."""
    imports = re.findall(r"""(?:from|import)["']\./([\w-]+\.js)["']""", (page_bundle.STATIC / script).read_text())
    return {script}.union(*map(asked_for_at_once, imports))


def test_a_view_that_is_seldom_first_comes_when_it_is_asked_for(page: Page) -> None:
    scripts: list[str] = []
    page.on("request", lambda request: scripts.append(request.url.rpartition("/")[2]))
    opened(page, "#/", ANSWERS)
    page.locator("table.runs").wait_for()
    assert asked_for_at_once("limpid.js") <= set(scripts)
    assert not [one for one in scripts if one.startswith("plan-")]
    page.evaluate("location.hash = '#/plan'")
    page.get_by_role("heading", name="Plan").wait_for()
    assert [one for one in scripts if one.startswith("plan-")]


def test_a_part_that_does_not_come_says_so(page: Page) -> None:
    opened(page, "#/", ANSWERS)
    page.route("**/static/plan-*", lambda route: route.abort())
    page.evaluate("location.hash = '#/plan'")
    page.get_by_role("alert").get_by_text("start limpid serve again, and reload").wait_for()


def test_a_page_that_was_not_built_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_bundle, "STATIC", tmp_path)
    with pytest.raises(ConfigError, match=r"run `python web/bundle\.py`"):
        page_bundle.script()


def test_the_equations_are_drawn_and_found(page: Page) -> None:
    opened(page, "#/equations", {"equations": to_json(equations_view())})
    page.get_by_role("searchbox").fill("softmax")
    shown = page.locator("section.equation")
    shown.first.wait_for()
    assert 0 < shown.count() < 40
    assert shown.first.locator("math").count() > 0
