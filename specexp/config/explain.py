"""The explanations that ``--help KEY`` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic.json_schema import GenerateJsonSchema

from specexp.base.checked import (
    CallOf,
    PartOf,
    argument_docs,
    import_object,
    keys_below,
    model_of,
    summary_of,
)
from specexp.base.messages import did_you_mean, with_article
from specexp.config.check import parts_of
from specexp.config.config import SECTIONS, Config
from specexp.config.layers import ConfigError, steps_of
from specexp.config.schema import Experiment

_WIDTH = 110
Schema = dict[str, Any]


class Documented(NamedTuple):
    """An argument of ``owner`` (a class or function) with its JSON schema, in which a ``PartOf`` represents a part."""

    owner: str
    name: str
    schema: Schema
    definitions: Mapping[str, Schema]
    is_required: bool = True

    @property
    def allowed(self) -> str:
        """The allowed values in words, such as ``an integer >= 1, or null``."""
        return _words(self.schema, self.definitions)

    @property
    def default(self) -> str:
        """The default in words."""
        if self.is_required:
            return "none (required)"
        default = self.schema.get("default", self)
        if default is self or any("properties" in one for one in self.alternatives()):
            return "null" if default is None else "the default of each key"
        is_part = isinstance(default, dict) and "class_path" in default
        return str(default["class_path"]) if is_part else _shown(default)

    @property
    def meaning(self) -> str:
        """The description of the argument in its docstring."""
        return str(self.schema.get("description", ""))

    def alternatives(self) -> Iterator[Schema]:
        """Yield the schemas of the values that the argument accepts."""
        waiting = [self.schema]
        for one in waiting:  # the list grows
            waiting += one.get("anyOf") or one.get("oneOf") or []
            if "$ref" in one:
                waiting.append(self.definitions[one["$ref"].rpartition("/")[2]])
        return (one for one in waiting if not {"anyOf", "oneOf", "$ref"} & one.keys())

    def families(self) -> list[PartOf]:
        """Return the ``PartOf`` marks of the families of parts that the argument accepts."""
        marks = (one.get("described") for one in self.alternatives())
        return [mark for mark in marks if isinstance(mark, PartOf)]

    def items(self) -> Iterator[Documented]:
        """Yield the argument with the schema of a single item, for each list or mapping that it accepts."""
        for one in self.alternatives():
            inner = one.get("items", one.get("additionalProperties"))
            if isinstance(inner, dict):
                yield self._replace(schema=inner, is_required=True)

    def below(self, class_path: str | None = None) -> Iterator[Documented]:
        """Yield the arguments of the accepted sections and parts, or only of the part ``class_path`` if it is given."""
        for one in self.alternatives():
            mark = one.get("described")
            if isinstance(mark, PartOf):
                parts = parts_of(mark.contract)
                chosen = [parts.get(class_path) or import_object(class_path)] if class_path else parts.values()
                for part in chosen:
                    yield from arguments(part)
            elif mark is not None:
                yield from arguments(import_object(mark.component))
            else:
                yield from _documented(one, self.definitions)


def arguments(component: Callable[..., Any]) -> list[Documented]:
    """Return the documented arguments of a class or function."""
    schema = schema_of(component)
    return _documented(schema, schema.get("$defs", {}))


def _documented(schema: Schema, definitions: Mapping[str, Schema]) -> list[Documented]:
    required = schema.get("required", ())
    properties = schema.get("properties", {}).items()
    return [Documented(schema["title"], name, one, definitions, name in required) for name, one in properties]


def explain(key: str, config: Config | None = None) -> str:
    """Return an explanation of a dotted key, or of the part with this name.

    Args:
        key: A key or a name, such as ``generation.max_new_tokens``, ``builder`` or ``ParametricTree``.
        config: Configuration with the classes and values to show; None shows all classes that have the key.

    Raises:
        ConfigError: The key does not exist; the message suggests the nearest one.
    """
    found = _arguments_at(key, config)
    if found:
        return "\n\n".join(_explained(key, one, config) for one in found)
    known = set(keys_below(Experiment))
    for contract in contracts():
        parts = parts_of(contract)
        if key in parts:
            head = f"{key}: a {contract.rpartition('.')[2]}. {summary_of(parts[key])}"
            return "\n".join([*_wrapped(head, ""), *_lines_of(arguments(parts[key]))])
        known |= parts.keys()
    section = key.partition(".")[0]
    if "." in key and section in SECTIONS:  # suggest the nearest key of the section, or argument of its parts
        (at,) = _arguments_at(section, None)
        inside = f"{section}.init_args" if at.families() else section
        known = {name for name in known if name.startswith(f"{section}.")}
        known |= {f"{inside}.{one.name}" for one in at.below()}
    hint = did_you_mean(key, known) or did_you_mean(section, SECTIONS)
    raise ConfigError(f"command line: no key or part is called {key!r}{hint}")


def explain_sections() -> str:
    """Return the sections of an experiment file, one per line."""
    meaning = argument_docs(Experiment)
    return "\n".join(f"  {name:<11} {_short(meaning.get(name, ''), _WIDTH - 14)}".rstrip() for name in SECTIONS)


def _arguments_at(key: str, config: Config | None) -> list[Documented]:
    """Return the arguments that a dotted key may refer to, one for each class that has the key."""
    first, *steps = config.layers.split(key) if config is not None else steps_of(key, None)
    found = [one for one in arguments(Experiment) if one.name == first]
    path = first
    for number, step in enumerate(steps):
        part = path.removesuffix(".init_args")
        chosen = None if config is None else config.get(f"{part}.class_path", None)  # else all classes
        path = f"{path}.{step}"
        if step == "class_path" or (step == "init_args" and number == len(steps) - 1):
            break
        if step != "init_args":
            found = [
                inner
                for one in found
                for inner in (*one.items(), *(below for below in one.below(chosen) if below.name == step))
            ]
    return found


def _explained(key: str, found: Documented, config: Config | None) -> str:
    of = "" if found.owner == Experiment.__name__ else f" of {found.owner}"
    lines = _wrapped(f"{key}{of}: {found.allowed}", "")
    lines += _wrapped(found.meaning, "  ") + _wrapped(f"default: {found.default}", "  ")
    if config is not None:
        value = config.get(key, None)
        if not isinstance(value, Mapping | list):
            lines.append(f"  here: {_shown(value)}, from {config.origin_of(key)}")
    for each in (found, *found.items()):
        families = each.families()
        for mark in families:
            summaries = (f"{part}: {summary_of(cls)}" for part, cls in parts_of(mark.contract).items())
            lines += ["  class_path:", *(f"    {_short(summary, 106)}" for summary in summaries)]
        lines += [] if families else _lines_of(each.below())
    return "\n".join(lines)


def _lines_of(found: Iterable[Documented]) -> list[str]:
    """Return lines that describe arguments: allowed values, default and meaning."""
    lines: list[str] = []
    for one in found:
        lines += _wrapped(f"{one.name}: {one.allowed}; default {one.default}", "  ")
        lines += _wrapped(one.meaning, "      ")
    return lines


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
        return f"{with_article(mark.base.rpartition('.')[2])} given as class_path and init_args"
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
        each = _words(schema.get("items", {}), definitions)
        return "a list" + ("" if each == "a value" else f", each {each}")
    if str(schema.get("description", "")).startswith("Path of"):  # of base.checked.Reference
        return f"p{schema['description'][1:].partition(',')[0]}"
    bounds = " and ".join(f"{sign} {schema[name]:g}" for name, sign in _BOUNDS.items() if name in schema)
    return f"{_NAMES.get(schema.get('type', ''), 'a value')} {bounds}".rstrip()


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        without_markup(text), _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _short(text: str, width: int) -> str:
    return textwrap.shorten(without_markup(text), width, placeholder=" ...")


def without_markup(text: str) -> str:
    """Return a docstring with its reStructuredText markup removed."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w]+)`", r"\1", text).replace("``", "")


def contracts() -> list[str]:
    """Return the dotted paths of all contracts with parts that can be named in a file."""
    found: set[str] = set()
    searched: set[CallOf] = set()
    waiting: list[Any] = [schema_of(Experiment)]
    for node in waiting:  # the list grows
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        mark = node.get("described") if isinstance(node, dict) else None
        if isinstance(mark, PartOf) and mark.base.startswith("specexp."):
            found.add(f"{mark.contract.__module__}.{mark.contract.__name__}")
        elif isinstance(mark, CallOf) and mark not in searched:
            searched.add(mark)
            waiting.append(schema_of(import_object(mark.component)))
    return sorted(found)


class _Generator(GenerateJsonSchema):
    """A JSON schema generator that omits values that JSON cannot express."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        return None


def schema_of(component: Callable[..., Any]) -> Schema:
    """Return the JSON schema of a callable's arguments, with descriptions. Marks such as ``PartOf`` represent parts."""
    schema = model_of(component).model_json_schema(schema_generator=_Generator)
    properties = schema.get("properties", {})
    for name, meaning in argument_docs(component).items():
        if name in properties:
            properties[name] = {**properties[name], "description": without_markup(meaning)}
    return schema
