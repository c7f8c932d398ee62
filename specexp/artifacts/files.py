"""Files that an argument may name in place of an artifact: acceptance counts and vectors, and published trees."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from specexp.artifacts.manifest import read_bytes, read_json
from specexp.artifacts.validation import ArtifactError, validated
from specexp.core.tree import RankPath, TreeShape

MOST_NODES = 4096
_MOST_BYTES = 2**20
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_RankPaths = Annotated[list[Annotated[list[_Rank], Field(min_length=1)]], Field(min_length=1)]
_TORCH_FILES = (".pt", ".pth", ".bin", ".pkl", ".pickle")


def acceptance_counts(path: Path) -> dict[RankPath, int]:
    """Read how often each rank path was accepted: ``{"0": 120, "0,0": 55, ...}``, written by a recording stage."""
    raw = _own_json(path)
    try:
        return {tuple(int(rank) for rank in key.split(",")): int(count) for key, count in raw.items()}
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise ArtifactError(f'{path} is no JSON object such as {{"0": 12, "0,1": 3}} ({error})') from error


def acceptance_vector(path: Path) -> list[float]:
    """Read ``{"acceptance": [0.6, 0.2, 0.2]}``: how probably the first, second, ... child tried below a node is
    accepted. Other keys are ignored.
    """
    content = _own_json(path)
    vector = content.get("acceptance") if isinstance(content, dict) else None
    if not isinstance(vector, list) or not all(
        type(value) in (int, float) and isfinite(value) for value in vector
    ):
        raise ArtifactError(
            f"{path} holds no list of numbers named acceptance; a JSON object such as "
            '{"acceptance": [0.6, 0.2, 0.2]} is expected'
        )
    return [float(value) for value in vector]


def published_tree(path: Path) -> list[list[int]]:
    """Read a tree that another project publishes as rank paths, sorted by length, then rank.

    - the choices of Medusa and EAGLE-1: a list of rank paths as JSON, or under one name in a Python file, which is
      parsed and never run;
    - the tree of SAMD: ``{"tree_adj": {"0": [1, 2], "1": [3], ...}}``, the children of every row, the root being row 0;
    - a growmap of Sequoia (Chen et al. 2024) or UMbreLLa: ``{"Successors": [[1, 2], [3], ...], ...}``, likewise.

    Example:
        >>> published_tree(Path("medusa_choices.py"))  # doctest: +SKIP
        [[0], [1], [0, 0]]
    """
    where, file = f"tree: {path}", path.resolve()
    if path.suffix.lower() in _TORCH_FILES:
        raise ArtifactError(
            f"{where} is a torch or pickle file, which is never loaded because that can run code; save it as JSON"
        )
    if path.suffix == ".py":
        content = _assigned(read_bytes(file, where, _MOST_BYTES), where)
    else:
        content = read_json(read_bytes(file, where), where)
    if isinstance(content, Mapping):
        content = _paths_of_children(content, where)
    return rank_paths(content, where)


READERS: dict[str, Callable[[Path], Any]] = {
    "acceptance-counts": acceptance_counts,
    "acceptance-vector": acceptance_vector,
    "static-tree": published_tree,
}
"""By the kind that an argument refers to. Each raises an ArtifactError if the file cannot be read or is wrong."""


def rank_paths(content: Any, where: str) -> list[list[int]]:
    """Validate the rank paths of a tree and sort them by length, then rank.

    Raises:
        ArtifactError: they are no list of paths, too many, or no tree; ``where`` names the file.
    """
    paths = validated(_RankPaths, content, where)
    if len(paths) > MOST_NODES:
        raise ArtifactError(f"{where} lists {len(paths)} nodes; at most {MOST_NODES} are allowed")
    try:
        shape = TreeShape.from_rank_paths(paths)
    except ValueError as error:
        raise ArtifactError(f"{where}: {error}") from error
    return [list(path) for path in shape.rank_paths[1:]]


def _own_json(path: Path) -> Any:
    """A JSON file of the user's own: links are followed, unlike in an artifact."""
    try:
        return read_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error.strerror or error})") from error


def _assigned(source: bytes, where: str) -> Any:
    """The one list that a Python file gives a name to."""
    try:
        body = ast.parse(source).body
        found = {
            ast.unparse(statement.targets[0]): ast.literal_eval(statement.value)
            for statement in body
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.List)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArtifactError(f"{where} is no Python file of plain lists ({type(error).__name__})") from error
    if len(found) != 1:
        names = ", ".join(found) or "nothing"
        raise ArtifactError(f"{where} gives lists to {names}; keep exactly one of them in the file")
    return next(iter(found.values()))


def _paths_of_children(content: Mapping[str, Any], where: str) -> list[list[int]]:
    """Rank paths from every row's children; a child's place among them is its rank."""
    name = "Successors" if "Successors" in content else "tree_adj"
    if name not in content:
        raise ArtifactError(
            f"{where} is no tree; a list of rank paths, a growmap, or an object with tree_adj is allowed"
        )
    children: Mapping[str, list[int]]
    if name == "Successors":
        rows_below = validated(list[list[_Rank]], content[name], where, name)
        children = {str(row): below for row, below in enumerate(rows_below)}
    else:
        children = validated(dict[str, list[_Rank]], content[name], where, name)
    paths: dict[int, list[int]] = {0: []}
    rows = [0]
    for row in rows:  # which grows
        for rank, child in enumerate(children.get(str(row), ())):
            if child in paths or len(paths) > MOST_NODES:
                raise ArtifactError(
                    f"{where}: {name}.{row} names row {child}, which is in the tree already; every row has one "
                    f"parent, and there are at most {MOST_NODES}"
                )
            paths[child] = [*paths[row], rank]
            rows.append(child)
    if len(paths) < len(children):
        raise ArtifactError(f"{where}: {name} has {len(children)} rows, and {len(paths)} hang from row 0")
    return [paths[row] for row in rows[1:]]
