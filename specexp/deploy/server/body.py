"""The body of a request as JSON: bounded before anything is read or made of it."""

from __future__ import annotations

import asyncio
import json
from math import isfinite
from typing import Any

from starlette.requests import ClientDisconnect, Request

from specexp.core.strict_json import distinct
from specexp.deploy.server.error import RequestError

_DEEPEST = 16
_SECONDS = 30.0


async def read_body(request: Request, most_bytes: int) -> dict[str, Any]:
    """The JSON object that a request carries.

    Args:
        request: whose body was not read yet.
        most_bytes: that it may have.

    Raises:
        RequestError: it is no JSON object, larger than allowed, nested deeper than any request is, or slow to come.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, f"the content type is {kind[:60]!r}; application/json is expected")
    data = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > most_bytes:
                    raise RequestError(
                        413, f"the body is larger than {most_bytes} bytes, the most that is read"
                    )
    except TimeoutError as error:
        raise RequestError(408, f"the body did not come within {_SECONDS:g} seconds") from error
    except ClientDisconnect as error:
        raise RequestError(400, "the body is not complete") from error
    return object_in(bytes(data))


def object_in(data: bytes) -> dict[str, Any]:
    """The JSON object in these bytes.

    Raises:
        RequestError: there is none, or something in it that no request has.
    """
    try:
        found = json.loads(data.decode(), object_pairs_hook=distinct)
    except RecursionError as error:
        raise RequestError(400, f"the body is nested deeper than {_DEEPEST} levels") from error
    except ValueError as error:  # also what is no UTF-8
        raise RequestError(400, f"the body is no JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise RequestError(400, f"the body is a JSON {type(found).__name__}; an object is expected")
    level = [found]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return found
    raise RequestError(400, f"the body is nested deeper than {_DEEPEST} levels")


def _inside(outer: Any) -> list[Any]:
    """What an object or a list holds; of texts and numbers it is looked whether they are any."""
    if isinstance(outer, dict):
        return [*outer, *outer.values()]
    if isinstance(outer, list):
        return outer
    if isinstance(outer, float) and not isfinite(outer):
        raise RequestError(400, f"the body holds {outer}; numbers are finite")
    if isinstance(outer, str):
        try:
            outer.encode()
        except UnicodeEncodeError as error:
            raise RequestError(400, "the body holds half a surrogate pair, which is no text") from error
    return []
