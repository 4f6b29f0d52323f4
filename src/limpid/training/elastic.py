"""Restarts by torchrun: a command that it starts anew goes on with the run that it began, where that was saved last.

torchrun restarts its processes with the same command line, which would begin another run. Its key-value store outlives
them and belongs to this very job, whatever the number of processes and whoever of them writes: there lies which run
the command began.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from limpid.run import Run

CALLS = itertools.count()
"""One number for each training of a script, which begins them in the same order when it is started anew."""


def may_be_restarted() -> bool:
    """Whether torchrun started this process; known without PyTorch."""
    return "TORCHELASTIC_RUN_ID" in os.environ


class Restart:
    """One training of a job of torchrun; each process makes one, and the main one asks and tells."""

    def __init__(self) -> None:
        self.key = f"limpid/run/{next(CALLS)}"

    def run(self) -> Run | None:
        """The run that this training began before it was started anew; None the first time, and without torchrun."""
        store = _store()
        return None if store is None or not store.check([self.key]) else Run(Path(store.get(self.key).decode()))

    def began(self, run: Run) -> None:
        """Remember a run that is there from now on."""
        if (store := _store()) is not None:
            store.set(self.key, str(run.path.absolute()))


def meeting() -> dict[str, Any]:
    """Where the processes of this attempt find each other, for init_process_group: apart from those of others.

    PyTorch 2.13 lets all attempts meet under the same names, where processes that are gone left their addresses.
    """
    store = _store()
    if store is None:
        return {}
    from torch.distributed.distributed_c10d import PrefixStore

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"store": PrefixStore(f"limpid/attempt/{attempt}", store), "rank": rank, "world_size": world}


def _store() -> Any:
    """The store of torchrun's own process, which outlives those that it starts; None where there is none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
