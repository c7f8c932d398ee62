"""Files that an argument may name instead of an artifact: acceptance counts or vectors, step costs, published trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from specexp.artifacts.manifest import read_bytes, read_json
from specexp.artifacts.validation import ArtifactError, validated
from specexp.base.checked import IntegerKey
from specexp.base.messages import restated
from specexp.core.tree import RankPath, TreeShape

MOST_NODES = 4096
_MOST_BYTES = 2**20
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_RankPaths = Annotated[list[Annotated[list[_Rank], Field(min_length=1)]], Field(min_length=1)]
_StepMs = dict[Annotated[IntegerKey, Field(ge=1)], Annotated[float, Field(gt=0)]]
_TORCH_FILES = (".pt", ".pth", ".bin", ".pkl", ".pickle")


class _Vector(BaseModel):
    acceptance: list[Annotated[float, Field(allow_inf_nan=False)]]


def acceptance_counts(path: Path) -> dict[RankPath, int]:
    """Read how often each rank path was accepted: ``{"0": 120, "0,0": 55, ...}``."""
    raw = _json_of(path)
    try:
        return {tuple(map(int, filter(None, key.split(",")))): int(count) for key, count in raw.items()}
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise ArtifactError(f'{path} must be JSON such as {{"0": 12, "0,1": 3}} ({error})') from error


def step_costs(path: Path) -> dict[int, float]:
    """Read the duration of a step, in milliseconds, for each number of rows: ``{"2": 27.1, "9": 31.5, ...}``."""
    costs: dict[int, float] = validated(_StepMs, _json_of(path), str(path))
    return costs


def acceptance_vector(path: Path) -> list[float]:
    """Read children's acceptance probabilities by rank: ``{"acceptance": [0.6, 0.2, 0.2]}``. Other keys are ignored."""
    vector: _Vector = validated(_Vector, _json_of(path), str(path))
    return vector.acceptance


def published_tree(path: Path) -> list[list[int]]:
    """Read a tree published by another project. Return its rank paths, sorted by length, then rank.

    - Medusa and EAGLE-1: a list of rank paths, as JSON, or as the only list in a Python file, which is not executed.
    - SAMD: ``{"tree_adj": {"0": [1, 2], "1": [3], ...}}``, the children of every row; the root is row 0.
    - Sequoia (Chen et al. 2024) and UMbreLLa: a growmap, ``{"Successors": [[1, 2], [3], ...], ...}``, also the
      children of every row.

    Example:
        >>> published_tree(Path("medusa_choices.py"))  # doctest: +SKIP
        [[0], [1], [0, 0]]
    """
    where = f"tree: {path}"
    if path.suffix.lower() in _TORCH_FILES:
        raise ArtifactError(
            f"{where} is a torch or pickle file, which is not loaded because loading it can run code; save it as JSON"
        )
    data = read_bytes(path.resolve(), where, _MOST_BYTES)
    if path.suffix == ".py":  # a Python list of lists of integers is also valid JSON
        data = data[data.find(b"[") : data.rfind(b"]") + 1]
    content = read_json(data, where)
    if isinstance(content, Mapping):
        content = _paths_of_children(content, where)
    return rank_paths(content, where)


READERS: dict[str, Callable[[Path], Any]] = {
    "acceptance-counts": acceptance_counts,
    "acceptance-vector": acceptance_vector,
    "static-tree": published_tree,
    "step-costs": step_costs,
}
"""Readers, keyed by the kind of file that an argument refers to. They raise an ArtifactError for an invalid file."""


def rank_paths(content: Any, where: str) -> list[list[int]]:
    """Validate a tree's rank paths, and sort them by length, then rank. ``where`` names the file in errors."""
    paths = validated(_RankPaths, content, where)
    if len(paths) > MOST_NODES:
        raise ArtifactError(f"{where} lists {len(paths)} nodes; at most {MOST_NODES} are allowed")
    with restated(ValueError, lambda error: ArtifactError(f"{where}: {error}")):
        shape = TreeShape.from_rank_paths(paths)
    return [list(path) for path in shape.rank_paths[1:]]


def _json_of(path: Path) -> Any:
    with restated(OSError, lambda error: ArtifactError(f"{path} cannot be read ({error.strerror or error})")):
        return read_json(path.read_bytes(), str(path))  # unlike a payload, a user's own file may be a link


def _paths_of_children(content: Mapping[str, Any], where: str) -> list[list[int]]:
    """Return rank paths, given the children of every row. A child's position among its siblings is its rank."""
    name = "Successors" if "Successors" in content else "tree_adj"
    if name not in content:
        raise ArtifactError(f"{where} must be a list of rank paths, a growmap, or an object with tree_adj")
    kind = list[list[_Rank]] if name == "Successors" else dict[str, list[_Rank]]
    given = validated(kind, content[name], where, name)
    children = given if isinstance(given, dict) else {str(row): below for row, below in enumerate(given)}
    paths: dict[int, list[int]] = {0: []}
    rows = [0]
    for row in rows:  # the list grows during the loop, in order of depth
        for rank, child in enumerate(children.get(str(row), ())):
            if child in paths or len(paths) > MOST_NODES:
                raise ArtifactError(
                    f"{where}: {name}.{row} names row {child} a second time, or there are more than {MOST_NODES} rows"
                )
            paths[child] = [*paths[row], rank]
            rows.append(child)
    if len(paths) < len(children):
        raise ArtifactError(f"{where}: {name} has {len(children)} rows, but only {len(paths)} are connected to row 0")
    return [paths[row] for row in rows[1:]]
