"""Keys explained: what a value may be, what it is where none is given, and what it means."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from specexp.config.check import base_of, import_object
from specexp.config.config import SECTIONS, Config
from specexp.config.errors import ConfigError
from specexp.config.families import find_part, parts_of
from specexp.config.layers import SPACE_FIELDS
from specexp.config.schema import Experiment
from specexp.core.annotations import Allowed, CallOf, PartOf
from specexp.core.arguments import REQUIRED, Argument, arguments_of, keys_below
from specexp.core.messages import did_you_mean

_WIDTH = 110


@dataclass(frozen=True)
class _Place:
    """An argument that a key leads to.

    Attributes:
        owner: The class or function it is an argument of.
        name: The name of the argument.
        argument: Its annotation and default.
    """

    owner: Callable[..., Any]
    name: str
    argument: Argument


def explain(key: str, config: Config | None = None) -> str:
    """What a dotted key takes, or a part of any family by its name.

    Args:
        key: A key or a name, such as ``generation.max_new_tokens``, ``builder`` or ``ParametricTree``.
        config: The file whose classes and values are told; without one, all classes that have the key.

    Raises:
        ConfigError: there is no such key; with the nearest.
    """
    places = _places(key, config)
    if places:
        return "\n\n".join(_told(key, place, config) for place in places)
    for contract in contracts():
        if key in parts_of(contract):
            part = find_part(import_object(contract), key)
            if part is not None:
                head = f"{key}: a {contract.rpartition('.')[2]}. {_first(inspect.getdoc(part))}"
                return "\n".join([*_wrapped(head, ""), *_lines_of(part)])
    section = key.partition(".")[0]
    hint = did_you_mean(key, _near(key)) or did_you_mean(section, SECTIONS)
    raise ConfigError(f"command line: no key and no part is called {key!r}{hint}")


def _near(key: str) -> set[str]:
    """What a key may be meant for: of a section the keys inside it, otherwise every key and part."""
    section = key.partition(".")[0]
    if "." not in key or section not in SECTIONS:
        return {*keys_of_sections(), *(name for contract in contracts() for name in parts_of(contract))}
    found = {name for name in keys_of_sections() if name.startswith(f"{section}.")}
    for one in SECTIONS[section].allowed.members:
        inside = "init_args." if one.is_part else ""
        for component in _components(one, None):
            found |= {f"{section}.{inside}{name}" for name in arguments_of(component) or {}}
    return found


def explain_sections() -> str:
    """The sections of an experiment file, a line each."""
    meaning = argument_docs(Experiment)
    return "\n".join(
        f"  {name:<11} {_short(meaning.get(name, ''), _WIDTH - 14)}".rstrip() for name in SECTIONS
    )


def keys_of_sections() -> list[str]:
    """Dotted keys that exist whatever classes are configured."""
    return list(keys_below(Experiment))


def argument_docs(component: Callable[..., Any]) -> dict[str, str]:
    """What arguments mean, by name: the ``Args:`` of the docstring of a class or function, and of its bases'."""
    found: dict[str, str] = {}
    for layer in component.__mro__ if isinstance(component, type) else (component,):
        for text in (layer.__doc__, getattr(vars(layer).get("__init__"), "__doc__", None)):
            _, _, body = inspect.cleandoc(text or "").partition("Args:\n")
            block = re.split(r"\n(?=\S)", body, maxsplit=1)[0]
            for name, meaning in _MEANING.findall(textwrap.dedent(block)):
                found.setdefault(name, " ".join(meaning.split()))
    return found


_MEANING = re.compile(r"^(\w+)(?: \([^)]*\))?: (.*(?:\n[ ]+.*)*)", re.MULTILINE)


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
    for one in place.argument.allowed.members:
        if one.inner is not None and (one.is_mapping or step.isdecimal()):
            yield _Place(place.owner, place.name, Argument(one.inner.annotation, REQUIRED))
        for component in _components(one, chosen):
            known = arguments_of(component) or {}
            if step in known:
                yield _Place(component, step, known[step])


def _components(one: Allowed, chosen: str | None) -> Iterator[Callable[..., Any]]:
    """Whose arguments a value has: a section's, or those of a part that may stand there."""
    if isinstance(one.mark, CallOf):
        yield import_object(one.mark.component)
    elif one.is_section:
        yield one.kind
    elif one.is_part:
        base = base_of(one)
        if chosen is not None and "." in chosen:
            yield import_object(chosen)
            return
        for name in parts_of(base) if chosen is None else [chosen]:
            part = find_part(base, name)
            if part is not None:
                yield part


def _told(key: str, place: _Place, config: Config | None) -> str:
    of = "" if place.owner is Experiment else f" of {place.owner.__name__}"
    lines = _wrapped(f"{key}{of}: {place.argument.allowed.words}", "")
    meaning = argument_docs(place.owner).get(place.name)
    if meaning:
        lines += _wrapped(meaning, "  ")
    lines += _wrapped(f"default: {default_words(place.argument)}", "  ")
    if config is not None:
        value = config.get(key, None)
        if not isinstance(value, Mapping | list):
            lines.append(f"  here: {_shown(value)}, from {config.origin_of(key)}")
    for one in place.argument.allowed.members:
        inner = one.inner if one.inner is not None else one
        for part in inner.members:
            lines += _contents(part)
    return "\n".join(lines)


def _contents(one: Allowed) -> list[str]:
    """What may stand inside a value, a line each."""
    if one.is_part:
        parts = parts_of(base_of(one)).values()
        return [
            "  class_path:",
            *(f"    {_short(f'{part.name}: {part.summary}', _WIDTH - 4)}" for part in parts),
        ]
    if one.is_section or isinstance(one.mark, CallOf):
        return [line for component in _components(one, None) for line in _lines_of(component)]
    return []


def _lines_of(component: Callable[..., Any]) -> list[str]:
    """The arguments of a class or function."""
    meaning = argument_docs(component)
    lines = []
    for name, argument in (arguments_of(component) or {}).items():
        lines += _wrapped(f"{name}: {argument.allowed.words}; default {default_words(argument)}", "  ")
        if name in meaning:
            lines += _wrapped(meaning[name], "      ")
    return lines


def default_words(argument: Argument) -> str:
    """The default of an argument, for a person."""
    default = argument.default
    if default is REQUIRED:
        return "none, one must be given"
    if is_dataclass(default):
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


def _first(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def contracts() -> list[str]:
    """Dotted paths of all contracts whose parts a file may name."""
    return sorted(_contracts_in(Allowed(Experiment), set()))


def _contracts_in(allowed: Allowed, seen: set[Any]) -> set[str]:
    found: set[str] = set()
    for one in allowed.members:
        if isinstance(one.mark, PartOf) and one.mark.base.startswith("specexp."):
            found.add(one.mark.base)
        elif one.is_part and one.mark is None:
            found.add(f"{one.kind.__module__}.{one.kind.__name__}")
        component = import_object(one.mark.component) if isinstance(one.mark, CallOf) else one.kind
        if (isinstance(one.mark, CallOf) or one.is_section) and component not in seen:
            seen.add(component)
            for argument in (arguments_of(component) or {}).values():
                found |= _contracts_in(argument.allowed, seen)
        if one.inner is not None:
            found |= _contracts_in(one.inner, seen)
    return found
