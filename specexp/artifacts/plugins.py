"""Finding the one class that a module of a folder holds: a further kind or format is one new file."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def names_in(package: ModuleType) -> list[str]:
    """Names of the modules of ``package`` as users write them: ``static_tree.py`` is ``static-tree``."""
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def class_in(package: ModuleType, name: str, base: type[T]) -> type[T]:
    """The subclass of ``base`` that the module of that name defines.

    Raises:
        LookupError: there is no such module, or it defines no such class.
    """
    if name not in names_in(package):
        raise LookupError(name)
    module = import_module(f"{package.__name__}.{name.replace('-', '_')}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__:
            return value
    raise LookupError(f"{module.__name__} defines no {base.__name__}")


def nearest(given: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name most like ``given``, or the list of all."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names) or 'none'}"
