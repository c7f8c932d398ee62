"""Validate JSON values strictly against annotations, and word violations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specexp.core.messages import did_you_mean, shown

_LONGEST = 1000
_WORDS = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
}
"""Requirements on a value, by pydantic's type of the error."""
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class ArtifactError(ValueError):
    """An artifact cannot be read, written or exported; one sentence names the folder and the field.

    Quoted text may be a stranger's: line breaks and control characters are escaped, and the middle of a sentence
    beyond 1,000 characters is left out.
    """

    def __init__(self, sentence: str) -> None:
        half = _LONGEST // 2
        short = sentence if len(sentence) <= _LONGEST else f"{sentence[:half]} [...] {sentence[-half:]}"
        super().__init__("".join(one if one.isprintable() else repr(one)[1:-1] for one in short))


def validated(annotation: Any, value: Any, where: str, key: str = "") -> Any:
    """Validate a JSON value against an annotation: ``"8"`` and ``true`` are not numbers; dataclasses are made.

    Args:
        annotation: Any type that pydantic can validate.
        value: The value.
        where: Folder and file, for messages.
        key: The value's key in the file; empty if it is the whole file.

    Raises:
        ArtifactError: The first violation, in one sentence.
    """
    try:
        return TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        _, sentence = violation(error, getattr(annotation, "__annotations__", ()), key)
        raise ArtifactError(f"{where}{' ' if sentence.startswith('must ') else ': '}{sentence}") from error


def check_fields(value: Any, names: Iterable[str], where: str, key: str = "") -> None:
    """Raise an ArtifactError unless ``value`` is an object with exactly the fields ``names``."""
    names, prefix = list(names), f"{key}." if key else ""
    if not isinstance(value, dict):
        raise ArtifactError(
            f"{where}{f': {key}' if key else ''} must be an object with {', '.join(names)}, "
            f"got {shown(value)}"
        )
    for name in names:
        if name not in value:
            raise ArtifactError(f"{where}: {prefix}{name} is missing")
    for name in value:
        if name not in names:
            raise ArtifactError(f"{where}: {prefix}{name} is unknown{did_you_mean(name, names)}")


def violation(error: ValidationError, names: Iterable[str] = (), prefix: str = "") -> tuple[str, str]:
    """Return the dotted key of the first violation, and a sentence about it, which begins with the key.

    Args:
        error: Pydantic's error.
        names: The known fields, for suggestions.
        prefix: Key of the validated value; empty if it is the whole file.
    """
    first = error.errors(include_url=False)[0]
    kind, given, context = first["type"], first["input"], first.get("ctx", {})
    # tags of unions are written in parentheses
    steps = [str(step) for step in first["loc"] if step != "[key]" and not str(step).startswith("(")]
    key = ".".join(filter(None, (prefix, *steps)))
    if kind == "value_error":
        return key, first["msg"].removeprefix("Value error, ")
    if kind in ("missing", "missing_argument"):
        problem = "is missing"
    elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
        problem = f"is unknown{did_you_mean(steps[-1], names) if len(steps) == 1 else ''}"
    elif context.get("min_length") == 1:
        problem = "must not be empty"
    elif "max_length" in context:
        unit = "characters" if isinstance(given, str) else "entries"
        problem = f"must have at most {context['max_length']} {unit}, got {len(given)}"
    else:
        words = _WORDS.get(kind) or first["msg"].removeprefix("Input should ").removeprefix("be ")
        for bound in _BOUNDS.keys() & context.keys():
            limit = context[bound]
            words = "an integer" if isinstance(limit, int) else "a number"
            words += f" {_BOUNDS[bound]} {limit if isinstance(limit, int) else format(limit, 'g')}"
        if "pattern" in context:
            words = f"a text of the form {context['pattern']}"
        problem = f"must be {words}, got {shown(given)}"
    return key, f"{key} {problem}".strip()
