"""What an export format is: an artifact in, a file of another project out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from specexp.artifacts.parts import Spec
from specexp.core.parts import Controller, TreeBuilder


class Tuned(Protocol):
    """What is exported: an artifact whose parts are made.

    Attributes:
        folder: where it lies.
        kind: e.g. ``static-tree``.
        recorded: the parts of ``parts.json`` by family.
        execution_spec: the execution strategy of several sequences; None where there is none.
    """

    folder: Path
    kind: str
    recorded: Mapping[str, Spec]
    execution_spec: Spec | None

    @property
    def builder(self) -> TreeBuilder:
        """The builder it was tuned with."""
        ...

    @property
    def controller(self) -> Controller | None:
        """The controller it was tuned with; None where none is recorded."""
        ...


@dataclass(frozen=True)
class ExportedFile:
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

    def export(self, artifact: Tuned) -> ExportedFile:
        """The file for an artifact of one of :attr:`kinds`."""
        raise NotImplementedError
