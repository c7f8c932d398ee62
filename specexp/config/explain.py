"""Keys explained to people, by ``--help KEY``, and to editors, as a JSON schema."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic.json_schema import GenerateJsonSchema

from specexp.config.check import contracts_in, members_of, parts_of, sections_in
from specexp.config.config import SECTIONS, Config
from specexp.config.layers import SPACE_FIELDS, ConfigError
from specexp.config.schema import OVERRIDES, Experiment
from specexp.config.sweep import Confirm, CountAcceptances, Learn
from specexp.core.checked import (
    REQUIRED,
    Argument,
    CallOf,
    PartOf,
    Section,
    argument_docs,
    arguments_of,
    import_object,
    keys_below,
    model_of,
    summary_of,
)
from specexp.core.messages import did_you_mean

_WIDTH = 110


@dataclass(frozen=True)
class _Place:
    """An argument that a key leads to, and the class or function it belongs to."""

    owner: Callable[..., Any]
    name: str
    argument: Argument


def explain(key: str, config: Config | None = None) -> str:
    """What a dotted key takes, or a part of any family by its name.

    Args:
        key: A key or a name, such as ``generation.max_new_tokens``, ``builder`` or ``ParametricTree``.
        config: The file whose classes and values are shown; without one, all classes that have the key.

    Raises:
        ConfigError: there is no such key; with the nearest.
    """
    places = _places(key, config)
    if places:
        return "\n\n".join(_explained(key, place, config) for place in places)
    for contract in contracts():
        part = parts_of(contract).get(key)
        if part is not None:
            head = f"{key}: a {contract.rpartition('.')[2]}. {summary_of(part)}"
            return "\n".join([*_wrapped(head, ""), *_lines_of(part)])
    section = key.partition(".")[0]
    hint = did_you_mean(key, _near(key)) or did_you_mean(section, SECTIONS)
    raise ConfigError(f"command line: no key and no part is called {key!r}{hint}")


def _near(key: str) -> set[str]:
    """What a key may be meant for: of a section the keys inside it, otherwise every key and part."""
    section = key.partition(".")[0]
    if "." not in key or section not in SECTIONS:
        return {*keys_below(Experiment), *(name for contract in contracts() for name in parts_of(contract))}
    annotation = SECTIONS[section].annotation
    found = {name for name in keys_below(Experiment) if name.startswith(f"{section}.")}
    for component in sections_in(annotation):
        found |= {f"{section}.{name}" for name in arguments_of(component) or {}}
    for part in _parts_in(annotation, None):
        found |= {f"{section}.init_args.{name}" for name in arguments_of(part) or {}}
    return found


def explain_sections() -> str:
    """The sections of an experiment file, a line each."""
    meaning = argument_docs(Experiment)
    return "\n".join(
        f"  {name:<11} {_short(meaning.get(name, ''), _WIDTH - 14)}".rstrip() for name in SECTIONS
    )


def _places(key: str, config: Config | None) -> list[_Place]:
    """Every argument that a key may lead to: one, or one for each class that has it."""
    first, *waiting = _steps(key, config)
    if first not in SECTIONS:
        return []
    places = [_Place(Experiment, first, SECTIONS[first])]
    done = first
    for number, step in enumerate(waiting):
        part = done.removesuffix(".init_args")
        chosen = None if config is None else config.get(f"{part}.class_path", None)
        done = f"{done}.{step}"
        if step == "class_path" or (step == "init_args" and number == len(waiting) - 1):
            break
        if step != "init_args":
            places = [inner for place in places for inner in _inside(place, step, chosen)]
    return places


def _steps(key: str, config: Config | None) -> list[str]:
    if config is not None:
        return config.layers.split(key)
    steps = key.split(".")
    if steps[:2] == ["sweep", "space"] and len(steps) > 3:
        inner, last = ".".join(steps[2:-1]), steps[-1]
        return ["sweep", "space", *([inner, last] if last in SPACE_FIELDS else [f"{inner}.{last}"])]
    return steps


def _inside(place: _Place, step: str, chosen: str | None) -> Iterator[_Place]:
    annotation = place.argument.annotation
    for one in members_of(annotation):
        if get_args(one) and (get_origin(one) is dict or step.isdecimal()):
            yield _Place(place.owner, place.name, Argument(get_args(one)[-1], REQUIRED))
    components: list[Callable[..., Any]] = [*sections_in(annotation), *_parts_in(annotation, chosen)]
    for component in components:
        known = arguments_of(component) or {}
        if step in known:
            yield _Place(component, step, known[step])


def _parts_in(annotation: Any, chosen: str | None) -> Iterator[type]:
    """The chosen part, or all parts that a value may be."""
    for base in contracts_in(annotation):
        if chosen is None:
            yield from parts_of(base).values()
        else:
            yield import_object(chosen) if "." in chosen else parts_of(base)[chosen]


def _explained(key: str, place: _Place, config: Config | None) -> str:
    annotation = place.argument.annotation
    of = "" if place.owner is Experiment else f" of {place.owner.__name__}"
    lines = _wrapped(f"{key}{of}: {allowed_words(place.owner, place.name, annotation)}", "")
    meaning = argument_docs(place.owner).get(place.name)
    if meaning:
        lines += _wrapped(meaning, "  ")
    lines += _wrapped(f"default: {default_words(place.argument)}", "  ")
    if config is not None:
        value = config.get(key, None)
        if not isinstance(value, Mapping | list):
            lines.append(f"  here: {_shown(value)}, from {config.origin_of(key)}")
    for one in members_of(annotation):
        inner = get_args(one)[-1] if get_origin(one) in (list, dict) else one
        for base in contracts_in(inner):
            parts = parts_of(base).items()
            lines += [
                "  class_path:",
                *(f"    {_short(f'{name}: {summary_of(part)}', 106)}" for name, part in parts),
            ]
        for component in sections_in(inner):
            lines += _lines_of(component)
    return "\n".join(lines)


def _lines_of(component: Callable[..., Any]) -> list[str]:
    """The arguments of a class or function."""
    meaning = argument_docs(component)
    lines = []
    for name, argument in (arguments_of(component) or {}).items():
        words = allowed_words(component, name, argument.annotation)
        lines += _wrapped(f"{name}: {words}; default {default_words(argument)}", "  ")
        if name in meaning:
            lines += _wrapped(meaning[name], "      ")
    return lines


def allowed_words(owner: Callable[..., Any], name: str, annotation: Any = None) -> str:
    """Describe the allowed values of an argument: ``an integer >= 1, or null``."""
    schema = schema_of(owner)
    known = (arguments_of(owner) or {}).get(name)
    if (known is not None and known.annotation is annotation) or annotation is None:
        return _words(schema["properties"][name], schema.get("$defs", {}))
    inside = schema["properties"][name]  # an item of a list or a mapping
    options = inside.get("anyOf", [inside])
    items = [one.get("items", one.get("additionalProperties")) for one in options]
    return _words(next(one for one in items if isinstance(one, dict)), schema.get("$defs", {}))


_NAMES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "object": "a mapping",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if mark := schema.get("described"):
        return (
            f"a {mark.base.rpartition('.')[2]} given as class_path and init_args"
            if (isinstance(mark, PartOf))
            else "a mapping"
        )
    if options := schema.get("anyOf") or schema.get("oneOf"):
        found = dict.fromkeys(_words(one, definitions) for one in options)
        return ", or ".join(sorted(found, key=lambda text: text == "null"))
    if "$ref" in schema:
        return _words(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        most = f" of at most {schema['maxItems']}" if "maxItems" in schema else ""
        each = _words(schema.get("items", {}), definitions)
        return f"a list{most}" + ("" if each == "a value" else f", each {each}")
    bounds = " and ".join(f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if name in schema)
    if str(schema.get("description", "")).startswith("Path of"):
        return f"p{schema['description'][1:].partition(',')[0]}"
    return f"{_NAMES.get(schema.get('type', ''), 'a value')} {bounds}".rstrip()


def default_words(argument: Argument) -> str:
    """The default of an argument, for a person."""
    default = argument.default
    if default is REQUIRED:
        return "none, one must be given"
    if isinstance(default, Section) or is_dataclass(default):
        return "that of each of its keys"
    if isinstance(default, Mapping) and "class_path" in default:
        return str(default["class_path"])
    return _shown(default)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        plain(text), _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _short(text: str, width: int) -> str:
    return textwrap.shorten(plain(text), width, placeholder=" ...")


def plain(text: str) -> str:
    """A docstring without the marks of reStructuredText."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w]+)`", r"\1", text).replace("``", "")


def contracts() -> list[str]:
    """Dotted paths of all contracts whose parts a file may name."""
    found: set[str] = set()
    seen: set[Any] = set()

    def search(annotation: Any) -> None:
        found.update(
            f"{base.__module__}.{base.__name__}"
            for base in contracts_in(annotation)
            if base.__module__.startswith("specexp.")
        )
        for component in set(sections_in(annotation)) - seen:
            seen.add(component)
            for argument in (arguments_of(component) or {}).values():
                search(argument.annotation)
        for one in members_of(annotation):
            if get_origin(one) in (list, dict):
                search(get_args(one)[-1])

    search(Experiment)
    return sorted(found)


# The JSON schema allows what composes to a whole: nothing is required, because files lie over one another, and a part
# may be a class of another package, whose arguments are unknown here.

_LAID_OVER = {
    "ArmSection": {**{name: name for name in OVERRIDES}, "preload": "data"},
    **{stage.__name__: {"data": "data"} for stage in (CountAcceptances, Learn, Confirm)},
}
"""Arguments that are laid over a section of the file."""


class _Generator(GenerateJsonSchema):
    """Leaves out what JSON cannot hold."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        return None


@cache
def schema_of(component: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a class or function in JSON Schema, parts as a mark of their family."""
    return model_of(component).model_json_schema(schema_generator=_Generator)


def json_schema() -> dict[str, Any]:
    """The JSON schema of an experiment file."""
    definitions: dict[str, Any] = {}
    whole = _resolved(schema_of(Experiment), definitions)
    for name, over in _LAID_OVER.items():
        for argument, section in over.items():
            laid = {key: value for key, value in whole["properties"][section].items() if key != "default"}
            definitions[name]["properties"][argument] = laid
    names = {"type": "array", "items": {"type": "string"}}
    whole["properties"]["compose"] = {
        "description": "Files laid under this one, relative to it.",
        "anyOf": [{"type": "string"}, names],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specexp experiment",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    """A schema with definitions in the place of the marks of parts."""
    if isinstance(node, list):
        return [_resolved(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    for name, inner in node.get("$defs", {}).items():
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _resolved(inner, definitions)
    found: dict[str, Any] = {}
    for key, inner in node.items():
        if key == "properties":
            found[key] = {name: _resolved(one, definitions) for name, one in inner.items()}
        elif key not in ("title", "required", "$defs", "described", "discriminator"):
            key = "anyOf" if key == "oneOf" else key  # a layer may leave the type of a range to the one below
            found[key] = inner if key in ("default", "description") else _resolved(inner, definitions)
    if "description" in found:
        found["description"] = plain(" ".join(found["description"].split()))
    return {**found, **_definition(node["described"], definitions)} if "described" in node else found


def _definition(mark: PartOf | CallOf, definitions: dict[str, Any]) -> dict[str, Any]:
    dotted = mark.base if isinstance(mark, PartOf) else mark.component
    name = dotted.rpartition(".")[2]
    if not dotted.startswith("specexp."):
        free = {"class_path": {"type": "string"}, "init_args": {"type": ["object", "null"]}}
        return {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": free, "additionalProperties": False},
            ]
        }
    if name not in definitions:
        definitions[name] = {}  # parts hold parts of their own family
        found = import_object(dotted)
        definitions[name] = (
            _family(found, definitions) if isinstance(mark, PartOf) else _arguments(found, definitions)
        )
    return {"$ref": f"#/$defs/{name}"}


def _arguments(component: Callable[..., Any], definitions: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = _resolved(schema_of(component), definitions)
    schema.pop("description", None)
    for name, meaning in argument_docs(component).items():
        if name in schema.get("properties", {}):
            schema["properties"][name] = {"description": plain(meaning), **schema["properties"][name]}
    return schema


def _family(base: type, definitions: dict[str, Any]) -> dict[str, Any]:
    cases, described = [], []
    for name, part in parts_of(base).items():
        described.append({"const": name, "description": plain(summary_of(part))})
        if arguments_of(part) is None:
            continue
        inside = {**_arguments(part, definitions), "type": ["object", "null"]}
        chosen = {"properties": {"class_path": {"const": name}}, "required": ["class_path"]}
        cases.append({"if": chosen, "then": {"properties": {"init_args": inside}}})
    name_of_class = {"anyOf": [*described, {"type": "string", "pattern": r"\."}]}
    free = {
        "class_path": name_of_class,
        "init_args": {"type": ["object", "null"]},
        "name": {"type": "string"},
    }
    whole = {"type": "object", "properties": free, "additionalProperties": False, "allOf": cases}
    return {"anyOf": [name_of_class, whole if cases else {**whole, "allOf": [{}]}]}


def schema_text() -> str:
    """The JSON schema as the text of its file."""
    return json.dumps(json_schema(), indent=1) + "\n"
