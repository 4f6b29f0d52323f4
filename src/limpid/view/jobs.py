"""Work that takes long: a process each, which says how far it is; one at a time."""

from __future__ import annotations

import atexit
import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from limpid.errors import LimpidError
from limpid.files import MALFORMED, parse_json
from limpid.tracing.schema import to_json
from limpid.view.documents.job import JobDocument
from limpid.view.folder import NotThere
from limpid.view.live import event

REMEMBERED = 100
"""Jobs that can still be asked about."""
WAITING = 16
"""Jobs that may wait for others."""


class TooMany(LimpidError):
    """More work than is taken at once."""


@dataclass
class Job:
    """One piece of work."""

    document: JobDocument
    asked: dict[str, Any]
    process: subprocess.Popen[str] | None = None


@dataclass
class Jobs:
    """The work of one server. What is asked for twice is done once."""

    _jobs: dict[str, Job] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        atexit.register(self.end)

    def start(self, what: str, asked: Mapping[str, Any]) -> JobDocument:
        """Begin a piece of work, unless it is under way.

        Raises  TooMany
        """
        with self._lock:
            running = [job for job in self._jobs.values() if job.document.state == "running"]
            same = next((job for job in running if job.asked == asked), None)
            if same is not None:
                return same.document
            if len(running) >= WAITING:
                raise TooMany(f"{len(running)} jobs wait already: wait until some of them are done")
            job = Job(JobDocument(secrets.token_hex(8), what, "running", "waiting", 0, None, ""), dict(asked))
            self._jobs[job.document.job] = job
            done = [name for name, one in self._jobs.items() if one.document.state != "running"]
            for name in done[: max(0, len(self._jobs) - REMEMBERED)]:
                del self._jobs[name]
        threading.Thread(target=self._work, args=(job,), daemon=True).start()
        return job.document

    def of(self, name: str) -> JobDocument:
        """How far a job is.

        Raises  NotThere
        """
        job = self._jobs.get(name)
        if job is None:
            raise NotThere(f"there is no job {name[:40]!r}: it was started by another server, or long ago")
        return job.document

    def end(self) -> None:
        """End what still runs."""
        for job in list(self._jobs.values()):
            if job.process is not None and job.process.poll() is None:
                job.process.terminate()

    def _work(self, job: Job) -> None:
        with self._turn:
            command = [sys.executable, "-m", "limpid.view.worker", json.dumps(job.asked)]
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as job.process:
                assert job.process.stdout is not None
                assert job.process.stderr is not None
                ends: list[str] = []  # of what it says on standard error, read beside so that it never waits
                errors = threading.Thread(target=lambda stream: ends.extend(stream), args=(job.process.stderr,))
                errors.start()
                for line in job.process.stdout:
                    self._hear(job, line)
                code = job.process.wait()
                errors.join()
        if job.document.state == "running":
            said = job.document.error or (ends[-1].strip()[:500] if ends else f"its process ended with {code}")
            failed = replace(job.document, state="failed", error=said)
            job.document = failed if code else replace(job.document, state="done", doing="")

    def _hear(self, job: Job, line: str) -> None:
        try:
            said = parse_json(line)
            heard = {key: said[key] for key in ("doing", "done", "total", "error") if key in said}
            job.document = replace(job.document, **heard)
        except MALFORMED:  # something else that was printed
            return


@dataclass
class WatchedJob:
    """One page that waits for one job."""

    jobs: Jobs
    name: str
    shown: JobDocument | None = None
    began: float = field(default_factory=time.monotonic)

    def look(self) -> tuple[list[bytes], bool]:
        """The events since the last look, and whether the job has ended."""
        document = self.jobs.of(self.name)
        if document == self.shown:
            return [], False
        self.shown = document
        ended = document.state != "running"
        return [event("end" if ended else "progress", to_json(document))], ended
