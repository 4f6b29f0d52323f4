"""One browser and one built page for all tests of a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import launched, offline
from filelock import FileLock
from playwright.sync_api import Browser, Page, sync_playwright
from starlette.testclient import TestClient

from limpid.view.server import application

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bundle() -> None:
    """The page's script and style, built anew where a source is newer; one worker builds, others wait for it."""
    sys.path.insert(0, str(ROOT / "web"))
    import bundle

    bundle.STATIC.mkdir(parents=True, exist_ok=True)
    with FileLock(bundle.STATIC / ".lock"):
        if not bundle.is_built():
            bundle.build()


@pytest.fixture(scope="session")
def browser(bundle: None) -> Iterator[Browser]:
    """One browser for the session."""
    with sync_playwright() as playwright:
        found = launched(playwright)
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page that reaches loopback alone, and fails its test where it raised an error."""
    with offline(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as context:
        found = context.new_page()
        found.set_default_timeout(10_000)
        yield found


@pytest.fixture
def ask() -> Callable[..., TestClient]:
    """A browser on this machine, without sockets."""

    def client(folder: Path, token: str | None = None, host: str = "127.0.0.1:8000") -> TestClient:
        return TestClient(application(folder, token), base_url=f"http://{host}", follow_redirects=False)

    return client
