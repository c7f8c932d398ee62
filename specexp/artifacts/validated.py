"""JSON values of a payload against an annotation, by pydantic and strictly: ``"8"`` and ``true`` are no numbers."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specexp.artifacts.error import ArtifactError
from specexp.core.messages import did_you_mean


def validated(annotation: Any, value: Any, where: str, key: str = "") -> Any:
    """The value, dataclasses made.

    Args:
        annotation: what it has to be.
        value: the value, as JSON holds it.
        where: folder and file, for messages.
        key: the value's own in the file; empty where it is all of it.

    Raises:
        ArtifactError: it is something else; the first mistake in one sentence.
    """
    try:
        return TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        steps = [key, *(str(step) for step in first["loc"] if step != "[key]")]
        key = ".".join(filter(None, steps))
        if first["type"] in ("missing", "missing_argument"):
            raise ArtifactError(f"{where}: {key} is missing") from error
        if first["type"] == "unexpected_keyword_argument":
            known = [one.name for one in fields(annotation)] if is_dataclass(annotation) else []
            raise ArtifactError(f"{where}: unknown key {key!r}{did_you_mean(key, known)}") from error
        why = first["msg"].removeprefix("Value error, ")
        if first["type"] == "value_error":
            raise ArtifactError(f"{where}: {why}") from error
        given = repr(first["input"])
        shown = given if len(given) <= 80 else f"{given[:80]}..."
        raise ArtifactError(f"{where}: {key}{' ' if key else ''}is {shown}; i{why[1:]}") from error
