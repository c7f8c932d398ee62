"""Checks values against the signatures of constructors, fills in defaults, and builds the objects.

A part is a class derived from the contract (base class) of its family. It is looked up by name in the modules of the
family's folder, which are imported as needed. Adding a part takes only one new file.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeGuard, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticCustomError

from specexp.base.checked import (
    Checked,
    PartOf,
    Reference,
    Section,
    arguments_of,
    class_named,
    classes_of,
    import_object,
    model_of,
    refusal,
    to_values,
    violation,
    written_in,
)
from specexp.base.messages import colon_hint, did_you_mean, first_line, restated, with_article
from specexp.config.layers import ConfigError, Key, SourceOf

# packages of the families that keep their parts outside the package of their contract
FOLDERS = {
    "Drafter": "specexp.drafters",
    "TreeBuilder": "specexp.builders",
    "Verifier": "specexp.verifiers",
    "Controller": "specexp.controllers",
    "Analysis": "experiments.papers",
}

T = TypeVar("T")


@cache
def parts_of(contract: type | str) -> dict[str, type]:
    """Return the parts of a family, keyed by short name, given the family's base class or its dotted path."""
    base: type = import_object(contract) if isinstance(contract, str) else contract
    package = _package_of(base)
    if package is None:
        return {}
    classes = classes_of(package) if _is_own(base) else vars(import_module(package))
    return {name: one for name, one in sorted(classes.items()) if _is_part(one, base)}


@cache
def part_names(contract: type) -> list[str]:
    """Return the names of :func:`parts_of`, without importing specexp's own parts."""
    package = _package_of(contract)
    if package is None or not _is_own(contract):
        return list(parts_of(contract))
    written = written_in(package)
    home = written_in(contract.__module__.rpartition(".")[0])
    family = {contract.__name__}
    for _ in {**home, **written}:  # a class may be defined before its base
        family |= {name for name, one in {**home, **written}.items() if one.bases & family}
    found = family & written.keys()
    return sorted(one for one in found if not (written[one].is_abstract or one.startswith("_")))


@cache
def find_part(contract: type, name: str) -> type | None:
    """Return the part of a family that has this short name, or None."""
    package = _package_of(contract)
    if package is None or not _is_own(contract):
        return parts_of(contract).get(name)
    found = class_named(package, name)
    return found if _is_part(found, contract) else None


def _is_own(contract: type) -> bool:
    return contract.__module__.startswith("specexp")


def _package_of(contract: type) -> str | None:
    """Return the package of a family's parts; None if it is missing, e.g. ``experiments`` outside a checkout."""
    home, _, own = contract.__module__.rpartition(".")
    package = FOLDERS.get(contract.__name__, home) if _is_own(contract) else home or own
    return None if package.startswith("experiments") and find_spec("experiments") is None else package


def _is_part(one: Any, contract: type) -> TypeGuard[type]:
    is_subclass = isinstance(one, type) and issubclass(one, contract) and one is not contract
    return is_subclass and not inspect.isabstract(one)


class _Described(Section):
    """A part as described in a configuration."""

    class_path: str
    init_args: dict[str, Any] | None = None


class Checker:
    """Checks values against annotations. Every error is a ConfigError that names the key and where it was set."""

    def __init__(self, source_of: SourceOf) -> None:
        self.source_of = source_of

    def error(self, key: Key, sentence: str) -> ConfigError:
        """Return an error about a key. Its message consists of the source, the key and ``sentence``."""
        return ConfigError(f"{self.source_of(key)}: {'.'.join(key)}{sentence}")

    def value(self, value: Any, annotation: Any, key: Key) -> Any:
        """Return the checked value as mappings and lists, with all defaults filled in."""
        adapter = adapter_of(annotation)
        return self._worded(value, key, lambda: to_values(adapter.validate_python(value, context=_Context(self))))

    def arguments(self, component: Callable[..., Any], given: Mapping[str, Any], key: Key) -> dict[str, Any]:
        """Return the checked arguments of a class or function, with defaults filled in."""
        return self._worded(given, key, lambda: _Context(self).call(component, given))

    def build(self, value: Any, annotation: Any, key: Key) -> Any:
        """Build the object that a checked value describes."""
        if value is None:  # a section that is not used
            return value
        adapter = adapter_of(annotation)
        return self._worded(value, key, lambda: adapter.validate_python(value, context=_Context(self, builds=True)))

    def build_part(self, value: Mapping[str, Any], base: type, key: Key) -> Any:
        """Build the part that a checked specification describes."""
        return self._worded(value, key, lambda: _Context(self, builds=True).part(base, value))

    def call(self, component: Callable[..., Any], arguments: Mapping[str, Any], key: Key) -> Any:
        """Call a class or function with checked arguments."""
        return self._worded(arguments, key, lambda: _Context(self, builds=True).call(component, arguments))

    def find_class(self, name: str, base: type) -> type:
        """Find a family's class by its short name or dotted path; raises a ValidationError if there is none."""
        if "." not in name:
            found = find_part(base, name)
            if found is None:
                named = did_you_mean(name, part_names(base)) or "; write its module too: my_package.Name"
                hint = colon_hint(name, ("class_path", "init_args")) or named
                raise _refused_class(f": no {base.__name__} is called {name!r}{hint}")
            return found
        announce_import(name, base)
        try:
            found = import_object(name)
        except Exception as error:  # a module that is imported may raise anything
            module, _, last = name.rpartition(".")
            defined = vars(sys.modules.get(module, object)).items()
            parts = [one for one, value in defined if _is_part(value, base)]
            hint = did_you_mean(last, parts or part_names(base))
            raise _refused_class(f": {name!r} cannot be imported ({first_line(error)}){hint}") from error
        if not _is_part(found, base):
            hint = did_you_mean(name, part_names(base))
            raise _refused_class(f": {name!r} is not a {base.__name__} that can be made{hint}")
        return found

    def follow(self, reference: Reference, given: str) -> Any:
        """Return the value that a reference names; raises ValidationError if it is unreadable or of the wrong kind."""
        from specexp.artifacts import ArtifactError, value_of
        from specexp.config.named_artifacts import local

        with restated(ArtifactError, lambda error: refusal((), f": {first_line(error)}")):
            return value_of(reference.kind, local(given))

    def _worded(self, given: Any, key: Key, read: Callable[[], T]) -> T:
        """Call ``read``, and convert its ValidationError to a ConfigError that names the file and key."""
        try:
            return read()
        except ValidationError as error:
            steps, sentence = violation(error, given, key)
            whole = (*key, *steps)
            # other errors are about one value; these two are raised by constructors and validators of sections
            if error.errors()[0]["type"] not in ("refused", "value_error"):
                raise self.error(whole, sentence) from error
            # A constructor may reject any combination of its arguments, so name all files that set one of them.
            for step in steps:
                given = given[int(step) if isinstance(given, list) else step]
            inside = ("init_args",) if isinstance(given, Mapping) and "init_args" in given else ()
            arguments = given["init_args"] if inside else given
            sources = dict.fromkeys(self.source_of((*whole, *inside, name)) for name in arguments)
            named = ".".join(whole), sentence.removeprefix(": ")
            where = ", ".join(sources or [self.source_of(whole)])
            raise ConfigError(": ".join(filter(None, (where, *named)))) from error


class _Context:
    """Validation context that fills in the defaults of parts or, if ``builds`` is true, builds the parts."""

    def __init__(self, checker: Checker, builds: bool = False) -> None:
        self.checker = checker
        self.builds = builds

    def part(self, base: type, given: Any, built: bool = True) -> Any:
        if self.builds:
            if not built:
                return given
            found = self.checker.find_class(given["class_path"], base)
            return self._made(found, given["init_args"], ("init_args",))
        given = {"class_path": given} if isinstance(given, str) else given
        if not isinstance(given, Mapping):
            what = f"{with_article(base.__name__)} given as class_path and init_args"
            raise PydanticCustomError("part", f"Input should be {what}")
        spec = _Described.model_validate(dict(given))
        name, arguments = spec.class_path, spec.init_args or {}
        # the parts of some families may be given by the path of a file
        reader_of = getattr(base, "reader_of", None)
        if reader_of is not None and find_part(base, name) is None and (reader := reader_of(name)):
            name, arguments = reader, {"path": name, **arguments}
        found = self.checker.find_class(name, base)
        if arguments_of(found) is None:
            return {"class_path": name, "init_args": dict(arguments)}
        read = _spec_model(found).model_validate({"init_args": dict(arguments)}, context=self)
        return {"class_path": name, **to_values(read)}

    def call(self, component: Callable[..., Any], given: Any) -> Any:
        if self.builds:
            return self._made(component, given)
        if not isinstance(given, Mapping):
            raise PydanticCustomError("part", "Input should be a mapping")
        if arguments_of(component) is None:
            return dict(given)
        return to_values(model_of(component).model_validate(dict(given), context=self))

    def reference(self, reference: Reference, given: str) -> Any:
        return self.checker.follow(reference, given) if self.builds else given

    def _made(self, component: Callable[..., Any], given: Mapping[str, Any], inside: Key = ()) -> Any:
        known = arguments_of(component) or {}
        built = dict(given)
        for name, value in given.items():
            if value is not None and name in known and known[name].is_nested:
                try:
                    built[name] = adapter_of(known[name].annotation).validate_python(value, context=self)
                except ValidationError as error:
                    steps, sentence = violation(error, value)
                    raise refusal((*inside, name, *steps), sentence) from error
        try:
            # the values have already been checked, so skip the metaclass's check
            return type.__call__(component, **built) if isinstance(component, Checked) else component(**built)
        except ValidationError:
            raise
        except (ValueError, TypeError, OSError) as error:
            argument = getattr(error, "argument", None)
            if argument in known:  # the error names the argument that caused it
                raise refusal((*inside, argument), f": {first_line(error)}") from error
            raise refusal((), PydanticCustomError("refused", f": {first_line(error)}")) from error


def _refused_class(sentence: str) -> ValidationError:
    return refusal(("class_path",), sentence)


@cache
def _spec_model(part: type) -> type[Section]:
    """Return the pydantic model of a part's ``init_args``."""
    return create_model("part", __base__=Section, init_args=(model_of(part), ...))


_ADAPTERS: dict[int, tuple[Any, TypeAdapter[Any]]] = {}


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Return the pydantic adapter for an annotation. Adapters are cached, and the annotation need not be hashable."""
    if id(annotation) not in _ADAPTERS:  # the entry keeps the annotation alive, so its id stays unique
        try:
            adapter = TypeAdapter(annotation, config=Section.model_config)
        except PydanticUserError:  # a section already has its own model_config
            adapter = TypeAdapter(annotation)
        _ADAPTERS[id(annotation)] = annotation, adapter
    return _ADAPTERS[id(annotation)][1]


def contracts_in(annotation: Any) -> Iterator[type]:
    """Yield the contracts of all parts that a value with this annotation may contain."""
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, PartOf):
            yield mark.contract
    if isinstance(annotation, Checked) and not is_dataclass(annotation):
        yield annotation
    for one in get_args(annotation):
        yield from contracts_in(one)


def announce_import(dotted: str, base: type | str) -> None:
    """Print a note to stderr before the first import of a module outside specexp and the package of ``base``."""
    module = dotted.rpartition(".")[0]
    own = base if isinstance(base, str) else base.__module__.partition(".")[0]
    package = module.partition(".")[0]
    if package and package not in sys.modules and package not in ("specexp", own):
        print(f"{dotted} imports the module {module!r}, which is not part of specexp", file=sys.stderr)
