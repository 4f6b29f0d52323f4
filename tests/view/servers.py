"""A server of a folder of runs, on a port of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from limpid.view.server import application
from limpid.view.serving import listen


@contextmanager
def served(runs: Path) -> Iterator[str]:
    """Its address."""
    with listen("127.0.0.1", 0, 8000) as own:
        server = uvicorn.Server(uvicorn.Config(application(runs), log_level="error", lifespan="off"))
        running = threading.Thread(target=server.run, args=([own],))
        running.start()
        try:
            yield f"http://127.0.0.1:{own.getsockname()[1]}/"
        finally:
            server.should_exit = True
            running.join(10)
