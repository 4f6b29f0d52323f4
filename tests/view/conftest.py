"""One browser, one built page, one trained run and one pair of recorded steps for all tests of a worker."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn
from browser import launched, offline
from filelock import FileLock
from playwright.sync_api import Browser, Page, sync_playwright
from starlette.testclient import TestClient
from tests.view.folders import made_run

import limpid
import small
from limpid.tracing import worked
from limpid.view.server import application
from limpid.view.serving import listen

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


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with a run of 30 steps, and what a page heard of it while it trained."""
    folder = tmp_path_factory.mktemp("trained")
    text = small.corpus(folder / "text", 3)
    (folder / "runs").mkdir()
    heard: list[bytes] = []
    with listen("127.0.0.1", 0, 8000) as own:
        server = uvicorn.Server(uvicorn.Config(application(folder / "runs"), log_level="error", lifespan="off"))
        served = threading.Thread(target=server.run, args=([own],))
        served.start()
        address = f"http://127.0.0.1:{own.getsockname()[1]}/api/runs/001"

        def listen_on() -> None:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                if httpx2.get(address).status_code == 200:
                    break
                time.sleep(0.02)
            with httpx2.stream("GET", f"{address}/events?after=0-0-0", timeout=60) as answer:
                heard.extend(answer.iter_bytes())

        page = threading.Thread(target=listen_on)
        page.start()
        limpid.train(small.config(text, max_steps=30, eval_steps=10, save_steps=10), str(folder / "runs/001"))
        page.join(60)
        server.should_exit = True
        served.join(10)
    return folder / "runs", b"".join(heard)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the worked step twice, the second with another weight after the fact."""
    folder = tmp_path_factory.mktemp("two")
    run = made_run(folder, "001", 2)
    run.recorded_step(1).parent.mkdir()
    for step in (1, 2):
        worked.record(run.recorded_step(step))
    return folder
