"""Finding the one class that a module of a folder holds: a further kind or format is one new file."""

from __future__ import annotations

import pkgutil
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
