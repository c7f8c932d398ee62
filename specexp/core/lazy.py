"""Families of classes: the public classes that the modules of a folder define."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules, walk_packages
from types import ModuleType
from typing import Any


@cache
def classes_of(package: str) -> dict[str, type]:
    """Return the public classes that the modules of a package define, by name.

    Folders inside specexp's own packages are left out: they take seconds to import.
    """
    home = import_module(package)
    modules = (iter_modules if package.startswith("specexp.") else walk_packages)(
        home.__path__, f"{package}."
    )
    found: dict[str, type] = {}
    for module in (import_module(one.name) for one in modules if not one.ispkg):
        found |= _defined_in(module)
    return found


@cache
def class_named(package: str, name: str) -> type | None:
    """Return a public class of a package by name, or None."""
    # without importing the rest of the family, which may take seconds: from __init__, or from its own module
    found = vars(import_module(package)).get(name)
    own = f"{package}.{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}"
    if found is None and name.isidentifier() and find_spec(own) is not None:
        found = _defined_in(import_module(own)).get(name)
    return found or classes_of(package).get(name)


def _defined_in(module: ModuleType) -> dict[str, type]:
    return {
        name: one
        for name, one in vars(module).items()
        if isinstance(one, type) and one.__module__ == module.__name__ and not name.startswith("_")
    }


def classes_in(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that finds any class of its modules by name.

    Example:
        >>> __getattr__ = classes_in(__name__)  # doctest: +SKIP
    """

    def get(name: str) -> Any:
        found = class_named(package, name) if name[:1].isupper() else None
        if found is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return found

    return get
