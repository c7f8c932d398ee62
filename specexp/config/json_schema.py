"""The JSON schema of experiment files, for editors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from specexp.base.checked import CallOf, PartOf, arguments_of, import_object, summary_of
from specexp.config.check import parts_of
from specexp.config.explain import schema_of, without_markup
from specexp.config.schema import OVERRIDES, Experiment
from specexp.config.sweep import Confirm, CountAcceptances, Learn

# No key is required in the JSON schema, because a file may contain only overrides. Arguments of classes in other
# packages are not known here.

_LAID_OVER = {
    "ArmSection": {**{name: name for name in OVERRIDES}, "preload": "data"},
    **{stage.__name__: {"data": "data"} for stage in (CountAcceptances, Learn, Confirm)},
}
"""For each class, the arguments that override a section of the file, mapped to that section's name."""
_PART = {"class_path": {"type": "string"}, "init_args": {"type": ["object", "null"]}}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of an experiment file."""
    definitions: dict[str, Any] = {}
    whole = _resolved(schema_of(Experiment), definitions)
    for name, over in _LAID_OVER.items():
        for argument, section in over.items():
            laid = {key: value for key, value in whole["properties"][section].items() if key != "default"}
            definitions[name]["properties"][argument] = laid
    whole["properties"]["compose"] = {
        "description": "Files that this file builds on and overrides; paths are relative to it.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specexp experiment",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    """Replace the markers for parts in a schema with references to ``definitions``, and add the definitions."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    for name, inner in node.get("$defs", {}).items():
        if name not in definitions:
            definitions[name] = {}  # a definition may refer to itself
            definitions[name] = _resolved(inner, definitions)
    found: dict[str, Any] = {}
    for key, inner in node.items():
        if key == "properties":
            found[key] = {name: _resolved(one, definitions) for name, one in inner.items()}
        elif key not in ("title", "required", "$defs", "described", "discriminator"):
            key = "anyOf" if key == "oneOf" else key  # a layer may leave a range's type to the layer below
            found[key] = inner if key in ("default", "description") else _resolved(inner, definitions)
    if "description" in found:
        found["description"] = without_markup(" ".join(found["description"].split()))
    return {**found, **_definition(node["described"], definitions)} if "described" in node else found


def _definition(mark: PartOf | CallOf, definitions: dict[str, Any]) -> dict[str, Any]:
    dotted = mark.base if isinstance(mark, PartOf) else mark.component
    name = dotted.rpartition(".")[2]
    if not dotted.startswith("specexp."):
        part = {"type": "object", "properties": _PART, "additionalProperties": False}
        return {"anyOf": [{"type": "string"}, part]}
    if name not in definitions:
        definitions[name] = {}  # set first, because parts may contain parts of their own family
        made = _family if isinstance(mark, PartOf) else _arguments
        definitions[name] = made(import_object(dotted), definitions)
    return {"$ref": f"#/$defs/{name}"}


def _arguments(component: Callable[..., Any], definitions: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = _resolved(schema_of(component), definitions)
    schema.pop("description", None)
    return schema


def _family(base: type, definitions: dict[str, Any]) -> dict[str, Any]:
    cases, described = [], []
    for name, part in parts_of(base).items():
        described.append({"const": name, "description": without_markup(summary_of(part))})
        if arguments_of(part) is not None:  # otherwise it accepts any arguments
            inside = {**_arguments(part, definitions), "type": ["object", "null"]}
            chosen = {"properties": {"class_path": {"const": name}}, "required": ["class_path"]}
            cases.append({"if": chosen, "then": {"properties": {"init_args": inside}}})
    class_path = {"anyOf": [*described, {"type": "string", "pattern": r"\."}]}
    whole = {
        "type": "object",
        "properties": {**_PART, "class_path": class_path, "name": {"type": "string"}},
        "additionalProperties": False,
        "allOf": cases or [{}],
    }
    return {"anyOf": [class_path, whole]}


def schema_text() -> str:
    """Return the contents of the JSON schema file."""
    return json.dumps(json_schema(), indent=1) + "\n"
