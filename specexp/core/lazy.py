"""Families of classes: what the modules of a folder define, found by importing them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules, walk_packages
from typing import Any


@cache
def classes_of(package: str) -> dict[str, type]:
    """The public classes that the modules of a package define, by name.

    Folders inside one of specexp's own packages are left out: they hold what takes seconds to import.
    """
    home = import_module(package)
    modules = (iter_modules if package.startswith("specexp.") else walk_packages)(
        home.__path__, f"{package}."
    )
    found: dict[str, type] = {}
    for module in (import_module(one.name) for one in modules if not one.ispkg):
        for name, one in vars(module).items():
            if isinstance(one, type) and one.__module__ == module.__name__ and not name.startswith("_"):
                found[name] = one
    return found


def classes_in(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that gives any class of its modules by its name, and lists none.

    Example:
        >>> __getattr__ = classes_in(__name__)  # doctest: +SKIP
    """

    def get(name: str) -> Any:
        if name[:1].isupper() and name in classes_of(package):
            return classes_of(package)[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
