"""The schema of experiment files, by which editors complete and check them: the signatures, in JSON Schema.

It allows what composes to a whole: nothing is required, for files lie over one another, and a part may be a class of
another package, whose arguments nobody knows here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from specexp.config.check import base_of, import_object
from specexp.config.explain import argument_docs, plain
from specexp.config.families import find_part, parts_of
from specexp.config.schema import OVERRIDES, ArmSection, Experiment
from specexp.config.sweep import Confirm, CountAcceptances, Learn
from specexp.core.annotations import Allowed, CallOf
from specexp.core.arguments import REQUIRED, Argument, arguments_of

_LAID_OVER: dict[tuple[Any, str], str] = {
    **{(ArmSection, name): name for name in OVERRIDES},
    **{(stage, "data"): "data" for stage in (CountAcceptances, Learn, Confirm)},
    (ArmSection, "preload"): "data",
}
"""Arguments that are laid over a section of the file."""


def json_schema() -> dict[str, Any]:
    """The schema of an experiment file."""
    writer = _Writer()
    properties = writer.properties(Experiment)
    names = {"type": "array", "items": {"type": "string"}}
    properties["compose"] = {
        "description": "Files laid under this one, relative to it.",
        "anyOf": [{"type": "string"}, names],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specexp experiment",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": dict(sorted(writer.definitions.items())),
    }


def written() -> str:
    """The schema as the text of its file."""
    return json.dumps(json_schema(), indent=1) + "\n"


class _Writer:
    """Writes annotations as schemas; what occurs more than once is a definition."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def properties(self, component: Callable[..., Any]) -> dict[str, Any]:
        """The arguments of a class or function."""
        meaning = argument_docs(component)
        found = {}
        for name, argument in (arguments_of(component) or {}).items():
            section = _LAID_OVER.get((component, name))
            allowed = argument.allowed if section is None else _SECTIONS[section].allowed
            schema = self.of(allowed)
            if name in meaning:
                schema = {"description": plain(meaning[name]), **schema}
            if section is None and (default := _default(argument)) is not REQUIRED:
                schema = {**schema, "default": default}
            found[name] = schema
        return found

    def of(self, allowed: Allowed) -> dict[str, Any]:
        """What an annotation allows."""
        schemas = [schema for one in allowed.members for schema in self._alternatives(one)]
        unique = [schema for at, schema in enumerate(schemas) if schema not in schemas[:at]]
        return unique[0] if len(unique) == 1 else {} if {} in unique else {"anyOf": unique}

    def _alternatives(self, one: Allowed) -> list[dict[str, Any]]:
        if one.reference is not None:
            text = {"type": "string", "description": f"Path of {one.reference.kind}, or a wandb: reference."}
            return [text, self._leaf(one)] if one.is_list else [text]
        if isinstance(one.mark, CallOf):
            return [self._section(import_object(one.mark.component))]
        if one.is_part:
            return [self._part(one)]
        if one.is_section:
            return [self._section(one.kind)]
        if one.inner is not None and one.inner.is_nested:
            inner = self.of(one.inner)
            return [
                {"type": "array", "items": inner}
                if one.is_list
                else {"type": "object", "additionalProperties": inner}
            ]
        return [self._leaf(one)]

    def _leaf(self, one: Allowed) -> dict[str, Any]:
        if one.kind is type(None):
            return {"type": "null"}
        try:
            return TypeAdapter(one.annotation).json_schema() if one.is_checked else {}
        except PydanticInvalidForJsonSchema:
            return {}

    def _section(self, component: Callable[..., Any]) -> dict[str, Any]:
        return self._defined(
            component.__name__,
            lambda: {
                "type": "object",
                "properties": self.properties(component),
                "additionalProperties": False,
            },
        )

    def _part(self, one: Allowed) -> dict[str, Any]:
        base = base_of(one)
        if not base.__module__.startswith("specexp."):
            return _ANY_PART
        return self._defined(base.__name__, lambda: self._family(base))

    def _family(self, base: type) -> dict[str, Any]:
        names = list(parts_of(base))
        cases = []
        for name in names:
            part = find_part(base, name)
            known = None if part is None else arguments_of(part)
            if part is None or known is None:
                continue
            inside = {
                "type": ["object", "null"],
                "properties": self.properties(part),
                "additionalProperties": False,
            }
            cases.append(
                {
                    "if": {"properties": {"class_path": {"const": name}}, "required": ["class_path"]},
                    "then": {"properties": {"init_args": inside}},
                }
            )
        described = [{"const": name, "description": plain(parts_of(base)[name].summary)} for name in names]
        name_of_class = {"anyOf": [*described, {"type": "string", "pattern": r"\."}]}
        return {
            "anyOf": [
                name_of_class,
                {
                    "type": "object",
                    "properties": {
                        "class_path": name_of_class,
                        "init_args": {"type": ["object", "null"]},
                        "name": {"type": "string"},
                    },
                    "additionalProperties": False,
                    **({"allOf": cases} if cases else {}),
                },
            ]
        }

    def _defined(self, name: str, write: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name not in self.definitions:
            self.definitions[name] = {}  # parts hold parts of their own family
            self.definitions[name] = write()
        return {"$ref": f"#/$defs/{name}"}


_SECTIONS = arguments_of(Experiment) or {}
_ANY_PART = {
    "type": "object",
    "properties": {"class_path": {"type": "string"}, "init_args": {"type": ["object", "null"]}},
    "additionalProperties": False,
}


def _default(argument: Argument) -> Any:
    """A default that JSON can hold; :data:`REQUIRED` for others, and where there is none."""
    default = argument.default
    if is_dataclass(default) or (isinstance(default, Mapping) and not default):
        return REQUIRED
    try:
        return json.loads(json.dumps(default, allow_nan=False))
    except (TypeError, ValueError):
        return REQUIRED
