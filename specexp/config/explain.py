"""Keys explained to people, by ``--help KEY``, and to editors, as a JSON schema."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple, get_args, get_origin

from pydantic.json_schema import GenerateJsonSchema

from specexp.config.check import adapter_of, contracts_in, members_of, parts_of, sections_in
from specexp.config.config import SECTIONS, Config
from specexp.config.layers import ConfigError, steps_of
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


class _Found(NamedTuple):
    """An argument that a key leads to, and the class or function it belongs to."""

    owner: Callable[..., Any]
    name: str
    argument: Argument


def explain(key: str, config: Config | None = None) -> str:
    """Return what a dotted key takes, or what a part with this name is.

    Args:
        key: A key or a name, such as ``generation.max_new_tokens``, ``builder`` or ``ParametricTree``.
        config: The file whose classes and values are shown; without one, all classes that have the key.

    Raises:
        ConfigError: There is no such key; the message has the nearest.
    """
    found = _arguments_at(key, config)
    if found:
        return "\n\n".join(_explained(key, one, config) for one in found)
    names: set[str] = set()
    for contract in contracts():
        parts = parts_of(contract)
        if key in parts:
            head = f"{key}: a {contract.rpartition('.')[2]}. {summary_of(parts[key])}"
            return "\n".join([*_wrapped(head, ""), *_lines_of(parts[key])])
        names |= parts.keys()
    section = key.partition(".")[0]
    known = {*keys_below(Experiment), *names}
    if "." in key and section in SECTIONS:
        annotation = SECTIONS[section].annotation
        known = {name for name in keys_below(Experiment) if name.startswith(f"{section}.")}
        known |= {f"{section}.{name}" for one in sections_in(annotation) for name in arguments_of(one) or {}}
        parts_here = [part for base in contracts_in(annotation) for part in parts_of(base).values()]
        known |= {f"{section}.init_args.{name}" for part in parts_here for name in arguments_of(part) or {}}
    hint = did_you_mean(key, known) or did_you_mean(section, SECTIONS)
    raise ConfigError(f"command line: no key and no part is called {key!r}{hint}")


def explain_sections() -> str:
    """Return the sections of an experiment file, one a line."""
    meaning = argument_docs(Experiment)
    return "\n".join(
        f"  {name:<11} {_short(meaning.get(name, ''), _WIDTH - 14)}".rstrip() for name in SECTIONS
    )


def _arguments_at(key: str, config: Config | None) -> list[_Found]:
    """Return every argument that a key may lead to: one, or one for each class that has it."""
    first, *steps = config.layers.split(key) if config is not None else steps_of(key, None)
    if first not in SECTIONS:
        return []
    found = [_Found(Experiment, first, SECTIONS[first])]
    path = first
    for number, step in enumerate(steps):
        part = path.removesuffix(".init_args")
        chosen = None if config is None else config.get(f"{part}.class_path", None)
        path = f"{path}.{step}"
        if step == "class_path" or (step == "init_args" and number == len(steps) - 1):
            break
        if step != "init_args":
            found = [inner for one in found for inner in _inside(one, step, chosen)]
    return found


def _inside(found: _Found, step: str, chosen: str | None) -> Iterator[_Found]:
    """Yield the arguments one step below: of an item, of a section, or of the chosen part or else of all parts."""
    annotation = found.argument.annotation
    for one in members_of(annotation):
        if get_args(one) and (get_origin(one) is dict or step.isdecimal()):
            yield _Found(found.owner, found.name, Argument(get_args(one)[-1], REQUIRED))
    components: list[Callable[..., Any]] = [*sections_in(annotation)]
    for base in contracts_in(annotation):
        parts = parts_of(base)
        if chosen is None:
            components += parts.values()
        else:
            components.append(import_object(chosen) if "." in chosen else parts[chosen])
    for component in components:
        known = arguments_of(component) or {}
        if step in known:
            yield _Found(component, step, known[step])


def _explained(key: str, found: _Found, config: Config | None) -> str:
    owner, name, argument = found
    of = "" if owner is Experiment else f" of {owner.__name__}"
    lines = _wrapped(f"{key}{of}: {allowed_words(argument.annotation)}", "")
    lines += _wrapped(argument_docs(owner).get(name, ""), "  ")
    lines += _wrapped(f"default: {default_words(argument)}", "  ")
    if config is not None:
        value = config.get(key, None)
        if not isinstance(value, Mapping | list):
            lines.append(f"  here: {_shown(value)}, from {config.origin_of(key)}")
    for one in members_of(argument.annotation):
        inner = get_args(one)[-1] if get_origin(one) in (list, dict) else one
        for base in contracts_in(inner):
            summaries = (f"{part}: {summary_of(cls)}" for part, cls in parts_of(base).items())
            lines += ["  class_path:", *(f"    {_short(summary, 106)}" for summary in summaries)]
        for component in sections_in(inner):
            lines += _lines_of(component)
    return "\n".join(lines)


def _lines_of(component: Callable[..., Any]) -> list[str]:
    """Return the arguments of a class or function."""
    meaning = argument_docs(component)
    lines = []
    for name, argument in (arguments_of(component) or {}).items():
        words = allowed_words(argument.annotation)
        lines += _wrapped(f"{name}: {words}; default {default_words(argument)}", "  ")
        lines += _wrapped(meaning.get(name, ""), "      ")
    return lines


def allowed_words(annotation: Any) -> str:
    """Describe the allowed values of an annotation: ``an integer >= 1, or null``."""
    schema = adapter_of(annotation).json_schema(schema_generator=_Generator)
    return _words(schema, schema.get("$defs", {}))


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
    if isinstance(mark := schema.get("described"), PartOf):
        return f"a {mark.base.rpartition('.')[2]} given as class_path and init_args"
    if mark is not None:
        return "a mapping"
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
    """Describe the default of an argument."""
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
    """Return a docstring without the marks of reStructuredText."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w]+)`", r"\1", text).replace("``", "")


def contracts() -> list[str]:
    """Return the dotted paths of all contracts whose parts a file may name."""
    found: set[str] = set()
    seen: set[Any] = set()

    def search(annotation: Any) -> None:
        bases = [base for base in contracts_in(annotation) if base.__module__.startswith("specexp.")]
        found.update(f"{base.__module__}.{base.__name__}" for base in bases)
        for component in set(sections_in(annotation)) - seen:
            seen.add(component)
            for argument in (arguments_of(component) or {}).values():
                search(argument.annotation)
        for one in members_of(annotation):
            if get_origin(one) in (list, dict):
                search(get_args(one)[-1])

    search(Experiment)
    return sorted(found)


# In the JSON schema nothing is required, because files lie over one another, and a part may be a class of another
# package, whose arguments are unknown here.

_LAID_OVER = {
    "ArmSection": {**{name: name for name in OVERRIDES}, "preload": "data"},
    **{stage.__name__: {"data": "data"} for stage in (CountAcceptances, Learn, Confirm)},
}
"""Arguments that are laid over a section of the file."""
_PART = {"class_path": {"type": "string"}, "init_args": {"type": ["object", "null"]}}


class _Generator(GenerateJsonSchema):
    """Leaves out what JSON cannot hold."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        return None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of an experiment file."""
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


def schema_of(component: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a class or function in JSON Schema, parts as a mark of their family."""
    return model_of(component).model_json_schema(schema_generator=_Generator)


def _resolved(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with references to definitions in place of the marks of parts."""
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
            key = "anyOf" if key == "oneOf" else key  # a layer may leave the type of a range to the one below
            found[key] = inner if key in ("default", "description") else _resolved(inner, definitions)
    if "description" in found:
        found["description"] = plain(" ".join(found["description"].split()))
    return {**found, **_definition(node["described"], definitions)} if "described" in node else found


def _definition(mark: PartOf | CallOf, definitions: dict[str, Any]) -> dict[str, Any]:
    dotted = mark.base if isinstance(mark, PartOf) else mark.component
    name = dotted.rpartition(".")[2]
    if not dotted.startswith("specexp."):
        part = {"type": "object", "properties": _PART, "additionalProperties": False}
        return {"anyOf": [{"type": "string"}, part]}
    if name not in definitions:
        definitions[name] = {}  # parts hold parts of their own family
        made = _family if isinstance(mark, PartOf) else _arguments
        definitions[name] = made(import_object(dotted), definitions)
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
    class_path = {"anyOf": [*described, {"type": "string", "pattern": r"\."}]}
    properties = {**_PART, "class_path": class_path, "name": {"type": "string"}}
    whole = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "allOf": cases or [{}],
    }
    return {"anyOf": [class_path, whole]}


def schema_text() -> str:
    """Return the JSON schema as the text of its file."""
    return json.dumps(json_schema(), indent=1) + "\n"
