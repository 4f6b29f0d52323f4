"""The server as a process: where it listens, the address that opens its page, and its end."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from limpid.errors import CheckpointError, ConfigError
from limpid.run import RUNS
from limpid.source.runs import known_runs
from limpid.view.addresses import of_run
from limpid.view.alive import announced
from limpid.view.safety import is_loopback

TRIED = 20
"""Ports that are tried one after the other where none is asked for."""
TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,}")
CONNECTIONS = 256
"""Connections at once, live curves among them."""


@dataclass(frozen=True)
class Served:
    """A folder of runs, and the socket on which it is asked for."""

    folder: Path
    listening: socket.socket
    host: str
    given_token: str | None = None

    @cached_property
    def token(self) -> str | None:
        """What has to be shown: nothing on loopback unless a token was given, else that one or a new one."""
        if self.given_token is not None and not TOKEN.fullmatch(self.given_token):
            raise ConfigError("--token is too easy, or no part of an address: give 16 letters and digits or more")
        return self.given_token or (None if is_loopback(self.host) else secrets.token_urlsafe(24))

    @property
    def home(self) -> str:
        """Where the page is asked for."""
        every = self.host in ("0.0.0.0", "::")
        host = socket.gethostname() if every else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.listening.getsockname()[1]}/"

    def address(self, run: str = "") -> str:
        """The page's address, with what it opens with and the token, where one is asked for."""
        token = "" if self.token is None else f"?token={self.token}"
        return f"{self.home}{token}{of_run(run)}"

    def open_in_browser(self, run: str = "") -> None:
        """Open the page, where there is a browser; nothing happens where there is none."""
        import webbrowser

        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(self.address(run))


def folder_of(what: Path) -> tuple[Path, str]:
    """The folder of runs that is meant, and the run that the page opens with, if one is.

    Raises  CheckpointError for what is neither
    """
    place = what if what.is_dir() or what == RUNS else RUNS / what
    if (place / "config.toml").is_file():
        return place.absolute().parent, place.absolute().name
    if place.is_dir() or what == RUNS:  # plans, equations and the primer need no run
        return place, ""
    here = f"{RUNS}/ holds {len(known_runs())} runs" if RUNS.is_dir() else "limpid train makes one under runs/"
    raise CheckpointError(f"{what} is no folder of runs, nor a run: {here}")


def listen(host: str, port: int | None, first: int) -> socket.socket:
    """A socket that listens on the port that was asked for, or on the next free one from `first` on.

    Raises  ConfigError where the address or the port cannot be had
    """
    asked = range(first, first + TRIED) if port is None else [port]
    try:
        family, *_, place = socket.getaddrinfo(host, asked[0], type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host} is no address of this machine: leave it out, or give 0.0.0.0") from error
    for one in asked:
        own = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio sends at once
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind((place[0], one, *place[2:]))
        except OSError as error:
            own.close()
            refused = error
            continue
        own.listen(CONNECTIONS)
        return own
    ports = f"port {port}" if port is not None else f"ports {first} to {first + TRIED - 1}"
    raise ConfigError(f"cannot listen on {host}, {ports}: {refused.strerror}; give another --port, or 0 for any")


def serve(served: Served) -> None:
    """Answer until Ctrl-C."""
    import uvicorn

    from limpid.view.prompt import Prompt
    from limpid.view.server import application

    config = uvicorn.Config(
        application(served.folder, served.token), http=Prompt, log_level="warning", access_log=False, lifespan="off",
        ws="none", server_header=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
    )  # fmt: skip
    with announced(served.folder, served.home), contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[served.listening])
