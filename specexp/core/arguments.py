"""The arguments a class or function takes by name: their annotations, with bounds, and their defaults."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import Any

from specexp.core.annotations import Allowed

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Argument:
    """One argument of a constructor.

    Attributes:
        annotation: with its bounds.
        default: its value where none is given; :data:`REQUIRED` if one must be.
    """

    annotation: Any
    default: Any

    @cached_property
    def allowed(self) -> Allowed:
        """What its annotation allows."""
        return Allowed(self.annotation)


ANYTHING = Argument(Any, None)


@cache
def arguments_of(component: Callable[..., Any]) -> dict[str, Argument] | None:
    """The arguments a class or function takes by name, ``**kwargs`` looked up in its bases.

    Bounds (``Annotated``) are kept, whether annotations are postponed or not. None: it takes any name.
    """
    if isinstance(component, type) and is_dataclass(component):
        hints = hints_of(component)
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
        hints = hints_of(function)
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


def hints_of(component: Any) -> dict[str, Any]:
    """Annotations by name; a name that exists for type checkers alone makes its annotation ``Any``."""
    try:
        return typing.get_type_hints(component, include_extras=True)
    except (NameError, AttributeError, TypeError):  # a name under TYPE_CHECKING: resolve the others
        found = {}
        scope = getattr(component, "__globals__", {})
        for name, annotation in getattr(component, "__annotations__", {}).items():
            try:
                holder = type("_", (), {"__annotations__": {name: annotation}})
                found[name] = typing.get_type_hints(holder, scope, include_extras=True)[name]
            except (NameError, AttributeError, TypeError):
                found[name] = Any
        return found


def _field_default(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else REQUIRED


def keys_below(component: Callable[..., Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys of the arguments of a class or function and of the sections in them, whatever classes are
    configured.

    Args:
        component: Whose arguments.
        prefix: What stands before each key, with its dot.
    """
    for name, argument in (arguments_of(component) or {}).items():
        yield f"{prefix}{name}"
        for one in argument.allowed.members:
            if one.is_section:
                yield from keys_below(one.kind, f"{prefix}{name}.")
