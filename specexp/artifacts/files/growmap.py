"""Growmaps: the static trees of Sequoia (Chen et al. 2024) and UMbreLLa, as JSON.

``size`` rows, the root being row 0, breadth first: ``roots`` are the rows of every depth, ``branches`` their numbers
of children, ``Successors`` every row's children, ``depth`` every row's depth, and ``mask`` is 1 where the column is
the row itself or one of its ancestors. A node's n-th child is its n-th candidate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.manifest import read_bytes, read_json
from specexp.core.tree import TreeShape

_FIELDS = ("size", "Successors", "roots", "branches", "depth", "mask")
_TORCH_FILES = (".pt", ".pth", ".bin", ".pkl", ".pickle")


def read(path: Path) -> list[list[int]]:
    """Rank paths of a growmap, sorted by length, then rank.

    All fields must be there and describe the same tree; other keys are ignored.

    Args:
        path: JSON file. A growmap that torch saved is refused unread, for reading it may run what is in it.

    Raises:
        ArtifactError: one sentence that names the file and the field.

    Example:
        >>> read(Path("2x4-tree.json"))  # doctest: +SKIP
        [[0], [1], [0, 0], [1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    """
    where = f"growmap: {path}"
    if path.suffix.lower() in _TORCH_FILES:
        raise ArtifactError(
            f"{where} is a torch or pickle file, which is never loaded because that can run code; save the growmap as "
            "JSON, with its mask and depth as lists"
        )
    content = read_json(read_bytes(path, where), where)
    if not isinstance(content, dict):
        raise ArtifactError(f"{where} holds no object; one with {', '.join(_FIELDS)} is expected")
    for field in _FIELDS:
        if field not in content:
            raise ArtifactError(f"{where} has no field {field!r}")
    size, successors = content["size"], content["Successors"]
    if type(size) is not int or size < 2:
        raise ArtifactError(
            f"{where}: size is {_shown(size)}; an integer from 2 is expected, the root and a node"
        )
    if not isinstance(successors, list) or len(successors) != size:
        found = f"{len(successors)} entries" if isinstance(successors, list) else _shown(successors)
        raise ArtifactError(f"{where}: Successors is {found}; a list of {size} is expected, one a row")
    shape = _shape_of(successors, where)
    for field, expected in fields_of(shape).items():
        if difference := _first_difference(content[field], expected, field):
            raise ArtifactError(f"{where}: {difference}")
    return [list(path) for path in shape.rank_paths[1:]]


def _shape_of(successors: list[Any], where: str) -> TreeShape:
    """The shape, from the children of every row: read in order they must count 1, 2, ..., each below an earlier row."""
    parents, ranks = [-1], [-1]
    for row, children in enumerate(successors):
        if not isinstance(children, list):
            raise ArtifactError(
                f"{where}: Successors[{row}] is {_shown(children)}; a list of rows is expected"
            )
        for rank, child in enumerate(children):
            expected = len(parents)
            if type(child) is not int or child != expected or child >= len(successors) or child <= row:
                wanted = f"row {expected}" if row < expected < len(successors) else "no child"
                raise ArtifactError(
                    f"{where}: Successors[{row}][{rank}] is {_shown(child)}; rows are numbered breadth first, so "
                    f"{wanted} is expected"
                )
            parents.append(row)
            ranks.append(rank)
    if len(parents) != len(successors):
        raise ArtifactError(
            f"{where}: Successors names {len(parents) - 1} children; {len(successors) - 1} are expected, every row "
            "but the root"
        )
    return TreeShape(parents, ranks)


def fields_of(shape: TreeShape) -> dict[str, Any]:
    """The growmap of a shape whose rows are breadth first and whose ranks have no gap."""
    roots = [np.flatnonzero(shape.depths == depth).tolist() for depth in range(shape.max_depth + 1)]
    return {
        "roots": roots,
        "branches": [[len(shape.children[row]) for row in rows] for rows in roots],
        "Successors": [list(rows) for rows in shape.children],
        "mask": shape.ancestor_mask.astype(int).tolist(),
        "depth": shape.depths.tolist(),
        "size": shape.parents.size,
    }


def _first_difference(given: Any, expected: Any, name: str) -> str:
    """Where a field parts from what Successors makes it; empty where it does not."""
    if given == expected:
        return ""
    if not isinstance(expected, list):
        return f"{name} is {_shown(given)}; Successors makes it {expected}"
    if not isinstance(given, list):
        return f"{name} is {_shown(given)}; Successors makes it a list of {len(expected)}"
    for index, (one, other) in enumerate(zip(given, expected, strict=False)):
        if difference := _first_difference(one, other, f"{name}[{index}]"):
            return difference
    return f"{name} has {len(given)} entries; Successors makes it {len(expected)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
