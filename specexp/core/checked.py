"""Classes whose constructor takes in Python what it takes in a configuration, and refuses the rest in one sentence."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from specexp.core.annotations import Allowed
from specexp.core.arguments import arguments_of
from specexp.core.messages import shown


class Checked(ABCMeta):
    """Type of classes whose annotations hold: bounds are declared once, in the signature, and need no code.

    Looked at once for every object, before its constructor; a subclass says all of what it takes itself.

    Example:
        >>> class Window(metaclass=Checked):
        ...     def __init__(self, size: Annotated[int, Field(ge=1)]) -> None: ...
        >>> Window(0)
        Traceback (most recent call last):
        ValueError: Window: size is 0; allowed is an integer of at least 1
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new object of arguments that its annotations allow."""
        check_arguments(cls, args, kwargs)
        return super().__call__(*args, **kwargs)

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the constructor, which ``__call__`` would hide from ``help`` and editors."""
        if cls.__init__ is object.__init__:  # type: ignore[misc]
            return inspect.Signature()
        whole = inspect.signature(cls.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def check_arguments(component: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that the annotations of a class or function do not allow; a name that there is not is Python's.

    Raises:
        ValueError: What was given, and what is allowed.
    """
    known = arguments_of(component) or {}
    for name, value in (*zip(_positions(component), args, strict=False), *kwargs.items()):
        argument = known.get(name)
        if argument is None or value is argument.default or argument.allowed.takes(value):
            continue
        at, item, allowed = argument.allowed.culprit(value, Allowed.takes)
        raise ValueError(
            f"{component.__name__}: {'.'.join((name, *at))} is {shown(item)}; allowed is {allowed.words_in_python}"
        )


@cache
def _positions(component: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments that may be given by position."""
    parameters = inspect.signature(component).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
