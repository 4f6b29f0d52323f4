"""A browser for the tests: the system's Chromium, else Debian's, else Playwright's own; it reaches loopback alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Playwright, Route

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
WAY_OUT = "no browser for tests/view: install chromium (apt-get install chromium, or playwright install chromium)"


def executable(playwright: Playwright) -> str:
    """A Chromium that starts, installed where there is none.

    Raises  RuntimeError that says what to do
    """
    found = _found(playwright)
    if found is None and sys.platform == "linux" and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True)
        subprocess.run(["apt-get", "install", "-qq", "--yes", "chromium"], capture_output=True)
        found = _found(playwright)
    if found is None:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], capture_output=True)
        found = _found(playwright)
    if found is None:
        raise RuntimeError(WAY_OUT)
    return found


def _found(playwright: Playwright) -> str | None:
    own = playwright.chromium.executable_path
    return next(filter(None, map(shutil.which, NAMES)), own if os.path.exists(own) else None)


def launched(playwright: Playwright) -> Browser:
    """One browser, with an empty profile."""
    return playwright.chromium.launch(executable_path=executable(playwright), args=FLAGS)


@contextmanager
def offline(browser: Browser, **options: object) -> Iterator[BrowserContext]:
    """A context whose requests to anywhere but loopback are refused, and counted: there are to be none."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    refused: list[str] = []
    errors: list[str] = []

    def check(route: Route) -> None:
        where = urlsplit(route.request.url)
        if where.scheme in ("http", "https", "ws", "wss") and where.hostname not in ("127.0.0.1", "localhost", "::1"):
            refused.append(route.request.url)
            route.abort()
        else:
            route.continue_()

    context.route("**", check)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    try:
        yield context
    finally:
        context.close()
    assert not refused, f"the page asked for {refused}"
    assert not errors, f"the page raised {errors}"
