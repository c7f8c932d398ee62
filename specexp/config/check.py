"""Read values by the signatures they are arguments of, fill in defaults, and build the objects.

A part is a class whose bases lead to the contract of its family. The modules of the family's folder are imported, so
that a file dropped into it is found by the name of its class; no list names the parts.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import UnionType
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticCustomError

from specexp.config.layers import ConfigError, Key
from specexp.core.checked import (
    CallOf,
    Checked,
    PartOf,
    Reference,
    Section,
    arguments_of,
    import_object,
    model_of,
    plain,
    refusal,
    violation,
)
from specexp.core.lazy import class_named, classes_of
from specexp.core.messages import did_you_mean, first_line

FOLDERS = {
    "Drafter": "specexp.drafters",
    "TreeBuilder": "specexp.builders",
    "Verifier": "specexp.verifiers",
    "Controller": "specexp.controllers",
    "Analysis": "experiments.papers",
}
"""Packages of families whose contract lies elsewhere in specexp; any other family lies beside its contract."""

SourceOf = Callable[[Key], str]
T = TypeVar("T")


@cache
def parts_of(contract: type | str) -> dict[str, type]:
    """The parts of a family by their short names, in order.

    Args:
        contract: The class they derive from, or its dotted path.
    """
    base: type = import_object(contract) if isinstance(contract, str) else contract
    package = _package_of(base)
    if package is None:
        return {}
    classes = classes_of(package) if _is_own(base) else vars(import_module(package))
    return {name: one for name, one in sorted(classes.items()) if _is_part(one, base)}


@cache
def find_part(contract: type, name: str) -> type | None:
    """The part of a family that goes by a short name; None where there is none."""
    package = _package_of(contract)
    if package is None or not _is_own(contract):
        return parts_of(contract).get(name)
    found = class_named(package, name)
    return found if _is_part(found, contract) else None


def _is_own(contract: type) -> bool:
    return contract.__module__.startswith("specexp")


def _package_of(contract: type) -> str | None:
    """Where the parts of a family lie; None if they are a checkout's alone, and this is none."""
    home, _, own = contract.__module__.rpartition(".")
    package = FOLDERS.get(contract.__name__, home) if _is_own(contract) else home or own
    return None if package.startswith("experiments") and find_spec("experiments") is None else package


def _is_part(one: Any, contract: type) -> TypeGuard[type]:
    return (
        isinstance(one, type)
        and issubclass(one, contract)
        and one is not contract
        and not inspect.isabstract(one)
    )


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
        """The value with the defaults of everything inside it, as mappings and lists.

        Raises:
            ConfigError: the annotation does not allow it.
        """
        adapter = _adapter(annotation)
        return self._worded(value, key, lambda: plain(adapter.validate_python(value, context=_Reading(self))))

    def arguments(self, component: Callable[..., Any], given: Mapping[str, Any], key: Key) -> dict[str, Any]:
        """The arguments of a class or function with its defaults.

        Raises:
            ConfigError: an argument is unknown, missing or not allowed.
        """
        return self._worded(given, key, lambda: _read_arguments(component, given, _Reading(self)))

    def build(self, value: Any, annotation: Any, key: Key) -> Any:
        """The object that a checked value describes.

        Raises:
            ConfigError: a constructor refuses its arguments.
        """
        if value is None:
            return value
        adapter = _adapter(annotation)
        return self._worded(value, key, lambda: adapter.validate_python(value, context=_Building(self)))

    def build_part(self, value: Mapping[str, Any], base: type, key: Key) -> Any:
        """The part that checked ``class_path`` and ``init_args`` describe.

        Raises:
            ConfigError: its constructor refuses the arguments.
        """
        return self._worded(value, key, lambda: _Building(self).part(base, value))

    def call(self, component: Callable[..., Any], arguments: Mapping[str, Any], key: Key) -> Any:
        """Call a class or function with checked arguments.

        Raises:
            ConfigError: it refuses them.
        """
        return self._worded(arguments, key, lambda: _Building(self).call(component, arguments))

    def read(self, component: Callable[..., Any], given: Mapping[str, Any], key: Key) -> Any:
        """Check the arguments of a class or function, and call it.

        Raises:
            ConfigError: an argument is not allowed, or they do not go together.
        """
        return self.call(component, self.arguments(component, given, key), key)

    def find_class(self, name: str, base: type) -> type:
        """The class that a short name or dotted path means.

        Raises:
            ValueError: there is none, or it is not of the family; the sentence goes on after the key.
        """
        if "." not in name:
            found = find_part(base, name)
            if found is None:
                hint = (
                    did_you_mean(name, parts_of(base)) or "; name it with its module, as in my_package.Name"
                )
                raise ValueError(f": no {base.__name__} is called {name!r}{hint}")
            return found
        announce_import(name, base)
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
            raise ValueError(f": {name!r} cannot be imported ({first_line(error)}){hint}") from error
        if not isinstance(found, type) or not issubclass(found, base):
            raise ValueError(f": {name!r} is not a {base.__name__}{did_you_mean(name, parts_of(base))}")
        if inspect.isabstract(found):
            hint = did_you_mean(name, parts_of(base))
            raise ValueError(f": {name!r} is only the contract of its family{hint}")
        return found

    def follow(self, reference: Reference, given: str) -> Any:
        """The value that a reference stands for.

        Raises:
            ValueError: it cannot be read, or is of another kind; the sentence goes on after the key.
        """
        from specexp.artifacts import ArtifactError, value_of
        from specexp.config.named_artifacts import local

        try:
            return value_of(reference.kind, local(given))
        except ArtifactError as error:
            raise ValueError(f": {first_line(error)}") from error

    def _worded(self, given: Any, key: Key, read: Callable[[], T]) -> T:
        """Turn what pydantic refuses into a sentence with file and key."""
        try:
            return read()
        except ValidationError as error:
            steps, sentence = violation(error, given, key)
            whole = (*key, *steps)
            if error.errors()[0]["type"] not in ("refused", "value_error"):
                raise self.error(whole, sentence) from error
            # Any of the arguments may be the wrong one, so each file that set one is named.
            for step in steps:
                given = given[int(step) if isinstance(given, list) else step]
            inside = ("init_args",) if isinstance(given, Mapping) and "init_args" in given else ()
            arguments = given[inside[0]] if inside else given
            sources = dict.fromkeys(self.source_of((*whole, *inside, name)) for name in arguments)
            named = f"{'.'.join(whole)}" if whole else "", sentence.removeprefix(": ")
            where = ", ".join(sources or [self.source_of(whole)])
            raise ConfigError(": ".join(filter(None, (where, *named)))) from error


class _Reading:
    """Reads what is described, as values with all defaults."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def part(self, base: type, given: Any) -> Any:
        if isinstance(given, str):
            given = {"class_path": given}
        if not isinstance(given, Mapping):
            what = f"a {base.__name__} given as class_path and init_args"
            raise PydanticCustomError("part", f"Input should be {what}")
        for name in given:
            if name not in ("class_path", "init_args"):
                raise refusal(
                    (str(name),),
                    f" is unknown: a part has class_path and init_args, and {name!r} may belong in init_args",
                )
        name, init_args = given.get("class_path"), given.get("init_args")
        if name is None:
            raise refusal(("class_path",), f" is missing; name the {base.__name__} to use")
        if not isinstance(name, str):
            raise refusal(("class_path",), f" must be the name of a {base.__name__}, got {name!r}")
        if init_args is not None and not isinstance(init_args, Mapping):
            raise refusal(("init_args",), f" must be a mapping, got {init_args!r}")
        reader_of = getattr(base, "reader_of", None)  # of a family that may be given by a path
        if (
            reader_of is not None
            and find_part(base, name) is None
            and (reader := reader_of(name)) is not None
        ):
            name, init_args = reader, {"path": name, **(init_args or {})}
        found = _found(self.checker, name, base)
        if arguments_of(found) is None:
            return {"class_path": name, "init_args": dict(init_args or {})}
        read = _spec_model(found).model_validate({"init_args": dict(init_args or {})}, context=self)
        return {"class_path": name, **read.as_values()}

    spec = part

    def call(self, component: Callable[..., Any], given: Any) -> Any:
        if not isinstance(given, Mapping):
            raise PydanticCustomError("part", "Input should be a mapping")
        return _read_arguments(component, given, self)

    def reference(self, reference: Reference, given: str) -> str:
        return given


class _Building(_Reading):
    """Builds what is described by checked values."""

    def spec(self, base: type, given: Any) -> Any:
        return given

    def part(self, base: type, given: Any) -> Any:
        found = _found(self.checker, given["class_path"], base)
        return self.call(found, given["init_args"], ("init_args",))

    def call(self, component: Callable[..., Any], given: Any, inside: Key = ()) -> Any:
        known = arguments_of(component) or {}
        built = dict(given)
        for name, value in given.items():
            if value is not None and name in known and known[name].is_nested:
                try:
                    built[name] = _adapter(known[name].annotation).validate_python(value, context=self)
                except ValidationError as error:
                    steps, sentence = violation(error, value)
                    raise refusal((*inside, name, *steps), sentence) from error
        try:
            # The values are checked, and what is built of them is as its annotation has it.
            return type.__call__(component, **built) if isinstance(component, Checked) else component(**built)
        except ValidationError:
            raise
        except (ValueError, TypeError, OSError) as error:
            argument = getattr(error, "argument", None)
            if argument in known:  # the error states which argument it is about
                raise refusal((*inside, argument), f": {first_line(error)}") from error
            raise refusal((), PydanticCustomError("refused", f": {first_line(error)}")) from error

    def reference(self, reference: Reference, given: str) -> Any:
        try:
            return self.checker.follow(reference, given)
        except ValueError as error:
            raise refusal((), str(error)) from error


def _found(checker: Checker, name: str, base: type) -> type:
    try:
        return checker.find_class(name, base)
    except ValueError as error:
        raise refusal(("class_path",), str(error)) from error


def _read_arguments(
    component: Callable[..., Any], given: Mapping[str, Any], reader: _Reading
) -> dict[str, Any]:
    if arguments_of(component) is None:
        return dict(given)
    return model_of(component).model_validate(dict(given), context=reader).as_values()


@cache
def _spec_model(part: type) -> type[Section]:
    """``init_args`` of a part."""
    return create_model("part", __base__=Section, init_args=(model_of(part), Field()))


_ADAPTERS: dict[int, tuple[Any, TypeAdapter[Any]]] = {}


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    """The annotation's adapter, made once; annotations need not be hashable."""
    if id(annotation) not in _ADAPTERS:
        try:
            adapter = TypeAdapter(annotation, config=Section.model_config)
        except PydanticUserError:  # a section, which has its own
            adapter = TypeAdapter(annotation)
        _ADAPTERS[id(annotation)] = annotation, adapter
    return _ADAPTERS[id(annotation)][1]


def members_of(annotation: Any) -> Iterator[Any]:
    """The alternatives of a union; the annotation itself if it is none."""
    metadata = getattr(annotation, "__metadata__", ())
    if metadata and not any(isinstance(one, PartOf | CallOf) for one in metadata):
        yield from members_of(annotation.__origin__)
    elif get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from members_of(one)
    else:
        yield annotation


def contracts_in(annotation: Any) -> Iterator[type]:
    """The contracts of the parts that a value may be."""
    for one in members_of(annotation):
        mark = next((mark for mark in getattr(one, "__metadata__", ()) if isinstance(mark, PartOf)), None)
        if mark is not None:
            yield mark.contract
        elif isinstance(one, Checked) and not is_dataclass(one):
            yield one


def sections_in(annotation: Any) -> Iterator[Callable[..., Any]]:
    """The classes and functions that a mapping in the place of a value may be the arguments of."""
    for one in members_of(annotation):
        mark = next((mark for mark in getattr(one, "__metadata__", ()) if isinstance(mark, CallOf)), None)
        if mark is not None:
            yield import_object(mark.component)
        elif isinstance(one, type) and (
            issubclass(one, Section) or (isinstance(one, Checked) and is_dataclass(one))
        ):
            yield one


def announce_import(dotted: str, base: type | str = "specexp") -> None:
    """Name a foreign module on the console, before its package is first imported.

    Args:
        dotted: the class in it.
        base: the family, or a package, whose own modules are not foreign.
    """
    module = dotted.rpartition(".")[0]
    own = base if isinstance(base, str) else base.__module__.partition(".")[0]
    package = module.partition(".")[0]
    if package and package not in sys.modules and package not in ("specexp", own):
        print(f"{dotted} imports the module {module!r}, which is not part of specexp", file=sys.stderr)
