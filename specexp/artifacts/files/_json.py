"""JSON files of the user's own: links are followed, unlike in an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.manifest import read_json


def read_own(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ArtifactError: it cannot be read, or is not JSON.
    """
    try:
        return read_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error.strerror or error})") from error
