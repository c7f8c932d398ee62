"""Argument checks: pydantic validates arguments against their annotations, both in Python code and in configurations.

The last functions find a family of classes, i.e. the public classes defined in the modules of a package.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pkgutil import iter_modules, walk_packages
from typing import Any, NamedTuple, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema
from typing_extensions import override

from specexp.base.messages import colon_hint, did_you_mean, nested_hint, shown

Key = tuple[str, ...]
REQUIRED = inspect.Parameter.empty
IntegerKey = typing.Annotated[
    int, BeforeValidator(lambda key: int(key) if isinstance(key, str) and key.isdecimal() else key)
]
"""An integer key of a mapping. In JSON and on the command line, it is given as a string."""


class _Marker:
    """Annotation metadata for a value that is a specification in a configuration and an object in Python code."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def read(value: Any, inner: Callable[[Any], Any], info: ValidationInfo) -> Any:
            return inner(value) if info.context is None else self.read(info.context, value, inner)

        return core_schema.with_info_wrap_validator_function(read, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"described": self}

    def read(self, reader: Any, value: Any, inner: Callable[[Any], Any]) -> Any:
        """Read a value with the configuration's context; ``inner`` validates it without this marker."""
        raise NotImplementedError


@dataclass(frozen=True)
class PartOf(_Marker):
    """Marks a value as the ``class_path`` and ``init_args`` of a subclass of ``base``, a dotted path that is imported
    when a value is read. If ``built`` is False, the part is checked but passed on as a specification, so that it can be
    varied before it is built.
    """

    base: str
    built: bool = True

    @cached_property
    def contract(self) -> type:
        """The base class."""
        found: type = import_object(self.base)
        return found

    @override
    def read(self, reader: Any, value: Any, inner: Callable[[Any], Any]) -> Any:
        return reader.part(self.contract, value, self.built)


@dataclass(frozen=True)
class CallOf(_Marker):
    """Marks a value as the arguments of the class at a dotted path."""

    component: str

    @override
    def read(self, reader: Any, value: Any, inner: Callable[[Any], Any]) -> Any:
        return reader.call(import_object(self.component), value)


@dataclass(frozen=True)
class Reference(_Marker):
    """Marks an argument that a configuration may give by reference, as in
    ``Annotated[list[list[int]], Reference("static-tree")]``.

    A constructor takes the plain value and reads no file. In a configuration, a string can replace it: the path of an
    artifact or file, ``wandb:entity/project/name:alias``, or the name of an embedded artifact (``stdlib:eagle``). The
    string is resolved when the part is built, and kept in the resolved configuration.

    Args:
        kind: an artifact's kind, such as ``q-table``, or a kind of file, such as ``acceptance-vector``.
    """

    kind: str

    @override
    def read(self, reader: Any, value: Any, inner: Callable[[Any], Any]) -> Any:
        return reader.reference(self, value) if isinstance(value, str) else inner(value)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        path = {"type": "string", "description": f"Path of {self.kind}, or a wandb: reference."}
        plain = handler(schema["schema"])
        return {"anyOf": [path, plain]} if plain.get("type") == "array" else path


class Checked(ABCMeta):
    """Metaclass that validates constructor arguments against their annotations, once per object. For example, a class
    ``Window`` with ``size: Annotated[int, Field(ge=1)]`` raises ``ValueError: Window: size must be >= 1, got 0``.
    """

    @override
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        check_arguments(cls, args, kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of the constructor, which ``__call__`` would hide from ``help`` and editors."""
        if cls.__init__ is object.__init__:  # type: ignore[misc]
            return inspect.Signature()
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def read(value: Any, inner: Callable[[Any], Any], info: ValidationInfo) -> Any:
            if info.context is None:
                return inner(value)
            return (info.context.call if is_dataclass(cls) else info.context.part)(cls, value)

        inner = handler(source) if is_dataclass(cls) else core_schema.is_instance_schema(cls)
        return core_schema.with_info_wrap_validator_function(read, inner)

    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        dotted = f"{cls.__module__}.{cls.__qualname__}"
        return {"described": CallOf(dotted) if is_dataclass(cls) else PartOf(dotted)}


@dataclass(frozen=True)
class Argument:
    """An argument of a class or function. Its default is :data:`REQUIRED` if the signature has no default."""

    annotation: Any
    default: Any

    @cached_property
    def is_nested(self) -> bool:
        """True if the argument's value in a configuration specifies objects that are built before the call."""
        return _is_nested(self.annotation)


def _is_nested(annotation: Any) -> bool:
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_section or isinstance(annotation, Checked):
        return True
    marks = getattr(annotation, "__metadata__", ())
    return any(isinstance(one, _Marker) for one in marks) or any(map(_is_nested, get_args(annotation)))


@cache
def arguments_of(component: Callable[..., Any]) -> dict[str, Argument] | None:
    """Return the arguments of a class or function by name, or None if it accepts any.

    ``**kwargs`` is replaced by the arguments of the base classes. Annotations keep their bounds (``Annotated``).
    """
    if isinstance(component, type) and issubclass(component, BaseModel):
        return {
            name: Argument(
                one.rebuild_annotation(),
                REQUIRED if one.is_required() else one.get_default(call_default_factory=True),
            )
            for name, one in component.model_fields.items()
        }
    if is_dataclass(component):
        hints = typing.get_type_hints(component, include_extras=True)
        return {one.name: Argument(hints[one.name], _default_of(one)) for one in fields(component) if one.init}
    found: dict[str, Argument] = {}
    layers: list[Any] = [component]
    if isinstance(component, type):
        layers = [vars(base)["__init__"] for base in component.__mro__ if "__init__" in vars(base)]
    for function in layers:
        if function is object.__init__:
            return found
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # written in C
            return None
        for one in list(parameters)[1 if isinstance(component, type) else 0 :]:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                found.setdefault(one.name, Argument(_hint_of(function, one.name), one.default))
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            return found
    return None


def _hint_of(function: Any, name: str) -> Any:
    """Return an argument's annotation, or ``Any`` if it has none or only type checkers can resolve it."""
    holder = type("_", (), {"__annotations__": {name: getattr(function, "__annotations__", {}).get(name, Any)}})
    try:
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)[name]
    except (NameError, AttributeError, TypeError):
        return Any


def _default_of(one: Any) -> Any:
    if one.default is not MISSING:
        return one.default
    return one.default_factory() if one.default_factory is not MISSING else REQUIRED


class Section(BaseModel):
    """A section of a configuration. Validation is strict: ``"8"`` and ``true`` are not integers."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        validate_default=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        known = cls.__pydantic_fields__  # pydantic's own error has no allowed keys to suggest
        for name in given if isinstance(given, Mapping) else ():
            if name not in known:
                allowed = {"owner": cls.__name__, "allowed": list(known)}
                raise refusal((str(name),), PydanticCustomError("unknown_key", " is unknown", allowed))
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        described: dict[str, Any] = handler.resolve_ref_schema(handler(schema))
        described["description"] = summary_of(cls)
        for name, meaning in argument_docs(cls).items():
            if name in described["properties"]:
                described["properties"][name]["description"] = meaning
        return described

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy of the section with these values changed."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


class _Signature(Section, validate_default=False):
    """The arguments of a class or function. Their defaults are not validated."""


@cache
def model_of(component: Callable[..., Any]) -> type[Section]:
    """Return a pydantic model of the arguments of a class or function; a section is its own model."""
    known = arguments_of(component) or {}
    if isinstance(component, type) and issubclass(component, Section):
        return component
    found: dict[str, Any] = {}
    for name, one in known.items():
        default = one.default
        if is_dataclass(default) and not isinstance(default, type):  # as a mapping, as in a configuration
            default = Field(default_factory=lambda settings=default: asdict(settings))
        found[name] = (one.annotation, ... if default is REQUIRED else default)
    return create_model(component.__name__, __base__=_Signature, **found)


def to_values(value: Any) -> Any:
    """Return a validated value with its sections converted to mappings."""
    if isinstance(value, Section):
        return {name: to_values(getattr(value, name)) for name in value.__pydantic_fields__}
    if isinstance(value, dict):
        return {name: to_values(inner) for name, inner in value.items()}
    return [to_values(item) for item in value] if isinstance(value, list) else value


def check_arguments(component: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for arguments that violate their annotations; unknown or missing ones are left to Python."""
    known = arguments_of(component) or {}
    given = {
        name: value
        for name, value in {**dict(zip(_positions(component), args, strict=False)), **kwargs}.items()
        if name in known and value is not known[name].default and not isinstance(value, Iterator)
    }
    if not given:
        return
    # Convert only if needed: strict validation rejects tuples and numpy numbers, but lax validation would accept "8".
    for values in (given, _as_in_a_file(given)):
        try:
            model_of(component).__pydantic_validator__.validate_python(values)
            return
        except ValidationError as error:
            if all(one["type"] == "missing" and len(one["loc"]) == 1 for one in error.errors()):
                return
            key, sentence = violation(error, given)
    raise ValueError(f"{component.__name__}: {'.'.join(key)}{sentence}")


def _as_in_a_file(value: Any) -> Any:
    """Convert sequences to lists and numpy numbers to Python numbers, as a file would contain them."""
    if isinstance(value, Mapping):
        return {name: _as_in_a_file(inner) for name, inner in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        return [_as_in_a_file(item) for item in value]
    return value.tolist() if type(value).__module__ == "numpy" else value


@cache
def _positions(component: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that may be passed by position."""
    parameters = inspect.signature(component).parameters.values()
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]


def refusal(key: Key, why: str | PydanticCustomError, given: Any = None) -> ValidationError:
    """Return a validation error about the value at a nested ``key``. The message is the key followed by ``why``."""
    kind = PydanticCustomError("sentence", why) if isinstance(why, str) else why
    return ValidationError.from_exception_data("", [InitErrorDetails(type=kind, loc=key, input=given)])


def violation(error: ValidationError, given: Any, within: Key = ()) -> tuple[Key, str]:
    """Return the key and the message of a validation error. All such messages are worded here.

    Args:
        given: the value that failed validation.
        within: keys that lead to that value, for suggestions.

    Returns:
        The keys that lead to the wrong value, and the message that follows them.
    """
    errors = error.errors(include_url=False)
    errors = [one for one in errors if one["type"] != "missing"] or errors
    found = [(_steps(one, given), one) for one in errors]
    key = max((steps for steps, _ in found), key=len)  # deepest: probably the intended alternative of a union
    details = [one for steps, one in found if steps == key]
    first = details[0]
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    if kind == "unknown_key":
        near = [".".join((*within, *key[:-1], name)) for name in context["allowed"]]
        hint = f"; {context['owner']} takes no arguments" if not near else ""
        hint = nested_hint(key[-1], context["allowed"]) or hint or did_you_mean(".".join((*within, *key)), near)
        return key, f"{first['msg']}{hint}"
    if kind in ("sentence", "refused"):
        return key, first["msg"]
    if kind == "value_error":
        text = str(context["error"])
        own = text.removeprefix(f"{key[-1]} ") if key else text
        return key, f" {own}" if own != text else f": {text}"
    if kind == "literal_error" and first["loc"][-1:] == ("[key]",):
        allowed = re.findall(r"'([^']*)'", first["msg"])
        return key, f" is unknown{did_you_mean(value, allowed)}"
    if kind in ("missing", "extra_forbidden", "unexpected_keyword_argument"):
        return key, " is missing" if kind == "missing" else " is unknown"
    if kind.startswith("union_tag"):
        key = (*key, context["discriminator"].strip("'"))
        return key, f" must be one of {context['expected_tags']}, got {context['tag']!r}" if (
            "tag" in context
        ) else " is missing"
    if kind.endswith("too_short") and context["min_length"] == 1:
        return key, " must not be empty"
    if "should have" in first["msg"]:  # too long, too short
        return key, f": {first['msg'].partition(' after validation')[0]}"
    wanted = " or ".join(dict.fromkeys(_expected(one["msg"]) for one in details))
    choices = re.findall(r"'([^']*)'", wanted)
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    hint = hint if hint.startswith("; did") else ""
    if choices and (value in ("off", "no", "none", "false") or value is False):
        hint = next((f"; did you mean {one!r}?" for one in choices if one in _OFF), "")
    if "mapping" in wanted and isinstance(value, str):
        hint = colon_hint(value)
    if isinstance(value, bool) and (choices or "text" in wanted):
        hint = f" (YAML reads {'on and yes' if value else 'off and no'} as {str(value).lower()}){hint}"
    return key, f" must be {wanted}, got {'null' if value is None else shown(value)}{hint}"


_OFF = ("disabled", "none")
"""Choices that turn something off."""


_WORDS = {"greater than or equal to": ">=", "greater than": ">", "less than or equal to": "<=", "less than": "<",
          "a valid": "a", "a integer": "an integer", "a string": "a text", "a boolean": "true or false",
          "dictionary": "mapping", " or object to extract fields from": "", "a array": "a list",
          "String should match pattern": "a text that matches"}  # fmt: skip


def _expected(message: str) -> str:
    text = message.removeprefix("Input should be ").partition(" or instance of ")[0]
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text


def _steps(details: Any, given: Any) -> Key:
    """Return the keys that lead to an error, without the names that pydantic gives to a union's alternatives."""
    steps: list[str] = []
    last = details["loc"][-1] if details["loc"] else None
    ours = details["type"] in ("sentence", "refused", "unknown_key", "missing")
    for step in details["loc"]:
        if step == "init_args" or (isinstance(given, Mapping) and (step in given or (ours and step == last))):
            given = given.get(step) if isinstance(given, Mapping) else None
        elif isinstance(given, list | tuple) and isinstance(step, int) and step < len(given):
            given = given[step]
        elif not ours or isinstance(given, Mapping):
            continue
        steps.append(str(step))
    return tuple(steps)


_MEANING = re.compile(r"^(\w+)(?: \([^)]*\))?: (.*(?:\n[ ]+.*)*)", re.MULTILINE)


def argument_docs(component: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument, keyed by name. It is taken from ``Args:`` in the docstrings or, for
    a :class:`Section`, from ``Attributes:``.
    """
    is_section = isinstance(component, type) and issubclass(component, Section)
    heading = "Attributes:\n" if is_section else "Args:\n"
    found: dict[str, str] = {}
    for layer in component.__mro__ if isinstance(component, type) else (component,):
        for text in (layer.__doc__, getattr(vars(layer).get("__init__"), "__doc__", None)):
            _, _, body = inspect.cleandoc(text or "").partition(heading)
            block = re.split(r"\n(?=\S)", body, maxsplit=1)[0]
            for name, meaning in _MEANING.findall(textwrap.dedent(block)):
                found.setdefault(name, " ".join(meaning.split()))
    return found


def summary_of(part: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(part) or "").partition("\n\n")[0].split())


def keys_below(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a section and its nested sections."""
    for name, one in model.model_fields.items():
        yield f"{prefix}{name}"
        for kind in (one.annotation, *get_args(one.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_below(kind, f"{prefix}{name}.")


def import_object(dotted: str) -> Any:
    """Import and return the class or function at ``package.module.Name``."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dictionary from pairs, for use as ``object_pairs_hook``; raises ``ValueError`` if a key is repeated."""
    found = dict(pairs)
    for name, _ in pairs if len(found) < len(pairs) else ():
        if sum(other == name for other, _ in pairs) > 1:
            raise ValueError(f"key {name!r} is given twice")
    return found


class WrittenClass(NamedTuple):
    """A class as its module's source defines it."""

    module: str
    bases: frozenset[str]
    is_abstract: bool


@cache
def written_in(package: str) -> dict[str, WrittenClass]:
    """Return the classes of :func:`classes_of` as written, since importing their modules may import torch too."""
    modules = iter_modules if package.startswith("specexp.") else walk_packages
    found: dict[str, WrittenClass] = {}
    for one in modules(import_module(package).__path__, f"{package}."):
        spec = None if one.ispkg else find_spec(one.name)
        loader = spec and spec.loader
        source = loader.get_source(one.name) if isinstance(loader, InspectLoader) else None  # None for compiled code
        for node in ast.parse(source or "").body:
            if isinstance(node, ast.ClassDef):
                bases = frozenset(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
                methods = (member for member in node.body if isinstance(member, ast.FunctionDef))
                marks = {ast.unparse(mark) for method in methods for mark in method.decorator_list}
                found[node.name] = WrittenClass(one.name, bases, "ABC" in bases or "abstractmethod" in marks)
    return found


@cache
def classes_of(package: str) -> dict[str, type]:
    """Return the public classes that the modules of a package define, keyed by name.

    Subpackages of specexp's own packages are skipped, because they take seconds to import.
    """
    found: dict[str, type] = {}
    for module in dict.fromkeys(one.module for one in written_in(package).values()):
        found |= _defined_in(module)
    return found


@cache
def class_named(package: str, name: str) -> type | None:
    """Return a package's public class with this name, or None if there is none."""
    found = vars(import_module(package)).get(name)
    written = written_in(package).get(name)
    return _defined_in(written.module).get(name) if found is None and written else found


def _defined_in(module: str) -> dict[str, type]:
    public = {name: one for name, one in vars(import_module(module)).items() if not name.startswith("_")}
    return {name: one for name, one in public.items() if isinstance(one, type) and one.__module__ == module}


def classes_in(package: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which finds any class of the package's modules by name."""

    def get(name: str) -> Any:
        found = class_named(package, name) if name[:1].isupper() else None
        if found is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return found

    return get
