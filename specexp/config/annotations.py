"""What an annotation of a constructor allows: in words, and checked by jsonargparse."""

from __future__ import annotations

import copy
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from os import PathLike
from typing import Any, Literal, Union, get_args, get_origin

from specexp.core.references import Reference

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class PartOf:
    """Marks a value as ``class_path`` and ``init_args`` of a subclass of ``base``.

    Named by its dotted path, so that the family is imported only when such a part is given.
    """

    base: str


@dataclass(frozen=True)
class CallOf:
    """Marks a value as the arguments of a class, named by its dotted path."""

    component: str


@dataclass(frozen=True)
class Argument:
    """One argument of a constructor."""

    annotation: Any
    default: Any


@cache
def arguments_of(component: Callable[..., Any]) -> dict[str, Argument] | None:
    """The arguments a class or function takes by name, ``**kwargs`` looked up in its bases.

    Bounds (``Annotated``) are kept, whether annotations are postponed or not. None: it takes any name.
    """
    if isinstance(component, type) and is_dataclass(component):
        hints = _hints(component)
        return {
            field.name: Argument(hints.get(field.name, Any), _field_default(field))
            for field in fields(component)
            if field.init
        }
    found: dict[str, Argument] = {}
    layers: list[Any] = [component]
    if isinstance(component, type):
        layers = [vars(base)["__init__"] for base in component.__mro__ if "__init__" in vars(base)]
    for function in layers:
        if function is object.__init__:
            return found
        try:
            parameters = inspect.signature(function).parameters
        except ValueError:  # written in C
            return None
        hints = _hints(function)
        for name, parameter in list(parameters.items())[1 if isinstance(component, type) else 0 :]:
            if parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
                parameter.POSITIONAL_ONLY,
            ):
                found.setdefault(name, Argument(hints.get(name, Any), parameter.default))
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
            return found
    return None


def members(annotation: Any) -> list[Any]:
    """The alternatives of a union; the annotation itself if it is none."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [inner for member in get_args(annotation) for inner in members(member)]
    return [annotation]


def marker(annotation: Any) -> PartOf | CallOf | None:
    """The marker an annotation carries."""
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, PartOf | CallOf):
            return extra
    return None


def reference_of(annotation: Any) -> Reference | None:
    """How the value may be given by reference; None where it may not."""
    for member in members(annotation):
        for extra in getattr(member, "__metadata__", ()):
            if isinstance(extra, Reference):
                return extra
    return None


def bare(annotation: Any) -> Any:
    """Without ``Annotated``."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def is_part(annotation: Any) -> bool:
    """Whether a value is given as ``class_path`` and ``init_args``."""
    if isinstance(marker(annotation), PartOf):
        return True
    kind = bare(annotation)
    return reference_of(annotation) is None and (
        isinstance(kind, type)
        and get_origin(kind) is None
        and kind.__module__ not in ("builtins", "pathlib", "datetime", "decimal")
        and not is_dataclass(kind)
        and not issubclass(kind, Enum | PathLike)
        and kind is not Any
    )


def is_list(annotation: Any) -> bool:
    """Whether it is a list of something."""
    return get_origin(bare(annotation)) in (list, Sequence)


def is_mapping(annotation: Any) -> bool:
    """Whether it is a mapping to something."""
    return get_origin(bare(annotation)) in (dict, Mapping)


def is_nested(annotation: Any) -> bool:
    """Whether parts or sections are inside, so that jsonargparse alone would not name the key."""
    for member in members(annotation):
        kind = bare(member)
        if is_part(member) or marker(member) or is_dataclass(kind):
            return True
        if (is_list(member) or is_mapping(member)) and any(is_nested(inner) for inner in get_args(kind)):
            return True
    return False


def parse(value: Any, annotation: Any) -> Any:
    """The value as jsonargparse reads it for this annotation.

    Raises:
        ValueError: the annotation does not allow it.
    """
    kinds = [bare(member) for member in members(annotation)]
    if Any in kinds:
        return value
    if value is None and type(None) not in kinds:
        raise ValueError
    if (
        isinstance(value, bool)
        and bool not in kinds
        and not any(get_origin(kind) is Literal for kind in kinds)
    ):
        raise ValueError
    if isinstance(value, float) and value != value:  # nan passes every bound
        raise ValueError
    asked = (repr(value), repr(annotation))
    if asked not in _PARSED:
        _PARSED[asked] = _parse(value, annotation)
    return copy.deepcopy(_PARSED[asked])


_PARSED: dict[tuple[str, str], Any] = {}
"""What was allowed before: every trial and arm asks for the same values again."""


def _parse(value: Any, annotation: Any) -> Any:
    from jsonargparse import ArgumentError, ArgumentParser

    try:
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--value", type=annotation)
    except (ValueError, TypeError):  # a type only Python code can give
        return value
    try:
        return parser.parse_object({"value": value}).value
    except (ArgumentError, ValueError, TypeError, KeyError) as error:
        raise ValueError(str(error)) from error


def describe(annotation: Any) -> str:
    """What is allowed, in words: ``an integer of at least 1 and at most 64, or null``."""
    alternatives = [_describe_one(member) for member in members(annotation)]
    return ", or ".join(sorted(dict.fromkeys(alternatives), key=lambda text: text == "null"))


def choices_of(annotation: Any) -> list[str]:
    """Texts a ``Literal`` allows."""
    found = []
    for member in members(annotation):
        if get_origin(bare(member)) is Literal:
            found += [choice for choice in get_args(bare(member)) if isinstance(choice, str)]
    return found


_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null",
          dict: "a mapping", list: "a list"}  # fmt: skip
_BOUNDS = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))


def _describe_one(annotation: Any) -> str:
    kind = bare(annotation)
    reference = reference_of(annotation)
    if reference is not None:
        path = f"the path of {'an' if reference.kind[0] in 'aeiou' else 'a'} {reference.kind}"
        return f"{_describe_one(kind)}, or {path}" if is_list(kind) else path
    if is_part(annotation):
        mark = marker(annotation)
        name = mark.base.rpartition(".")[2] if isinstance(mark, PartOf) else kind.__name__
        return f"a {name} given as class_path and init_args"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(kind))
    if is_list(annotation):
        return "a list" + (f", each {describe(get_args(kind)[0])}" if get_args(kind) else "")
    if is_mapping(annotation) or is_dataclass(kind) or marker(annotation):
        return "a mapping"
    text = _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
    extras = [
        item
        for extra in getattr(annotation, "__metadata__", ())
        for item in (extra, *getattr(extra, "metadata", ()))
    ]
    bounds = [f"{word} {getattr(extra, name):g}" for name, word in _BOUNDS for extra in extras
              if getattr(extra, name, None) is not None]  # fmt: skip
    return f"{text} of {' and '.join(bounds)}" if bounds else text


def _field_default(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else REQUIRED


def _hints(component: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(component, include_extras=True)
    except NameError:  # a name under TYPE_CHECKING: resolve the others
        found = {}
        scope = getattr(component, "__globals__", {})
        for name, annotation in getattr(component, "__annotations__", {}).items():
            try:
                holder = type("_", (), {"__annotations__": {name: annotation}})
                found[name] = typing.get_type_hints(holder, scope, include_extras=True)[name]
            except NameError:
                found[name] = Any
        return found
