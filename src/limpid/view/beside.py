"""A page beside a training: a server in a process of its own, which stays until Ctrl-C."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from limpid.run import Run
from limpid.training.callbacks import Callback
from limpid.view.bundle import script


class Page(Callback):
    """Opens the run's page in a browser as soon as its folder is there."""

    def __init__(self) -> None:
        script()  # a page that was not built is said before anything is trained
        self.server: subprocess.Popen[bytes] | None = None

    def on_start(self, run: Run) -> None:
        """Serve the folder that the run lies in, and open the run."""
        self.server = subprocess.Popen(
            [sys.executable, "-m", "limpid", "serve", str(run.path), "--open"], stdin=subprocess.DEVNULL
        )

    def stay(self, *, interrupted: bool = False) -> None:
        """Wait until the page is ended, with Ctrl-C, which the server hears too; not where that ended the training."""
        if self.server is None:
            return
        if not interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                self.server.wait()
        self.server.terminate()
        self.server.wait()
