"""What an export format is: an artifact in, a file of another project out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from specexp.artifacts.artifact import Artifact


@dataclass(frozen=True)
class Export:
    """A file in another project's format.

    Attributes:
        content: what the file holds, as JSON values.
        dropped: one sentence on what the format cannot say; empty where it says all.
    """

    content: Any
    dropped: str = ""


class ExportFormat:
    """Turns artifacts into one format. A further format is one file in ``specexp/artifacts/formats``.

    Attributes:
        kinds: kinds of artifacts it can express.
        updates: whether an existing file keeps its other keys.
    """

    kinds: ClassVar[tuple[str, ...]]
    updates: ClassVar[bool] = False

    def export(self, artifact: Artifact) -> Export:
        """The file for an artifact of one of :attr:`kinds`."""
        raise NotImplementedError
