"""Answers of the server: documents as JSON, arrays as bytes, errors as one line."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

import anyio
import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from limpid.errors import LimpidError
from limpid.tracing.schema import to_json
from limpid.view.documents.job import ErrorDocument, Missing
from limpid.view.folder import NotThere
from limpid.view.safety import LARGEST_BODY

JSON = "application/json"
NUMBERS = "application/octet-stream"
WORTH_PACKING = 1024
"""Bytes below which gzip saves no packet."""
PATIENCE = 20.0
"""Seconds in which a question's body comes."""
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
Work = TypeVar("Work")


class Refused(LimpidError):
    """A question that cannot be answered so, with the status that says why and what has to be made first."""

    def __init__(self, said: str, status: int = 400, missing: Missing | None = None) -> None:
        super().__init__(said)
        self.status, self.missing = status, missing


def encoded(document: Any) -> bytes:
    """A document as JSON."""
    plain = to_json(document)
    try:
        return orjson.dumps(plain)
    except TypeError:  # halves of surrogate pairs, which UTF-8 does not hold; numbers of more than 64 bits
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def answer(request: Request, document: Any, status: int = 200) -> Response:
    """A document as JSON, packed where the browser unpacks it."""
    content = encoded(document)
    if len(content) < WORTH_PACKING or not takes_gzip(request):
        return Response(content, status, media_type=JSON)
    return packed(request, gzip.compress(content, 5), status)


def numbers(request: Request, content: bytes) -> Response:
    """Arrays, packed where the browser unpacks it: of what a mask hides little is left."""
    if not takes_gzip(request) or len(content) < WORTH_PACKING:
        return Response(content, media_type=NUMBERS)
    return packed(request, gzip.compress(content, 1), media_type=NUMBERS)


def packed(request: Request, content: bytes, status: int = 200, media_type: str = JSON) -> Response:
    """What lies packed, as it lies or unpacked."""
    if takes_gzip(request):
        return Response(content, status, {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}, media_type)
    return Response(gzip.decompress(content), status, {"Vary": "Accept-Encoding"}, media_type)


def takes_gzip(request: Request) -> bool:
    """Whether the other side says that it unpacks gzip."""
    return "gzip" in request.headers.get("accept-encoding", "")


def tagged(request: Request, key: str, make: Callable[[], Response]) -> Response:
    """An answer that the browser keeps, and asks for again only when its key is another."""
    tag = hashlib.sha256(key.encode()).hexdigest()[:32]
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == f'"{tag}"':
        return Response(status_code=304, headers=headers)
    made = make()
    made.headers.update(headers)
    return made


def refusal(request: Request, error: Exception) -> Response:
    """An error as a document: 404 for what is not there, 400 for a question that makes no sense."""
    status, missing = 400, None
    if isinstance(error, Refused):
        status, missing = error.status, error.missing
    elif isinstance(error, NotThere):
        status = 404
    return answer(request, ErrorDocument(str(error), missing), status)


def in_thread(work: Callable[[Request], Response]) -> Endpoint:
    """An endpoint that reads files or computes, beside the loop that serves; a user's mistake becomes an answer."""

    @wraps(work)
    async def endpoint(request: Request) -> Response:
        try:
            return await run_in_threadpool(work, request)
        except LimpidError as error:
            return refusal(request, error)
        except OSError as error:
            return refusal(request, Refused(f"the system refuses: {error.strerror or error}", 500))

    return endpoint


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a question came with.

    Raises  Refused for anything else
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise Refused(f"a question in a body is {JSON}", 415)
    try:
        with anyio.fail_after(PATIENCE):
            content = await request.body()
        found = json.loads(content)
    except ClientDisconnect as error:
        raise Refused(f"a question has at most {LARGEST_BODY:,} bytes", 413) from error
    except TimeoutError as error:
        raise Refused(f"the body did not come within {PATIENCE:.0f} s", 408) from error
    except (ValueError, RecursionError) as error:
        raise Refused("the body is no JSON") from error
    if not isinstance(found, dict):
        raise Refused("the body is no JSON object")
    return found


def with_body(work: Callable[[Request, dict[str, Any]], Response]) -> Endpoint:
    """An endpoint of a question that comes as a JSON object."""

    async def endpoint(request: Request) -> Response:
        try:
            asked = await body_of(request)
        except Refused as error:
            return refusal(request, error)
        return await in_thread(lambda one: work(one, asked))(request)

    return endpoint
