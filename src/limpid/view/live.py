"""A run while it trains: what its files gain, as server-sent events that go on exactly where they broke off.

An event's id says how far metrics, findings and samples had been read, in bytes: M-F-S. Files are looked at four times
a second, which works on every file system.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from limpid.jsonable import jsonable
from limpid.metrics import lines_of
from limpid.tracing.schema import to_json
from limpid.view.answers import Refused
from limpid.view.documents.runs import RunRow, StateDocument
from limpid.view.folder import NotThere
from limpid.view.runs import Runs, findings_in, samples_in
from limpid.view.series import lines_after

MOST = 64
"""Pages that are told at once: all others get the rest of the connections."""
POLL, HEARTBEAT = 0.25, 15.0
"""Seconds between looks at the files, and of silence after which a comment says that the server is there."""
AT_ONCE = 500
"""Lines of one event."""
AFTER = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})")
ENDED = ("finished", "stopped", "diverged", "unreadable")


def event(kind: str, data: Any, id: str | None = None) -> bytes:
    """One event; JSON has no line break in it."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


@dataclass
class Streams:
    """The pages that are told of something as it happens, of which there are only so many at once."""

    open: int = 0

    def send(self, events: AsyncIterator[bytes]) -> StreamingResponse:
        """Events as they come; nothing between here and the page may hold them back.

        Raises  Refused where too many are told already
        """
        if self.open >= MOST:
            raise Refused(f"{self.open} pages are told of runs already: close some, or reload this one later", 503)
        return StreamingResponse(
            self._counted(events), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream"
        )

    async def _counted(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            async for one in events:
                yield one
        finally:
            self.open -= 1


async def with_heartbeats(
    look: Callable[[], tuple[list[bytes], bool]], poll: float = POLL, heartbeat: float = HEARTBEAT
) -> AsyncIterator[bytes]:
    """What looking brings, until it says that nothing more will come."""
    said = time.monotonic()
    while True:
        events, ended = await run_in_threadpool(look)
        for one in events:
            yield one
            said = time.monotonic()
        if ended:
            return
        if time.monotonic() - said >= heartbeat:
            yield b": still here\n\n"
            said = time.monotonic()
        await anyio.sleep(poll)


@dataclass
class Watched:
    """One page that looks at one run."""

    runs: Runs
    name: str
    after: list[int]
    shown: StateDocument | None = None

    @classmethod
    def begin(cls, runs: Runs, name: str, after: str) -> Watched:
        """From where the page has got to; from now on where it does not say."""
        runs.folder.run(name)  # which says what is wrong with it
        found = AFTER.fullmatch(after)
        known = after if found else runs.overview(name).after
        return cls(runs, name, [int(part) for part in known.split("-")])

    def look(self) -> tuple[list[bytes], bool]:
        """The events since the last look, and whether the run has ended."""
        try:
            run = self.runs.folder.run(self.name)
        except NotThere:  # it was deleted
            return [event("end", {})], True
        row = self.runs.row(
            self.name, 0.0
        )  # before the lines: what it counts is sent before it says that the run ended
        files = run.metrics_file, run.path / "findings.jsonl", run.samples_file
        events: list[bytes] = []
        if self._cut_back(files[0]):
            events.append(event("restart", {}, self._id()))
        for place, (kind, file) in enumerate(zip(READ, files, strict=True)):
            events += self._new(place, kind, file)
        ended = row.state in ENDED and not events
        state = _state(row)
        if state != self.shown:
            self.shown = state
            events.append(event("state", to_json(state), self._id()))
        return ([*events, event("end", {}, self._id())] if ended else events), ended

    def _cut_back(self, metrics: Path) -> bool:
        """Whether steps were taken back, as a resume from an earlier checkpoint does."""
        cut = size_of(metrics) < self.after[0]
        if cut:
            self.after = [0, 0, 0]
        return cut

    def _new(self, place: int, kind: str, file: Path) -> list[bytes]:
        if size_of(file) <= self.after[place]:
            return []
        events, lines = [], lines_after(file, self.after[place])
        for first in range(0, len(lines), AT_ONCE):
            some = lines[first : first + AT_ONCE]
            self.after[place] += sum(map(len, some))
            read = READ[kind](some)
            if read:
                events.append(event(kind, read, self._id()))
        return events

    def _id(self) -> str:
        return "-".join(map(str, self.after))


def _rows(lines: list[bytes]) -> Any:
    return jsonable(lines_of(b"".join(lines)))


READ: dict[str, Callable[[list[bytes]], Any]] = {
    "rows": _rows,
    "findings": lambda lines: to_json(findings_in(lines)),
    "samples": lambda lines: to_json(samples_in(lines)),
}


def size_of(file: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _state(row: RunRow) -> StateDocument:
    return StateDocument(row.state, row.step, row.max_steps)
