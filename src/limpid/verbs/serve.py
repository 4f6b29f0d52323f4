"""`limpid serve`: runs and their steps, in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from limpid.config.domain import Within
from limpid.config.flags import read
from limpid.terminal import say

PORT = 8000


@dataclass(frozen=True)
class ServeFlags:
    """Show runs in a page: live curves, every recorded step with its arithmetic, models to ask, plans.

    Only this machine is answered, unless --host names another address: then a token is asked for, which is part of
    the address that is printed.

    limpid serve                       the runs under runs/
    limpid serve experiments/ --port 8080
    limpid serve --host 0.0.0.0        for other machines, which need the token
    """

    what: str = field(default="runs", metadata={"positional": "RUNS"})
    """Folder of runs, or one run, which the page opens with."""
    port: Annotated[int, Within("[0, 65535]", "a port, 0 for any that is free")] | None = None
    """Port to listen on; 8000, or the next one that is free, when left out."""
    host: str = "127.0.0.1"
    """Address to listen on: any other than this machine's own asks for a token."""
    token: str | None = None
    """The token to ask for, for addresses other than this machine's own; drawn anew at every start when left out."""
    open: bool = False
    """Open the page in a browser."""


def verb(argv: Sequence[str]) -> int:
    flags = read("serve", ServeFlags, argv)
    from limpid.view.bundle import script
    from limpid.view.serving import Served, folder_of, listen, serve

    script()  # a page that was not built is said before an address is
    folder, run = folder_of(Path(flags.what).expanduser())
    served = Served(folder, listen(flags.host, flags.port, PORT), flags.host, flags.token)
    say(f"{folder}/ is shown at\n\n  {served.address(run)}\n\nEnd it with Ctrl-C.")
    if flags.open:
        served.open_in_browser(run)
    serve(served)
    return 0
