"""Packages whose classes are imported when they are first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def classes_in(package: str, folder: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that gives any class of its modules by its name, and lists none.

    Args:
        package: dotted name of the package.
        folder: where its modules lie.

    Example:
        >>> __getattr__ = classes_in(__name__, __path__[0])  # doctest: +SKIP
    """

    def get(name: str) -> Any:
        if name[:1].isupper():
            head = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
            for file in sorted(Path(folder).glob("[!_]*.py")):
                if head.search(file.read_text(encoding="utf-8")):
                    return getattr(import_module(f"{package}.{file.stem}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
