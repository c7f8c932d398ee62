"""How often each rank path was accepted: the file that a sweep's recording stage writes."""

from __future__ import annotations

from pathlib import Path

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.files._json import read_own
from specexp.core.tree import RankPath


def read(path: Path) -> dict[RankPath, int]:
    """The counts of a JSON file ``{"0": 120, "0,0": 55, ...}``, rank paths as :class:`AcceptanceCounter` writes them.

    Args:
        path: the file.

    Raises:
        ArtifactError: it cannot be read, or is no JSON object of rank paths and counts.
    """
    raw = read_own(path)
    try:
        return {tuple(int(rank) for rank in key.split(",")): int(count) for key, count in raw.items()}
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise ArtifactError(f'{path} is no JSON object such as {{"0": 12, "0,1": 3}} ({error})') from error
