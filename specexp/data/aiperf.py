"""Files of AIPerf's that hold more than one prompt a row: the ``inputs.json`` that each of its runs leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specexp.data.row import Row


def requests_of(rows: Iterable[Row]) -> Iterator[Row]:
    """One row a request: sessions under ``data`` and their ``payloads`` are taken apart, other rows are as they were.

    A request of a later turn holds the earlier ones with their answers, so that each is a prompt by itself.

    Raises:
        PromptSetError: A session holds no requests.
    """
    number = 0
    for row in _sessions(rows):
        for one in _payloads(row):
            number += 1
            yield Row(one.where, number, one.values, one.place or f"row {row.number}")


def _sessions(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        held = row.values.get("data")
        if not (isinstance(held, list) and held and all(isinstance(one, dict) for one in held)):
            yield row
            continue
        if not any("payloads" in one for one in held):
            yield row
            continue
        for number, session in enumerate(held, start=1):
            yield Row(row.where, number, session, f"session {number}")


def _payloads(row: Row) -> Iterator[Row]:
    if "payloads" not in row.values:
        yield row
        return
    held = row.values["payloads"]
    if not isinstance(held, list) or not held or not all(isinstance(one, dict) for one in held):
        raise row.error("payloads", "a list of requests", held)
    session = row.values.get("session_id", row.number)
    for number, payload in enumerate(held, start=1):
        place = f"{row.place or f'row {row.number}'}, request {number}"
        yield Row(row.where, row.number, {"custom_id": f"{session}/{number}", "body": payload}, place)
