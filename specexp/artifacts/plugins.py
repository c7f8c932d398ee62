"""Finding the one class that a module of a folder holds: a further kind or format is one new file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def names_in(package: ModuleType, holding: str = "") -> list[str]:
    """Names of the modules of ``package`` as users write them: ``static_tree.py`` is ``static-tree``.

    Args:
        package: the folder.
        holding: text of the modules that are meant, which are read and not imported.
    """
    places = [Path(place) for place in package.__path__]
    files = [file for place in places for file in place.glob("[!_]*.py")]
    found = {file.stem for file in files if holding in file.read_text(encoding="utf-8")}
    return sorted(name.replace("_", "-") for name in found)


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
