"""A page whose server is a table of answers: every state of a view can be had, and none takes a process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Page, Route, expect

from limpid.view import bundle
from limpid.view.routes.page import MEDIA_TYPES

ROOT = Path(__file__).parents[2]
HOME = "http://127.0.0.1:1/"
AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
TIMEOUT = 30_000
"""Milliseconds: of a machine that has other things to do."""
expect.set_options(timeout=TIMEOUT)
Answers = Mapping[str, Any]
"""What is answered, by path below api/: a document, or a function of what was posted."""


class Asked(list[str]):
    """Paths that the page asked for, in their order."""


def opened(page: Page, address: str, answers: Answers) -> Asked:
    """Open an address of the page; what it asks is answered from the table."""
    asked = Asked()
    page.set_default_timeout(TIMEOUT)

    def answer(route: Route) -> None:
        path = unquote(urlsplit(route.request.url).path).removeprefix("/")
        if not path.startswith("api/"):
            of_the_page(route, path)
            return
        asked.append(path.removeprefix("api/"))
        found = answers.get(path.removeprefix("api/"))
        if callable(found):
            found = found(json.loads(route.request.post_data or "null"))
        if found is None:
            route.fulfill(status=404, json={"error": f"there is no {path} here", "missing": None})
        elif isinstance(found, bytes):
            route.fulfill(body=found, content_type="application/octet-stream")
        elif isinstance(found, str):
            route.fulfill(body=found, content_type="text/event-stream")
        else:
            route.fulfill(json=found)

    page.route(f"{HOME}**", answer)
    page.goto(f"{HOME}{address}")
    return asked


def of_the_page(route: Route, path: str) -> None:
    """Answer with the document, a script or a style sheet."""
    file = bundle.STATIC / path.removeprefix("static/")
    if path == "":
        route.fulfill(body=bundle.served(), content_type="text/html")
    elif file in bundle.parts():
        route.fulfill(body=file.read_text(encoding="utf-8"), content_type=MEDIA_TYPES[file.suffix])
    else:
        route.fulfill(status=404)


def event(kind: str, data: object, at: str = "") -> str:
    """One server-sent event."""
    return (f"id: {at}\n" if at else "") + f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def serious(page: Page) -> list[str]:
    """What axe finds serious or critical, each with the element that it is about."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def beyond_the_edge(page: Page) -> list[str]:
    """What makes the page scroll sideways."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
          [...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1
            && !one.closest('.scroll')).map((one) => `${one.tagName}.${one.className}`)"""
    )


def everybody_reads(page: Page, controls: str) -> None:
    """What is shown is read by a screen reader, in the dark, on a telephone, and on paper, where no control stands."""
    assert serious(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert beyond_the_edge(page) == []
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(controls).filter(visible=True).count() == 0
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
