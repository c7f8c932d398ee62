"""Packages whose classes are imported when they are first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def classes_in(package: str, folder: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that finds a class of its modules by name.

    The module named as the class is (``DraftModel`` in ``draft_model.py``) is tried first, then the others are imported
    in turn.

    Args:
        package: dotted name of the package.
        folder: where its modules lie.

    Example:
        >>> __getattr__ = classes_in(__name__, __path__[0])  # doctest: +SKIP
    """

    def get(name: str) -> Any:
        if name[:1].isupper():
            own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            files = sorted(file.stem for file in Path(folder).glob("[!_]*.py"))
            for stem in sorted(files, key=lambda stem: stem != own):
                module = import_module(f"{package}.{stem}")
                found = vars(module).get(name)
                if isinstance(found, type) and found.__module__ == module.__name__:
                    return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
