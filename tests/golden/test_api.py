"""The public API keeps its names and signatures: of ``specexp``, of every part, and of every command."""

import inspect
import re
import sys
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from helpers.golden import COMMANDS, FAMILIES, check, command, found, parts_of
from pydantic.fields import FieldInfo

import specexp

pytestmark = pytest.mark.unit

CONTRACTS = ["drafters", "builders", "verifiers", "controllers", "executions", "prompt_sets"]
CONTRACTS += ["tasks", "searches"]
BOUNDS = ("Ge", "Gt", "Le", "Lt", "MinLen", "MaxLen")


def test_names_and_signatures_of_specexp() -> None:
    public = {name: getattr(specexp, name) for name in specexp.__all__}
    returned = {
        "LoadedArtifact": _returned_by(specexp.load_artifact),
        "ModelPair": _returned_by(specexp.load_pair),
    }
    content = {name: _members(one) if inspect.isclass(one) else _signature(one) for name, one in public.items()}
    check("api/specexp", content | {name: _members(one) for name, one in returned.items()})


def _returned_by(function: Any) -> type:
    """The class that a function returns, by its annotation."""
    returned: type = getattr(sys.modules[function.__module__], inspect.signature(function).return_annotation)
    return returned


@pytest.mark.parametrize("family", FAMILIES)
def test_constructors_of_parts(family: str) -> None:
    """An artifact is made by reading it: of its kinds the names count."""
    parts = parts_of(family)
    if family == "artifacts":
        check("api/artifacts", {part.kind: sorted(part.required) for part in parts})
    else:
        check(f"api/{family}", {part.__name__: _signature(part) for part in parts})


@pytest.mark.parametrize("family", CONTRACTS)
def test_contracts_that_a_part_of_ones_own_derives_from(family: str) -> None:
    contract = found(FAMILIES[family][1])
    check(f"api/contracts/{family}", _members(contract))


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_a_command(name: str) -> None:
    answer = command(name, "--help")
    assert answer.code == 0, answer.err
    options = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", answer.out))
    check(f"api/options/{name}", sorted(option for option in options - {"--key"} if "." not in option))


def _members(one: type) -> dict[str, Any]:
    """Constructor, methods with their signatures, and attributes of a class; inherited ones of specexp, too."""
    named = {}
    for name, member in inspect.getmembers(one):
        if name.startswith("_") and name != "__init__":
            continue
        if name == "__init__":
            named[name] = _signature(one)
        elif callable(member):
            named[name] = _signature(member)
        else:
            named[name] = "attribute"
    return named


def _signature(one: Any) -> dict[str, str]:
    """Kind, annotation and default of each parameter, as a signature writes them."""
    defaults = {field.name: field for field in fields(one)} if is_dataclass(one) and isinstance(one, type) else {}
    shown = {}
    for name, parameter in inspect.signature(one).parameters.items():
        text = "" if parameter.annotation is parameter.empty else _annotation(parameter.annotation, one)
        default = parameter.default
        if name in defaults and defaults[name].default_factory is not MISSING:
            default = defaults[name].default_factory()
        if default is not parameter.empty:
            text += f" = {default!r}"
        shown[f"{_STARS.get(parameter.kind, '')}{name}"] = text
    return shown


_STARS = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
    inspect.Parameter.KEYWORD_ONLY: "keyword ",
}


def _annotation(annotation: Any, owner: Any) -> str:
    """An annotation without modules and aliases; a name that is imported for type checkers alone stays as written."""
    if isinstance(annotation, str):
        module = owner.__init__.__module__ if inspect.isclass(owner) and hasattr(owner.__init__, "__module__") else None
        for place in (module, getattr(owner, "__module__", None)):
            try:
                return _shown(eval(annotation, dict(vars(sys.modules[place]))))
            except (KeyError, NameError, AttributeError, TypeError):
                continue
        text = re.sub(r"\b(?:\w+\.)+", "", annotation)
        return text if "[" in text else " | ".join(sorted(text.split(" | ")))
    return _shown(annotation)


def _shown(value: Any) -> str:
    origin, inner = get_origin(value), get_args(value)
    if origin is Annotated:
        marks = [mark for one in inner[1:] for mark in _bounds(one)]
        return f"{_shown(inner[0])} ({', '.join(marks)})" if marks else _shown(inner[0])
    if origin in (Union, UnionType):
        return " | ".join(sorted(_shown(one) for one in inner))
    if origin is Literal:
        return " | ".join(sorted(map(repr, inner)))
    if isinstance(value, list):  # the parameters of a callable
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, str):
        return value
    if value is type(None):
        return "None"
    name = getattr(origin or value, "__name__", None) or str(value).rpartition(".")[2]
    if not inner:
        return str(name)
    return f"{name}[{', '.join('...' if one is ... else _shown(one) for one in inner)}]"


def _bounds(mark: Any) -> list[str]:
    """The bounds of a number or a length; of other marks, such as which part is meant, nothing."""
    marks = mark.metadata if isinstance(mark, FieldInfo) else [mark]
    return [
        f"{type(one).__name__.lower()} {next(iter(vars(one).values()))}"
        if hasattr(one, "__dict__")
        else f"{type(one).__name__.lower()} {getattr(one, one.__slots__[0])}"
        for one in marks
        if type(one).__name__ in BOUNDS
    ]
