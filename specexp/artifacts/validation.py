"""The error that artifacts raise, and the validation of their JSON values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError, create_model

from specexp.base.checked import Section, violation
from specexp.base.messages import did_you_mean

_LONGEST = 1000


class ArtifactError(ValueError):
    """Raised when an artifact cannot be read, written or exported. The message is a sentence with the folder and field.

    The sentence may quote untrusted text, so control characters are escaped, and a sentence of more than 1,000
    characters is shortened in the middle.
    """

    def __init__(self, sentence: str) -> None:
        half = _LONGEST // 2
        short = sentence if len(sentence) <= _LONGEST else f"{sentence[:half]} [...] {sentence[-half:]}"
        super().__init__("".join(one if one.isprintable() else repr(one)[1:-1] for one in short))


def validated(annotation: Any, value: Any, where: str, key: str = "") -> Any:
    """Strictly validate a JSON value against an annotation, and construct the annotation's dataclasses.

    Raises ArtifactError with a sentence on the first violation, which names the file (``where``) and the value's key.
    """
    adapter = TypeAdapter(annotation)
    names = getattr(annotation, "__annotations__", ())
    # validated as JSON, because strict validation of Python values rejects mappings for dataclasses
    return _worded(lambda: adapter.validate_json(json.dumps(value), strict=True), value, names, where, key)


def check_fields(value: Any, names: Iterable[str], where: str, key: str = "") -> None:
    """Raise an ArtifactError unless ``value`` is a mapping with exactly the keys ``names``. Values are not checked."""
    names = list(names)
    fields: dict[str, Any] = dict.fromkeys(names, (Any, ...))
    model = create_model("object", __base__=Section, **fields)
    _worded(lambda: model.model_validate(value), value, names, where, key)


def _worded(validate: Callable[[], Any], value: Any, names: Iterable[str], where: str, key: str) -> Any:
    try:
        return validate()
    except ValidationError as error:
        steps, sentence = violation(error, value)
        hint = did_you_mean(steps[0], names) if sentence == " is unknown" and len(steps) == 1 else ""
        dotted = ".".join(filter(None, (key, *steps)))
        raise ArtifactError(f"{where}{f': {dotted}' if dotted else ''}{sentence}{hint}") from error
