"""Servers of this user that are alive: each says where it answers, in a file that ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from limpid.errors import LimpidError
from limpid.files import MALFORMED, cache_folder, write_atomically
from limpid.run import Run
from limpid.source import RecordedStep
from limpid.terminal import say
from limpid.view.addresses import of_step

if TYPE_CHECKING:
    from limpid.tracing import Trace

WAIT = 0.2
"""Seconds in which a server on this machine takes a connection."""


@contextmanager
def announced(folder: Path, address: str) -> Iterator[None]:
    """Say where a folder of runs is answered from, without its token, for as long as this lasts."""
    file = _places() / f"{os.getpid()}.json"
    said = json.dumps({"folder": str(folder.resolve()), "address": address})
    with contextlib.suppress(OSError, LimpidError):  # a link more in the terminal, and no more
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, said.encode())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def address_of(folder: Path) -> str | None:
    """Where a folder of runs is answered from now, the newest server's first; None where nothing answers."""
    with contextlib.suppress(OSError):
        wanted = str(folder.resolve())
        for file in sorted(_places().glob("*.json"), key=lambda one: -one.stat().st_mtime):
            with contextlib.suppress(OSError, *MALFORMED):
                if not _runs(int(file.stem)):  # it was killed
                    file.unlink(missing_ok=True)
                    continue
                said = json.loads(file.read_text(encoding="utf-8"))
                if said["folder"] == wanted and _answers(str(said["address"])):
                    return str(said["address"])
    return None


def tell(run: Run | None, fragment: str) -> None:
    """One line with the address of what was shown, where somebody looks on and a server of its folder is alive."""
    if run is None or not sys.stdout.isatty():
        return
    address = address_of(run.path.absolute().parent)
    if address is not None:
        say(f"\nin the page: {address}{fragment}")


def tell_step(trace: Trace, asked: str | None = None) -> None:
    """The same of a recorded step, or of one array or entry of it, by whatever name it was asked for."""
    run, entry = RecordedStep(trace.record.path).run, None
    if run is None:
        return
    if asked is not None:
        name, bracket, index = asked.strip().partition("[")
        entry = f"{trace.tensor(name.strip())[0]}{bracket}{index}"
    tell(run, of_step(run.path.name, int(trace.record.path.stem), entry))


def _places() -> Path:
    return cache_folder() / "serving"


def _runs(process: int) -> bool:
    """Whether a process of this number lives."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _answers(address: str) -> bool:
    """Whether something listens there."""
    found = urlsplit(address)
    try:
        with socket.create_connection((found.hostname or "", found.port or 80), WAIT):
            return True
    except OSError:
        return False
