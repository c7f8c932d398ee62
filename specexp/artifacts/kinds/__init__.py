"""Kinds of artifacts: classes with a ``kind`` attribute, found by importing every file in this folder."""

from __future__ import annotations

from typing import Any

from specexp.base.checked import classes_of


def classes_with(package: str, attribute: str) -> dict[str, Any]:
    """Return the classes in a package that define ``attribute``, keyed by its value, in alphabetical order."""
    found = {vars(one)[attribute]: one for one in classes_of(package).values() if attribute in vars(one)}
    return dict(sorted(found.items()))
