"""The widget of a notebook cell: the page in a frame, what it asks answered by this process as `limpid serve` would.

A question is {id, method, path, body}; an answer {id, status, packed, more} with bytes beside it, or several with
`more` where they come over time. {id, stop} ends those. `page` is the page itself.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import anywidget
import traitlets
from starlette.types import Message

from limpid.view import bundle
from limpid.view.shown import shown

MIME = "application/vnd.jupyter.widget-view+json"
POLICY = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; form-action 'none'"
)
RATE, BURST = 600_000, 1_000_000
"""Bytes a second, and at once: Jupyter's server drops what comes faster than a million a second for three seconds."""
Say = Callable[[dict[str, Any], bytes], None]


def mimebundle(result: Any) -> dict[str, Any]:
    """The widget that shows a result, as Jupyter is told of it."""
    widget = View(result)
    return {MIME: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


@cache
def page() -> bytes:
    """The page for a frame that reaches nothing but the notebook's messages, packed."""
    script = bundle.script("cell")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(digest=digest)}">'
        f'<base href="about:srcdoc"><style>{bundle.style("cell")}</style>'  # links lead within the page
    )
    text = bundle.document(head, f"<script>{script}</script>").replace("<html ", '<html data-home="notebook" ', 1)
    return gzip.compress(text.encode(), 6)


class View(anywidget.AnyWidget):
    """A result as the last line of a cell."""

    _esm = bundle.script("widget")
    home = traitlets.Unicode().tag(sync=True)
    still = traitlets.Unicode().tag(sync=True)  # for a notebook that is opened without a kernel

    def __init__(self, result: Any) -> None:
        subject = shown(result)
        super().__init__(home=subject.address, still=result._repr_html_())
        self._app, self._stops = subject.app, dict[str, asyncio.Event]()
        self.on_msg(self._heard)

    def _heard(self, widget: Any, asked: Any, buffers: Any) -> None:
        """A message of the page, heard by the kernel between two cells: answered beside them."""
        if isinstance(asked, dict) and isinstance(asked.get("id"), str):
            asyncio.run_coroutine_threadsafe(self._answered(asked), _loop())

    async def _answered(self, asked: dict[str, Any]) -> None:
        name = asked["id"]
        if asked.get("stop"):
            stop = self._stops.get(name)
            return None if stop is None else stop.set()
        if asked.get("path") == "page":
            return await self._say({"id": name, "status": 200, "packed": True, "more": False}, page())
        stop = self._stops[name] = asyncio.Event()
        try:
            await self._app(_scope(asked), _receive(str(asked.get("body", "")), stop), self._sender(name))
        finally:
            del self._stops[name]

    def _sender(self, name: str) -> Callable[[Message], Awaitable[None]]:
        """Passes the parts of an answer on."""
        head: dict[str, Any] = {}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                packed = (b"content-encoding", b"gzip") in message["headers"]
                head.update(id=name, status=message["status"], packed=packed)
            elif message["type"] == "http.response.body":
                await self._say(head | {"more": message.get("more_body", False)}, message.get("body", b""))

        return send

    async def _say(self, said: dict[str, Any], content: bytes) -> None:
        await PACE.wait(len(content))
        self.send(said, [content])


@dataclass
class Pace:
    """How fast messages may follow each other."""

    left: float = BURST
    at: float = 0.0

    async def wait(self, size: int) -> None:
        """Wait until so many bytes more may be sent; what is larger than all that may be goes by itself."""
        while True:
            now = asyncio.get_running_loop().time()
            self.left, self.at = min(BURST, self.left + (now - self.at) * RATE), now
            if self.left >= min(size, BURST):
                self.left -= size
                return
            await asyncio.sleep((min(size, BURST) - self.left) / RATE)


PACE = Pace()
"""Of this kernel, whose messages count together."""


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for all widgets, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="limpid", daemon=True).start()
    return loop


def _scope(asked: dict[str, Any]) -> dict[str, Any]:
    """A question as ASGI has it."""
    address = urlsplit(f"/{str(asked.get('path', '')).lstrip('/')}")
    headers = [(b"host", b"localhost"), (b"accept-encoding", b"gzip"), (b"content-type", b"application/json")]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": "POST" if asked.get("method") == "POST" else "GET", "headers": headers, "server": ("localhost", 80),
        "path": unquote(address.path), "raw_path": address.path.encode(), "query_string": address.query.encode(),
        "client": None,
    }  # fmt: skip


def _receive(body: str, stop: asyncio.Event) -> Callable[[], Awaitable[Message]]:
    """The body, and then nothing before the page stops listening."""
    parts = [{"type": "http.request", "body": body.encode(), "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await stop.wait()
        return {"type": "http.disconnect"}

    return receive
