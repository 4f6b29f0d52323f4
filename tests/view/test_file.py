"""One file that opens from the disk: the worked model, every number of it, every entry written out."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import offline
from playwright.sync_api import Browser, Page

from limpid.tracing import Trace
from limpid.tracing.schema import to_json
from limpid.tracing.worked import opened
from limpid.view import file
from limpid.view.step import entry_view

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"

NUMBERS = """() => Object.fromEntries([...document.querySelectorAll(".numbers")].map((table) => [
  table.ariaLabel.slice("numbers of ".length),
  [...table.querySelectorAll("td[data-value]")].map((td) => td.dataset.value),
]))"""


@pytest.fixture(scope="module")
def trace() -> Iterator[Trace]:
    with opened() as found:
        yield found


@pytest.fixture(scope="module")
def worked(trace: Trace, bundle: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file's address."""
    where = tmp_path_factory.mktemp("page") / "worked.html"
    file.write(trace, where, home="#/worked")
    return where.as_uri()


@pytest.fixture(scope="module")
def step(browser: Browser, worked: str) -> Iterator[Page]:
    """The file, open at the step; tests go on to other addresses of it."""
    with offline(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as context:
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto(f"{worked}#/worked/1")
        yield page


def show(page: Page, address: str) -> None:
    page.evaluate("address => { location.hash = address }", address)


def panel(page: Page, entry: str) -> None:
    """Wait until an entry is written out."""
    page.locator(".entry-panel h2", has_text=re.compile(f"^{re.escape(entry)}$")).wait_for()
    page.locator(".entry-panel .part").first.wait_for()


def test_it_is_small_and_needs_nothing_else(worked: str) -> None:
    text = Path(worked.removeprefix("file://")).read_text(encoding="utf-8")
    assert len(text.encode()) <= 600_000
    assert "connect-src 'none'" in text
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text.partition("<script>")[0])


def test_it_opens_at_every_number_of_the_step(browser: Browser, worked: str, trace: Trace) -> None:
    with offline(browser) as context:
        page = context.new_page()
        page.goto(worked)
        page.locator(".numbers").nth(60).wait_for()
        shown = page.evaluate(NUMBERS)
    seen = 0
    for asked, numbers in shown.items():
        array = np.asarray(trace.array(asked)).ravel()
        assert [float(number) for number in numbers] == array.tolist(), asked
        seen += array.size
    learned = sum(int(np.prod(one.shape)) for one in trace.step.parameters)
    formed = sum(int(np.prod(one.shape)) for one in trace.step.quantities)
    assert seen == 3 * learned + 2 * formed


def test_every_entry_is_written_out_as_python_writes_it(step: Page, trace: Trace) -> None:
    generator = random.Random(0)
    names = [*(one.name for one in trace.step.quantities), *(one.name for one in trace.step.parameters), "tokens"]
    for name in names:
        index = tuple(generator.randrange(size) for size in trace.array(name).shape)
        asked = f"{name}[{', '.join(map(str, index))}]" if index else name
        want = to_json(entry_view(trace, asked))
        found = step.evaluate("asked => limpid.step().explain(asked)", asked)
        assert found == json.loads(json.dumps(want)), asked  # tuples as lists


def test_the_update_of_every_weight_is_written_out_as_python_writes_it(step: Page, trace: Trace) -> None:
    name = "logits.weight"
    for index in np.ndindex(*trace.array(name).shape):
        asked = f"{name}{list(index)}"
        lines = step.evaluate("asked => limpid.step().explain(asked)", asked)["entry"]["update"]
        assert tuple(lines) == trace.entries.update(name, index)
