"""Recorded steps: the document of each, made once and kept beside it, and what is asked of its arrays."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from limpid.reporter import SILENT, Report
from limpid.source import RecordedStep
from limpid.tracing import Trace
from limpid.view.answers import Refused, encoded
from limpid.view.arrays import StepArrays
from limpid.view.documents.job import JobDocument
from limpid.view.documents.lens import LensView
from limpid.view.documents.step import EntryView, FindingsView, SliceKind
from limpid.view.jobs import Jobs
from limpid.view.kept import Kept
from limpid.view.lens import lens_view
from limpid.view.located import located
from limpid.view.runs import Runs, findings_of
from limpid.view.slices import parsed
from limpid.view.step import entry_view, step_view

DOCUMENT = ("document", "json.gz")
"""What it is kept as."""
OPENED = 4
"""Recorded steps that are held open; of their arrays nothing is held."""


def open_arrays(record: Path, report: Report = SILENT.progress) -> StepArrays:
    """A recorded step, opened.

    Raises  CheckpointError when the file is no whole recorded step
    """
    return StepArrays(Trace.open(record, report=report), Kept(record))


def make_view(record: Path, report: Report = SILENT.progress) -> bytes:
    """What the page is sent of a recorded step, packed: the whole step redone and compared, unless that was kept."""
    arrays = open_arrays(record, report)
    return arrays.kept.made(*DOCUMENT, lambda: packed_view(arrays, report))


def packed_view(arrays: StepArrays, report: Report = SILENT.progress) -> bytes:
    """The same of an opened step, made now."""
    redone = arrays.trace.step  # which says how far it is
    report(f"writing down step {redone.step}", 0, None)
    return gzip.compress(encoded(replace(step_view(arrays.trace), arrays=arrays.places())), 6)


def is_viewed(record: Path) -> bool:
    """Whether what the page is sent of a recorded step lies there."""
    kept = Kept(record)
    return kept.read(kept.file(*DOCUMENT)) is not None


@dataclass
class Steps:
    """The recorded steps of a folder of runs."""

    runs: Runs
    jobs: Jobs
    _opened: dict[str, StepArrays] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def view(self, run: str, step: int) -> tuple[str, bytes]:
        """The packed document of a step and its key.

        Raises  Refused where it has to be recorded or redone first
        """
        kept = Kept(self.file(run, step))
        found = kept.read(kept.file(*DOCUMENT))
        if found is None:
            raise Refused(f"step {step} of {run} was not redone in float64 yet", 404, "document")
        return f"{run} {step} {kept.key()}", found

    def arrays(self, run: str, step: int) -> StepArrays:
        """The arrays of a step, opened once as long as its file is the same.

        Raises  Refused where it was not recorded
        """
        file = self.file(run, step)
        key = _key(file)
        with self._lock:
            found = self._opened.pop(key, None) or open_arrays(file)
            self._opened[key] = found  # the newest stands last
            for old in list(self._opened)[:-OPENED]:
                del self._opened[old]
        return found

    def passing(self, run: str, step: int) -> StepArrays:
        """The arrays of a step that is looked at in passing: it takes no other's place among those held open.

        Raises  Refused where it was not recorded
        """
        file = self.file(run, step)
        return self._opened.get(_key(file)) or open_arrays(file)

    def stamp(self, run: str, step: int) -> str:
        """Changes with the recorded step.

        Raises  Refused where there is none
        """
        return Kept(self.file(run, step)).stamp

    def slice(self, run: str, step: int, entry: str, kind: SliceKind) -> bytes:
        """A part of an array."""
        return self.arrays(run, step).slice(parsed(entry), kind)

    def explain(self, run: str, step: int, entry: str) -> EntryView:
        """One entry written out."""
        return entry_view(self.arrays(run, step).trace, entry)

    def lens(self, run: str, step: int, row: int, first: int, count: int) -> LensView:
        """What would be predicted after each block, at some positions of a row."""
        return lens_view(self.arrays(run, step).trace, row, first, count)

    def findings(self, run: str, step: int) -> FindingsView:
        """What the doctor found in the run, where it points into this step."""
        trace = self.arrays(run, step).trace
        its_run = RecordedStep(trace.record.path).run
        return FindingsView(() if its_run is None else located(trace, findings_of(its_run)))

    def record(self, run: str, step: int) -> JobDocument:
        """Record a step where it was not, and make its document: a job.

        Raises  NotThere, Refused for a step that the run does not have
        """
        file = self.runs.folder.recorded(run, step)
        if not file.is_file():
            overview = self.runs.overview(run)
            first, last = overview.opened_first, overview.opened_last
            if first is None or last is None or not first <= step <= last:
                there = f"it can open steps {first} … {last}" if first is not None else "it holds no checkpoint yet"
                raise Refused(f"step {step} lies outside of {run}: {there}", 404)
            for saved in overview.checkpoints:
                self.runs.folder.checkpoint(run, saved)
        question = {"work": "record", "run": str(self.runs.folder.run(run).path), "step": step}
        return self.jobs.start(f"step {step} of {run}", question)

    def redo(self, run: str, step: int, name: str) -> JobDocument:
        """Redo one array of a recorded step in float64: a job.

        Raises  ConfigError for an unknown name
        """
        known, _ = self.arrays(run, step).trace.tensor(name)
        question = {"work": "exact", "run": str(self.runs.folder.run(run).path), "step": step, "name": known}
        return self.jobs.start(f"{known} of step {step} of {run}", question)

    def file(self, run: str, step: int) -> Path:
        """The file of a recorded step.

        Raises  Refused where it was not recorded
        """
        file = self.runs.folder.recorded(run, step)
        if not file.is_file():
            way_out = f"open it in the page, or run limpid trace {run} --step {step}"
            raise Refused(f"step {step} of {run} was not recorded: {way_out}", 404, "record")
        return file


def _key(file: Path) -> str:
    """Under which a recorded step is held open."""
    return f"{file} {Kept(file).stamp}"
