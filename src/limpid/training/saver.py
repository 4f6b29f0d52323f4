"""Checkpoints written beside the training that goes on: copied in memory, and put on the disk by a thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from limpid.machine import available_memory
from limpid.run import Run
from limpid.training.checkpoint import Snapshot, write
from limpid.training.mesh import Mesh

KEPT_FREE = 0.5
"""Of the free memory, what a copy of the state may not take: what it would drive out is needed by the next step."""


class Saver:
    """Writes one checkpoint at a time, whole or not at all; its error is raised where its end is asked for."""

    def __init__(self, run: Run, mesh: Mesh) -> None:
        self.run, self.mesh = run, mesh
        self._beside: Mesh | None = None  # the same processes, who agree here while the others train
        self._thread = ThreadPoolExecutor(1, "limpid-saver")
        self._writing: Future[object] | None = None
        self.begun: int | None = None
        """Step of the newest checkpoint that was begun."""

    def begin(self, state: Snapshot) -> None:
        """Begin to write a state, once the one before is written; where memory is short, write it at once."""
        self.wait()
        self.begun, self._beside = state.step, self._beside or self.mesh.beside()
        short = state.bytes > (1 - KEPT_FREE) * available_memory()
        self._writing = self._thread.submit(write, self.run, state if short else state.copied(), self._beside)
        if short:
            self._writing.exception()  # its end; the error is raised where it is asked for

    def ended(self) -> int | None:
        """The step of a checkpoint that is there since the last time that was asked; None while one is written."""
        return self.wait() if self._writing is not None and self._writing.done() else None

    def wait(self) -> int | None:
        """The same, once what is being written is there."""
        if self._writing is None:
            return None
        writing, self._writing = self._writing, None
        writing.result()
        return self.begun

    def close(self) -> None:
        """End the thread, after what it still writes."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
