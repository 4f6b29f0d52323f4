"""How fast the page is for who looks at it: a real browser (Chromium, through Playwright) in front of `limpid serve`.

python -m benchmarks.page FOLDER [10M] [124M] [--times 7]      records are made in FOLDER, and kept between calls

first view     from navigation, nothing cached, to the numbers of a station painted; bytes until nothing more comes
interactions   from the event to what it asked for painted

Each as median (smallest … largest) by the clock, beside its aim, and as processor time, which other work on the machine
changes less: of the page's main thread, of all processes of the browser, and of the server.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Locator, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/view"))
from benchmarks.view import GPT2, TEN_MILLION, recorded
from browser import launched, offline

from limpid.run import Run
from limpid.view.worker import record

MODELS = {"10M": (TEN_MILLION, 4), "124M": (dataclasses.replace(GPT2, context_length=256), 1)}
"""Each with the rows of its batch."""
Way = tuple[Callable[[], object], str]
"""What a hand does, and what then holds in the page."""
WIDE = {"width": 1280, "height": 900}
PATIENCE = 30_000
FIRST_VIEW, INTERACTION = 1000, 100
"""What is aimed at, in milliseconds by the clock."""
QUIET = 300
"""Milliseconds after which nothing more is taken to come of an event."""
PAINTED = """
let changed = true;  // looking costs the page's own time: only where there may be something new to see
new MutationObserver(() => { changed = true; }).observe(document, {
    subtree: true, childList: true, attributes: true, characterData: true,
});
for (const kind of ["scroll", "readystatechange", "pointerdown", "keydown"])
    addEventListener(kind, () => { changed = true; }, true);
window.until = (done, began) => new Promise((told, failed) => {
    const until = performance.now() + PATIENCE;
    changed = true;
    const look = () => {
        let now = false;
        try { if (changed) { changed = false; now = done(); } } catch (error) { return failed(error); }
        if (!now && performance.now() > until) return failed(`not within ${PATIENCE} ms: ${done}`);
        if (!now) return requestAnimationFrame(look);
        requestAnimationFrame(() => {  // the frame that paints it; its task ends when it is painted
            const after = new MessageChannel();
            after.port1.onmessage = () => told(performance.now() - (began ? began() : 0));
            after.port2.postMessage(0);
        });
    };
    look();
});
const inView = (one) => {
    const box = one.getBoundingClientRect();
    return box.height > 0 && box.bottom > 0 && box.top < innerHeight;
};
window.settled = (some) => {
    const seen = (what) => [...document.querySelectorAll(what)].some(inView);
    return seen(some) && !seen(".loading");
};
window.value = () => document.querySelector(".entry-panel .facts strong")?.dataset.value;
for (const kind of ["pointerdown", "keydown"])
    addEventListener(kind, (event) => (window.began ??= event.timeStamp), true);
"""
"""Says when what is asked for is painted, in milliseconds since the navigation or since an event."""


@dataclass
class Measured:
    """What something took, several times."""

    walls: list[float] = field(default_factory=list)  # ms
    thread: list[float] = field(default_factory=list)  # ms of processors
    browser: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    wire: list[float] = field(default_factory=list)  # bytes
    plain: list[float] = field(default_factory=list)

    def line(self, what: str, aim: float) -> str:
        """One line for all times, and whether the clock's median is within the aim, in milliseconds."""
        times = (("", self.walls), ("thread ", self.thread), ("browser ", self.browser), ("server ", self.server))
        text = "  ".join(
            f"{name}{statistics.median(all_of):6.0f} ({min(all_of):.0f} … {max(all_of):.0f}) ms"
            for name, all_of in times
        )
        if self.wire:
            text += f"  {max(self.wire):,.0f} bytes, unpacked {max(self.plain):,.0f}"
        reached = "within" if statistics.median(self.walls) <= aim else "beyond"
        return f"{what:44} {text}  {reached} {aim:,.0f} ms"


@dataclass
class Watch:
    """Processor time of a process and of those that it started."""

    process: psutil.Process

    def now(self) -> float:
        """Milliseconds until now."""
        total = 0.0
        for one in [self.process, *self.process.children(recursive=True)]:
            try:
                used = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += used.user + used.system
        return 1000 * total


@dataclass
class Bench:
    """A server, a browser, and how often each is asked."""

    address: str
    server: Watch
    browser: Browser
    shown: Watch
    times: int

    @contextmanager
    def page(self) -> Iterator[Page]:
        """A browser's page that has nothing cached."""
        with offline(self.browser, viewport=WIDE) as context:
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.add_init_script(f"const PATIENCE = {PATIENCE};{PAINTED}")
            yield page

    def first_view(self, what: str, at: str, done: str) -> None:
        """Time an address from navigation on."""
        found = Measured()
        for _ in range(self.times):
            with self.page() as page:
                wire, plain = _bytes_of(page)
                thread = _thread_of(page)
                before = self.shown.now(), self.server.now()
                page.goto(f"{self.address}{at}", wait_until="commit")
                found.walls.append(page.evaluate(f"until(() => {done})"))
                page.wait_for_load_state("networkidle")
                found.thread.append(thread())
                found.browser.append(self.shown.now() - before[0])
                found.server.append(self.server.now() - before[1])
                found.wire.append(sum(wire))
                found.plain.append(sum(plain))
        print(found.line(what, FIRST_VIEW), flush=True)

    def interaction(self, what: str, page: Page, *ways: Way) -> None:
        """Time what a hand does, the ways in turns, from its event to what it asked for painted."""
        found, thread = Measured(), _thread_of(page)
        for turn in range(max(self.times, len(ways))):
            act, done = ways[turn % len(ways)]
            before = self.shown.now(), self.server.now()
            computed = thread()
            page.evaluate(
                f"window.began = null; window.before = value();"
                f"window.told = until(() => window.began && ({done}), () => window.began); 0"
            )
            act()
            found.walls.append(page.evaluate("window.told"))
            page.wait_for_timeout(QUIET)
            found.thread.append(thread() - computed)
            found.browser.append(self.shown.now() - before[0])
            found.server.append(self.server.now() - before[1])
        print(found.line(what, INTERACTION), flush=True)


def _thread_of(page: Page) -> Callable[[], float]:
    """What the processors computed for the page's main thread until now, in milliseconds."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def now() -> float:
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return float(1000 * found["TaskDuration"])

    return now


def _bytes_of(page: Page) -> tuple[list[float], list[float]]:
    """What comes over the wire for a page, and what it is unpacked."""
    wire: list[float] = []
    plain: list[float] = []
    session = page.context.new_cdp_session(page)
    session.on("Network.loadingFinished", lambda event: wire.append(event["encodedDataLength"]))
    session.on("Network.dataReceived", lambda event: plain.append(event["dataLength"]))
    session.send("Network.enable")
    return wire, plain


@contextmanager
def bench(folder: Path, times: int) -> Iterator[Bench]:
    """A server of a folder of runs, and a browser."""
    served = subprocess.Popen(
        [sys.executable, "-m", "limpid", "serve", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        address = next(
            word for line in served.stdout for word in line.split() if word.startswith("http://")
        ).removesuffix("#/")
        with sync_playwright() as playwright:
            shown = launched(playwright)
            own = next(one for one in psutil.Process().children(recursive=True) if "chrom" in one.name())
            yield Bench(address, Watch(psutil.Process(served.pid)), shown, Watch(own), times)
            shown.close()
    finally:
        served.terminate()
        served.wait()


ENTRY = "blocks.3.attention.scores[0,1,5,3]"
STEP = "settled('.step-head') && settled('.flow-row.backward')"
"""Of a deep step no station is on the first screen; what is there has come."""
WRITTEN = "value() !== undefined && value() !== before && settled('.entry-panel .part')"


def first_views(bench: Bench) -> None:
    """A step, the same at an entry, and the list of runs."""
    bench.first_view("an empty page, for comparison", "static/limpid.css", "document.readyState === 'complete'")
    bench.first_view("first view: the list of runs", "#/", "settled('table.runs')")
    bench.first_view("first view: a step", "#/001/2", STEP)
    bench.first_view("first view: an entry of it", f"#/001/2/{ENTRY}", "value() && settled('.matrix canvas')")


def interactions(bench: Bench) -> None:
    """What one does with a step, and in play."""
    with bench.page() as page:
        page.goto(f"{bench.address}#/001/2/{ENTRY}")
        page.evaluate("until(() => value() && settled('.matrix canvas'))")
        page.wait_for_timeout(QUIET)
        grid = page.get_by_role("grid", name="blocks.3.attention.scores[0,1]").first
        bench.interaction("click a cell", page, *(_clicked(grid, 0.05 + 0.1 * k, 0.9) for k in range(9)))
        bench.interaction(
            "follow a number of its arithmetic",
            page,
            (lambda: page.locator(".entry-panel .part a.entry, .entry-panel .ways a.entry").first.click(), WRITTEN),
        )
        began = "window.began = performance.now(); history."
        back, forward = (lambda way=way: page.evaluate(f"{began}{way}(); 0") for way in ("back", "forward"))
        bench.interaction("back, forward", page, (back, WRITTEN), (forward, WRITTEN))
        boxes = page.locator(".flow-row.forward a.box").all()
        bench.interaction("go to a station", page, *(_station(page, boxes[at]) for at in (-1, 5, 0, 7, -2, 3, 1)))
        page.locator("section[aria-label='embed.tokens.weight']").scroll_into_view_if_needed()  # made when it is near
        table = page.locator(".tiles", has=page.get_by_role("grid", name="embed.tokens.weight")).first
        table.scroll_into_view_if_needed()
        bench.interaction("zoom into a heat map, and out", page, *_zooms(table))
        bench.interaction("an arrow key in a heat map", page, _pressed(page, grid))
        page.evaluate("scrollTo(0, 0)")
        if page.get_by_label("row of the batch").count():
            bench.interaction("another row of the batch", page, *(_row(page, at) for at in (1, 2, 3, 0)))
    with bench.page() as page:
        page.goto(f"{bench.address}#/play/001@2?prompt=word1+word4")
        heads = page.locator(".heads-of button[aria-pressed]")
        heads.first.wait_for()
        page.wait_for_timeout(QUIET)
        bench.interaction("the attention of a head, in play", page, *(_press(heads, at) for at in range(7)))


def _clicked(grid: Locator, across: float, down: float) -> Way:
    def act() -> None:
        box = grid.bounding_box()
        assert box is not None
        grid.click(position={"x": box["width"] * across, "y": box["height"] * down})

    return act, WRITTEN


def _station(page: Page, box: Locator) -> Way:
    to = (box.get_attribute("href") or "")[1:]
    there = f"document.getElementById('{to}').getBoundingClientRect()"
    done = f"(({there}).top < 300 && ({there}).bottom > 200) && settled('.matrix canvas, .scalar, .tiles')"

    def act() -> None:
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(QUIET)
        box.click()

    return act, done


def _zooms(tiles: Locator) -> tuple[Way, Way]:
    shown = "document.querySelector('.tiles:has([aria-label^=\"embed.tokens.weight\"])')"
    grid, whole = tiles.get_by_role("grid"), tiles.get_by_role("button", name="the whole")
    inside, outside = (f"{shown} && {there}({shown}.innerText.includes('the whole'))" for there in ("", "!"))
    return (lambda: grid.click(), inside), (lambda: whole.click(), outside)


def _pressed(page: Page, grid: Locator) -> Way:
    cell = "document.activeElement.querySelector('[role=gridcell]').style.left"

    def act() -> None:
        page.evaluate(f"window.left = {cell}; 0")
        page.keyboard.press("ArrowRight")

    grid.focus()
    return act, f"{cell} !== window.left"


def _row(page: Page, at: int) -> Way:
    def act() -> None:
        page.evaluate("window.began = performance.now(); 0")
        page.get_by_label("row of the batch").select_option(str(at))

    return act, f"document.querySelector('.step-head select').value === '{at}' && settled('.surprise')"


def _press(heads: Locator, at: int) -> Way:
    return (
        lambda: heads.nth(at).click()
    ), f"document.querySelectorAll('.heads-of button[aria-pressed]')[{at}]?.ariaPressed === 'true'"


def main() -> None:
    """Make the records that are missing, then look at them."""
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("folder", type=Path)
    said.add_argument("models", nargs="*", default=["10M"], choices=list(MODELS))
    said.add_argument("--times", type=int, default=7)
    asked = said.parse_args()
    for name in asked.models:
        folder = asked.folder / name
        model, rows = MODELS[name]
        run = Run(folder / "runs/001")
        if not run.recorded_step(2).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            recorded(folder, model, rows)
        record({"run": str(run.path), "step": 2}, lambda doing, done, total: None)
        print(f"{name}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        with bench(folder / "runs", asked.times) as ready:
            first_views(ready)
            interactions(ready)
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
