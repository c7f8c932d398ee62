"""Families of classes: what the modules of a folder define, found by importing them."""

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
    """The public classes that the modules of a package define, by name.

    Folders inside one of specexp's own packages are left out: they hold what takes seconds to import.
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
    """One public class of a package's modules; None where there is none.

    Of ``TokenRecycling`` the module ``token_recycling`` is imported alone: others of the family may take seconds.
    """
    own = f"{package}.{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}"
    if name.isidentifier() and find_spec(own) is not None:
        found = _defined_in(import_module(own)).get(name)
        if found is not None:
            return found
    return classes_of(package).get(name)


def _defined_in(module: ModuleType) -> dict[str, type]:
    return {
        name: one
        for name, one in vars(module).items()
        if isinstance(one, type) and one.__module__ == module.__name__ and not name.startswith("_")
    }


def classes_in(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that gives any class of its modules by its name, and lists none.

    Example:
        >>> __getattr__ = classes_in(__name__)  # doctest: +SKIP
    """

    def get(name: str) -> Any:
        found = class_named(package, name) if name[:1].isupper() else None
        if found is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return found

    return get
