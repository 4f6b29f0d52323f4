"""The page beside a real run: it trains, it is killed, it is resumed, and nobody reloads."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Page, expect
from tests.view.canned import TIMEOUT

import small
from limpid.run import Run
from limpid.view.server import application
from limpid.view.serving import listen

OPTIONS = (
    "--tokenizer bytes --context-length 16 --d-model 24 --num-layers 2 --num-heads 3 --d-ff 40 --batch-size 3 "
    "--max-steps 100000 --compile off --save-steps 20 --eval-steps 0 --sample-steps 0 --precision fp32 --threads 1 "
    "--schedule constant --learning-rate 0.5"
)
"""A rate so high that the loss stays level, which the doctor says after some two hundred steps."""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def address(tmp_path: Path, bundle: None) -> Iterator[str]:
    """A server of the folder that the run will lie in."""
    (tmp_path / "runs").mkdir()
    with listen("127.0.0.1", 0, 8000) as own:
        server = uvicorn.Server(uvicorn.Config(application(tmp_path / "runs"), log_level="error", lifespan="off"))
        serving = threading.Thread(target=server.run, args=([own],))
        serving.start()
        yield f"http://127.0.0.1:{own.getsockname()[1]}/"
        server.force_exit = server.should_exit = True
        serving.join(20)


def started(run: Run, *words: str) -> subprocess.Popen[bytes]:
    """A training in a process of its own, once it has written one more line than before."""
    before = len(run.read_metrics().lines)
    process = subprocess.Popen([sys.executable, "-m", "limpid", "train", *words], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while len(run.read_metrics().lines) <= before:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def reached(page: Page) -> int:
    """The step that the page says the run has come to."""
    found = re.search(r"([\d,]+) of 100,000", page.locator(".headlines").first.inner_text())
    return int(found[1].replace(",", "")) if found else 0


def await_step(page: Page, step: int) -> None:
    until = time.monotonic() + TIMEOUT / 1000
    while reached(page) < step:
        assert time.monotonic() < until, f"the page says step {reached(page)}"
        page.wait_for_timeout(100)


def test_a_run_is_seen_as_it_trains_is_killed_and_goes_on(
    tmp_path: Path, page: Page, address: str, training: list[subprocess.Popen[bytes]]
) -> None:
    text, run = small.corpus(tmp_path / "text", 3), Run(tmp_path / "runs/001")
    training.append(started(run, str(text), "--name", str(run.path), *OPTIONS.split()))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.set_default_timeout(TIMEOUT)
    page.goto(f"{address}#/001")
    expect(page.locator(".state.training")).to_be_visible()
    page.evaluate("window.marked = true")
    first = reached(page)
    await_step(page, max(first, 220))
    expect(page.get_by_role("button", name=re.compile("^notice, step .*loss-plateau")).first).to_be_visible()
    assert asked.count("/api/runs/001") == 1, "all that came since was told, not asked for"
    assert asked.count("/api/runs/001/events") == 1
    training[0].kill()
    training[0].wait()
    expect(page.locator(".state.stopped")).to_be_visible()
    killed = reached(page)
    assert killed == run.read_metrics().steps[-1]["step"]
    training.append(started(run, "--resume", str(run.path)))
    expect(page.locator(".state.training")).to_be_visible()
    await_step(page, killed + 5)
    assert asked.count("/api/runs/001/events") == 2
    assert page.evaluate("window.marked"), "nobody reloaded it"
