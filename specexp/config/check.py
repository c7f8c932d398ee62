"""Checks values against the signatures they are arguments of, fills defaults in, and builds the objects."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

from specexp.config.errors import ConfigError, PlacedError
from specexp.config.families import find_part, parts_of
from specexp.config.layers import Key
from specexp.config.references import resolved
from specexp.core.annotations import INVALID, Allowed, CallOf, PartOf, SpecOf
from specexp.core.arguments import ANYTHING, REQUIRED, Argument, arguments_of, keys_below
from specexp.core.messages import did_you_mean, first_line
from specexp.core.references import Reference

SourceOf = Callable[[Key], str]

_PLAIN = (bool, int, float, str, type(None))


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

        Args:
            value: The value as it was given.
            annotation: The annotation of its argument, or what that allows.
            key: The steps to where the value stands.

        Raises:
            ConfigError: the annotation does not allow it.
        """
        allowed = annotation if isinstance(annotation, Allowed) else Allowed(annotation)
        if not allowed.is_nested:
            found = allowed.read(value)
            if found is INVALID:
                raise self._refusal(value, allowed, key)
            return found
        if value is None and allowed.takes_null:
            return None
        sections = []
        for one in allowed.members:
            if isinstance(one.mark, CallOf) and isinstance(value, Mapping):
                return self.arguments(import_object(one.mark.component), value, key)
            if one.is_part and (
                isinstance(value, Mapping) or (isinstance(value, str) and not allowed.takes_text)
            ):
                return self.part(value, one, key)
            if one.is_section and isinstance(value, Mapping):
                sections.append(one)
            elif one.inner is not None and one.inner.is_nested:
                if one.is_list and isinstance(value, list) and one.allows_length(value):
                    return [self.value(item, one.inner, (*key, str(at))) for at, item in enumerate(value)]
                if one.is_mapping and isinstance(value, Mapping):
                    return {
                        str(at): self.value(item, one.inner, (*key, str(at))) for at, item in value.items()
                    }
        if sections:
            return self.arguments(self._section(sections, value, key), value, key)
        raise self._refusal(value, allowed, key)

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
                if not key:
                    near += keys_below(component)
                raise ConfigError(
                    f"{self.source_of((*key, str(given_name)))}: unknown key {path!r}"
                    + (f" of {name}" if key else "")
                    + (did_you_mean(path, near) or "")
                    + (f"; {name} takes no arguments" if not known else "")
                )
        return {argument: self.argument(given, argument, known[argument], key, name) for argument in known}

    def argument(self, given: Mapping[str, Any], name: str, argument: Argument, key: Key, owner: str) -> Any:
        """Check one argument, or take its default.

        Args:
            given: All that is given to the class or function.
            name: The name of the argument.
            argument: Its annotation and default.
            key: The steps to where the arguments stand.
            owner: What errors call the class or function.

        Raises:
            ConfigError: it is missing or not allowed.
        """
        if name in given:
            return self.value(given[name], argument.allowed, (*key, name))
        default = argument.default
        if default is REQUIRED:
            where = ".".join((*key, name))
            raise ConfigError(
                f"{self.source_of((*key, name))}: {where} is missing; {owner} needs {argument.allowed.words}"
            )
        if isinstance(default, _PLAIN):
            return default
        if is_dataclass(default) and not isinstance(default, type):
            return self.value(asdict(default), argument.allowed, (*key, name))
        if isinstance(default, Mapping) and argument.allowed.is_nested:
            return self.value(default, argument.allowed, (*key, name))
        return copy.deepcopy(default)

    def part(self, given: Any, allowed: Allowed, key: Key) -> dict[str, Any]:
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
        base = base_of(allowed)
        if given.get("class_path") is not None and not isinstance(given["class_path"], str):
            raise self.error(
                (*key, "class_path"), f" is {given['class_path']!r}; allowed is the name of a {base.__name__}"
            )
        if given.get("class_path") is None:
            raise self.error((*key, "class_path"), f" is missing; name the {base.__name__} to use")
        init_args = given.get("init_args")
        if init_args is not None and not isinstance(init_args, Mapping):
            raise self.error((*key, "init_args"), f" is {init_args!r}; allowed is a mapping")
        name, init_args = given["class_path"], init_args or {}
        reader_of = getattr(base, "reader_of", None)  # of a family that may be given by a path
        if (
            reader_of is not None
            and find_part(base, name) is None
            and (reader := reader_of(name)) is not None
        ):
            name, init_args = reader, {"path": name, **init_args}
        found = self.find_class(name, base, (*key, "class_path"))
        return {"class_path": name, "init_args": self.arguments(found, init_args, (*key, "init_args"))}

    def find_class(self, name: str, base: type, key: Key) -> type:
        """The class a short name or dotted path means.

        Raises:
            ConfigError: there is none, or it is not of the family.
        """
        if "." not in name:
            found = find_part(base, name)
            if found is None:
                hint = (
                    did_you_mean(name, parts_of(base)) or "; name it with its module, as in my_package.Name"
                )
                raise self.error(key, f": no {base.__name__} is called {name!r}{hint}")
            return found
        announce_import(name, f"{self.source_of(key)}: {'.'.join(key)}", base)
        try:
            found = import_object(name)
        except Exception as error:  # a module that is imported may raise anything
            module, _, last = name.rpartition(".")
            there = vars(sys.modules.get(module, object))
            parts = [
                one for one, value in there.items() if isinstance(value, type) and issubclass(value, base)
            ]
            hint = did_you_mean(last, parts or parts_of(base))
            hint = hint if parts or hint.startswith("; did") else ""
            raise self.error(key, f": {name!r} cannot be imported ({first_line(error)}){hint}") from error
        if not isinstance(found, type) or not issubclass(found, base):
            raise self.error(key, f": {name!r} is no {base.__name__}{did_you_mean(name, parts_of(base))}")
        if inspect.isabstract(found):
            raise self.error(
                key, f": {name!r} is only the contract of its family{did_you_mean(name, parts_of(base))}"
            )
        return found

    def build(self, value: Any, annotation: Any, key: Key) -> Any:
        """The object a checked value describes.

        Args:
            value: The value as :meth:`value` gave it.
            annotation: The annotation of its argument, or what that allows.
            key: The steps to where the value stands.

        Raises:
            ConfigError: a constructor refuses its arguments.
        """
        allowed = annotation if isinstance(annotation, Allowed) else Allowed(annotation)
        if allowed.reference is not None and isinstance(value, str):
            return self.follow(allowed.reference, value, key)
        if value is None or not allowed.is_nested:
            return value
        sections = []
        for one in allowed.members:
            if isinstance(one.mark, SpecOf):
                return value
            if isinstance(one.mark, CallOf):
                return self.call(import_object(one.mark.component), value, key)
            if one.is_part and isinstance(value, Mapping) and "class_path" in value:
                return self.build_part(value, base_of(one), key)
            if one.is_list and isinstance(value, list):
                return [self.build(item, one.inner, (*key, str(at))) for at, item in enumerate(value)]
            if one.is_mapping and isinstance(value, Mapping):
                return {at: self.build(item, one.inner, (*key, at)) for at, item in value.items()}
            if one.is_section and isinstance(value, Mapping):
                sections.append(one)
        return self.call(self._section(sections, value, key), value, key) if sections else value

    def build_part(self, value: Mapping[str, Any], base: type, key: Key) -> Any:
        """The part that checked ``class_path`` and ``init_args`` describe.

        Raises:
            ConfigError: its constructor refuses the arguments.
        """
        found = self.find_class(value["class_path"], base, (*key, "class_path"))
        return self.call(found, value["init_args"], (*key, "init_args"))

    def read(self, component: Callable[..., Any], given: Mapping[str, Any], key: Key) -> Any:
        """Check the arguments of a class or function, and call it.

        Raises:
            ConfigError: an argument is not allowed, or they do not go together.
        """
        return self.call(component, self.arguments(component, given, key), key)

    def follow(self, reference: Reference, given: str, key: Key) -> Any:
        """The value that a reference stands for.

        Raises:
            ConfigError: it cannot be read, or is of another kind.
        """
        return resolved(reference, given, self.error(key, ""))

    def call(self, component: Callable[..., Any], arguments: Mapping[str, Any], key: Key) -> Any:
        """Call a class or function with checked arguments.

        Raises:
            ConfigError: it refuses them.
        """
        known = arguments_of(component) or {}
        built = {
            name: self.build(value, known.get(name, ANYTHING).allowed, (*key, name))
            for name, value in arguments.items()
        }
        try:
            return component(**built)
        except ConfigError:
            raise
        except PlacedError as error:
            raise self.error((*key, *error.key), error.sentence) from error
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

    def _section(self, sections: Sequence[Allowed], value: Mapping[str, Any], key: Key) -> type:
        """The dataclass a mapping is of; of several the one whose ``type`` it names."""
        if len(sections) == 1:
            found: type = sections[0].kind
            return found
        by_type: dict[Any, type] = {
            (arguments_of(one.kind) or {})["type"].allowed.choices[0]: one.kind for one in sections
        }
        kind = value.get("type")
        if kind is None and any(isinstance(inner, Mapping) for inner in value.values()):
            raise self.error(key, " holds mappings; write one dotted key, as in builder.init_args.nodes")
        if not isinstance(kind, str) or kind not in by_type:
            given = f" is {kind!r}" if "type" in value else " is missing"
            raise self.error((*key, "type"), f"{given}{did_you_mean(kind, by_type)}")
        return by_type[kind]

    def _refusal(self, value: Any, allowed: Allowed, key: Key) -> ConfigError:
        """Why a value is not allowed; of a list or a mapping the first item that is not."""
        at, value, allowed = allowed.culprit(
            value, lambda one, item: one.is_nested or one.read(item) is not INVALID
        )
        texts = [choice for choice in allowed.choices if isinstance(choice, str)]
        hint = did_you_mean(value, texts) if isinstance(value, str) and texts else ""
        hint = hint if hint.startswith("; did") else ""
        shown = "null" if value is None else repr(value)
        return self.error((*key, *at), f" is {shown}; allowed is {allowed.words}{hint}")


def announce_import(dotted: str, where: str, base: type | str = "specexp") -> None:
    """Name a foreign module on the console, before its package is first imported.

    Args:
        dotted: the class in it.
        where: file and key that name it.
        base: the family, or a package, whose own modules are not foreign.
    """
    module = dotted.rpartition(".")[0]
    own = base if isinstance(base, str) else base.__module__.partition(".")[0]
    package = module.partition(".")[0]
    if package and package not in sys.modules and package not in ("specexp", own):
        print(f"{where} imports the module {module!r}, which is not part of specexp", file=sys.stderr)


def import_object(dotted: str) -> Any:
    """The class or function at ``package.module.Name``."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def base_of(allowed: Allowed) -> type:
    """The family a part must belong to."""
    found = _contract(allowed.mark.base) if isinstance(allowed.mark, PartOf) else allowed.kind
    assert isinstance(found, type)
    return found


_contract = cache(import_object)
