"""Kinds of artifacts: classes with a ``kind``, found by importing every file here, as export formats are."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


@cache
def classes_in(package: ModuleType, base: type[T], attribute: str) -> dict[str, type[T]]:
    """Return the classes of a folder that are derived from ``base``, by the value of a class attribute they set."""
    stems = {file.stem for place in package.__path__ for file in Path(place).glob("[!_]*.py")}
    modules = [import_module(f"{package.__name__}.{stem}") for stem in stems]
    found = {
        vars(one)[attribute]: one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, base) and attribute in vars(one)
    }
    return dict(sorted(found.items()))
