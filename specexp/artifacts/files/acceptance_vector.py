"""A positional acceptance vector: how probably the first, second, ... child tried below a node is accepted."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.files._json import read_own


def read(path: Path) -> list[float]:
    """The vector of a JSON file ``{"acceptance": [0.6, 0.2, 0.2]}``; its other keys are ignored.

    Args:
        path: the file.

    Raises:
        ArtifactError: it cannot be read, or holds no such list.
    """
    content = read_own(path)
    vector = content.get("acceptance") if isinstance(content, dict) else None
    if not isinstance(vector, list) or not all(
        type(value) in (int, float) and isfinite(value) for value in vector
    ):
        raise ArtifactError(
            f"{path} holds no list of numbers named acceptance; a JSON object such as "
            '{"acceptance": [0.6, 0.2, 0.2]} is expected'
        )
    return [float(value) for value in vector]
