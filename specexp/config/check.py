"""Checks values against the signatures they are arguments of, fills defaults in, and builds the objects."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from importlib import import_module
from typing import Any, get_args

from specexp.config.annotations import (
    REQUIRED,
    Argument,
    CallOf,
    PartOf,
    arguments_of,
    bare,
    choices_of,
    describe,
    is_list,
    is_mapping,
    is_nested,
    is_part,
    marker,
    members,
    parse,
    reference_of,
)
from specexp.config.errors import ConfigError
from specexp.config.layers import Key
from specexp.config.references import is_given, resolved
from specexp.core.messages import did_you_mean, first_line

SourceOf = Callable[[Key], str]


class Checker:
    """Reads values against annotations; every refusal names the file and the key.

    Args:
        source_of: the file (or the command line) that set a key.
    """

    def __init__(self, source_of: SourceOf) -> None:
        self.source_of = source_of

    def error(self, key: Key, sentence: str) -> ConfigError:
        """An error about a key; the sentence goes on after it."""
        return ConfigError(f"{self.source_of(key)}: {'.'.join(key)}{sentence}")

    def value(self, value: Any, annotation: Any, key: Key) -> Any:
        """The value with the defaults of everything inside it.

        Raises:
            ConfigError: the annotation does not allow it.
        """
        alternatives = members(annotation)
        if value is None and (type(None) in alternatives or Any in alternatives):
            return None
        if reference_of(annotation) is not None:
            if is_given(value, alternatives):
                return value
            if not any(map(is_list, alternatives)):
                raise self.error(key, f" is {value!r}; allowed is {describe(annotation)}")
        for member in alternatives:
            kind, mark = bare(member), marker(member)
            if isinstance(mark, CallOf) and isinstance(value, Mapping):
                return self.arguments(import_object(mark.component), value, key)
            if is_part(member) and (
                isinstance(value, Mapping) or (isinstance(value, str) and str not in alternatives)
            ):
                return self.part(value, member, key)
            if is_dataclass(kind) and isinstance(value, Mapping):
                return self.arguments(kind, value, key)  # type: ignore[arg-type]
            if is_list(member) and isinstance(value, list) and is_nested(member):
                (inner,) = get_args(kind)
                return [self.value(item, inner, (*key, str(number))) for number, item in enumerate(value)]
            if is_mapping(member) and isinstance(value, Mapping) and is_nested(member):
                inner = get_args(kind)[1]
                return {str(name): self.value(item, inner, (*key, str(name))) for name, item in value.items()}
        if is_nested(annotation):
            raise self.error(key, f" is {value!r}; allowed is {describe(annotation)}")
        try:
            return parse(value, annotation)
        except ValueError as error:
            choices = choices_of(annotation)
            hint = did_you_mean(value, choices) if isinstance(value, str) and choices else ""
            hint = hint if hint.startswith("; did") else ""
            raise self.error(key, f" is {value!r}; allowed is {describe(annotation)}{hint}") from error

    def arguments(self, component: Callable[..., Any], given: Mapping[str, Any], key: Key) -> dict[str, Any]:
        """Check the arguments of a class or function and fill its defaults in.

        Raises:
            ConfigError: an argument is unknown, missing or not allowed.
        """
        known = arguments_of(component)
        name = component.__name__
        if known is None:
            return dict(given)
        for given_name in given:
            if given_name not in known:
                path = ".".join((*key, str(given_name)))
                near = [".".join((*key, argument)) for argument in known]
                raise ConfigError(
                    f"{self.source_of((*key, str(given_name)))}: unknown key {path!r}"
                    + (f" of {name}" if key else "")
                    + (did_you_mean(path, near) or "")
                    + (f"; {name} takes no arguments" if not known else "")
                )
        return {argument: self._argument(given, argument, known[argument], key, name) for argument in known}

    def _argument(self, given: Mapping[str, Any], name: str, argument: Argument, key: Key, owner: str) -> Any:
        if name in given:
            return self.value(given[name], argument.annotation, (*key, name))
        if argument.default is REQUIRED:
            where = ".".join((*key, name))
            raise ConfigError(
                f"{self.source_of((*key, name))}: {where} is missing; "
                f"{owner} needs {describe(argument.annotation)}"
            )
        default = copy.deepcopy(argument.default)
        if is_dataclass(default) and not isinstance(default, type):
            default = self.value(asdict(default), argument.annotation, (*key, name))
        elif isinstance(default, Mapping) and is_nested(argument.annotation):
            default = self.value(default, argument.annotation, (*key, name))
        return default

    def part(self, given: Any, annotation: Any, key: Key) -> dict[str, Any]:
        """Check ``class_path`` and ``init_args``.

        Raises:
            ConfigError: the class is unknown or of another family, or an argument is wrong.
        """
        given = {"class_path": given} if isinstance(given, str) else given
        for name in given:
            if name not in ("class_path", "init_args"):
                whole, inside = (*key, str(name)), ".".join((*key, "init_args"))
                raise ConfigError(
                    f"{self.source_of(whole)}: unknown key {'.'.join(whole)!r}; a part has class_path and "
                    f"init_args, and {name!r} may belong into {inside!r}"
                )
        base = base_of(annotation)
        if not isinstance(given.get("class_path"), str):
            raise self.error((*key, "class_path"), f" is missing; name the {base.__name__} to use")
        found = self.find_class(given["class_path"], base, (*key, "class_path"))
        init_args = given.get("init_args")
        if init_args is not None and not isinstance(init_args, Mapping):
            raise self.error((*key, "init_args"), f" is {init_args!r}; allowed is a mapping")
        arguments = self.arguments(found, init_args or {}, (*key, "init_args"))
        return {"class_path": given["class_path"], "init_args": arguments}

    def find_class(self, name: str, base: type, key: Key) -> type:
        """The class a short name or dotted path means.

        Raises:
            ConfigError: there is none, or it is not of the family.
        """
        family = family_of(base)
        if "." not in name:
            if name not in family:
                raise self.error(key, f": no {base.__name__} is called {name!r}{did_you_mean(name, family)}")
            return family[name]
        try:
            found = import_object(name)
        except Exception as error:  # a module that is imported may raise anything
            hint = did_you_mean(name.rpartition(".")[2], family)
            hint = hint if hint.startswith("; did") else ""
            raise self.error(key, f": {name!r} cannot be imported ({first_line(error)}){hint}") from error
        if not isinstance(found, type) or not issubclass(found, base):
            raise self.error(key, f": {name!r} is no {base.__name__}{did_you_mean(name, family)}")
        if inspect.isabstract(found):
            raise self.error(
                key, f": {name!r} is only the contract of its family{did_you_mean(name, family)}"
            )
        return found

    def build(self, value: Any, annotation: Any, key: Key) -> Any:
        """The object a checked value describes.

        Raises:
            ConfigError: a constructor refuses its arguments.
        """
        if value is None:
            return None
        reference = reference_of(annotation)
        if reference is not None and isinstance(value, str):
            return resolved(reference, value, self.error(key, ""))
        for member in members(annotation):
            kind, mark = bare(member), marker(member)
            if isinstance(mark, CallOf):
                return self.call(import_object(mark.component), value, key)
            if is_part(member) and isinstance(value, Mapping) and "class_path" in value:
                found = self.find_class(value["class_path"], base_of(member), (*key, "class_path"))
                return self.call(found, value["init_args"], (*key, "init_args"))
            if is_list(member) and isinstance(value, list):
                return [
                    self.build(item, get_args(kind)[0], (*key, str(number)))
                    for number, item in enumerate(value)
                ]
            if is_dataclass(kind) and isinstance(value, Mapping):
                return self.call(kind, value, key)  # type: ignore[arg-type]
        return value

    def call(self, component: Callable[..., Any], arguments: Mapping[str, Any], key: Key) -> Any:
        """Call a class or function with checked arguments."""
        known = arguments_of(component) or {}
        anything = Argument(Any, None)
        built = {
            name: self.build(value, known.get(name, anything).annotation, (*key, name))
            for name, value in arguments.items()
        }
        try:
            return component(**built)
        except ConfigError:
            raise
        except (ValueError, TypeError, OSError) as error:
            inside = key[:-1] if key[-1:] == ("init_args",) else key
            argument = getattr(error, "argument", None)
            if argument in known:  # whoever refuses may say which value it is about
                raise self.error((*key, argument), f": {first_line(error)}") from error
            # Otherwise it may be any of them, and each file that set one is named.
            sources = dict.fromkeys(self.source_of((*key, name)) for name in arguments)
            where = ", ".join(sources or [self.source_of(inside)])
            named = f"{'.'.join(inside)}: " if inside else ""  # empty where a file holds this one part
            raise ConfigError(f"{where}: {named}{first_line(error)}") from error


def import_object(dotted: str) -> Any:
    """The class or function at ``package.module.Name``."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def base_of(annotation: Any) -> type:
    """The family a part must belong to."""
    mark = marker(annotation)
    found = import_object(mark.base) if isinstance(mark, PartOf) else bare(annotation)
    assert isinstance(found, type)
    return found


def family_of(base: type) -> dict[str, type]:
    """Parts known by their short names: what the package of the family exports, and nothing else."""
    contract = f"{base.__module__}.{base.__qualname__}"
    package = import_module(_FOLDERS.get(contract) or base.__module__.rpartition(".")[0] or base.__module__)
    names = getattr(package, "__all__", dir(package))
    exported = {name: getattr(package, name) for name in names}
    return {
        name: found
        for name, found in exported.items()
        if isinstance(found, type) and issubclass(found, base) and not inspect.isabstract(found)
    }


_FOLDERS = {
    "specexp.core.parts.Drafter": "specexp.drafters",
    "specexp.core.parts.TreeBuilder": "specexp.builders",
    "specexp.core.parts.Verifier": "specexp.verifiers",
    "specexp.core.parts.Controller": "specexp.controllers",
}
