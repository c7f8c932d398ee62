"""What JSON leaves open and no file of ours, or read by us, may hold."""

from __future__ import annotations

from typing import Any


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which a key given twice would let two readers read two things.

    Args:
        pairs: As ``json.loads`` hands them to its ``object_pairs_hook``.

    Raises:
        ValueError: A key is given twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return found
