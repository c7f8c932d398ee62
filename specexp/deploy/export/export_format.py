"""The contract of export formats, which write an artifact, a model or a measurement for another project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specexp.artifacts import ArtifactError
from specexp.artifacts.kinds import classes_with

if TYPE_CHECKING:
    from specexp.config.artifacts import LoadedArtifact


def all_formats() -> dict[str, type[ExportFormat]]:
    """Return the class of each format by its name."""
    return classes_with("specexp.deploy.export.formats", "name")


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of an export; ``options`` are values of :attr:`ExportFormat.options`."""

    source: str | Path
    output: Path | None = None
    trust: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedFile:
    """The result of an export.

    Attributes:
        content: content of the file, as JSON values or as text; of a folder the paths of the written files.
        dropped: one sentence on what the format cannot express; empty if it expresses everything.
    """

    content: Any
    dropped: str = ""


class ExportFormat:
    """One format. A new one is one class in a file of ``specexp/deploy/export/formats``.

    Attributes:
        name: the value of ``--to``.
        kinds: kinds of artifacts it can express; empty for formats that override :meth:`make`.
        read_for: project and version that document its fields.
        options: options it takes besides the source and ``--output``.
        folder: whether it writes a folder itself.
        updates: whether an existing file keeps its other keys.
        deployment: the line that deploys the file, in which ``{file}`` is its path; ``MODEL``, ``DRAFT`` and ``FOLDER``
            are the user's to fill; empty if there is none.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ()
    read_for: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    folder: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    deployment: ClassVar[str] = ""

    def make(self, request: ExportRequest) -> ExportedFile:
        """Export the artifact of a request; raises an ArtifactError of one sentence."""
        return self.export(self.load(request), **request.options)

    def load(self, request: ExportRequest) -> LoadedArtifact:
        """Load the artifact of a request; raises an ArtifactError unless it is of one of :attr:`kinds`."""
        from specexp.config.artifacts import load_artifact

        artifact = load_artifact(request.source, request.trust)
        if artifact.kind not in self.kinds:
            raise ArtifactError(
                f"{artifact.folder}: kind {artifact.kind!r} cannot be exported to {self.name}, which takes "
                f"{', '.join(self.kinds)}" + (f"; {artifact.purpose}" if artifact.purpose else "")
            )
        return artifact

    def export(self, artifact: LoadedArtifact, **options: str) -> ExportedFile:
        """Return the file for an artifact of one of :attr:`kinds`; ``options`` are those that were given."""
        raise NotImplementedError

    def deployed_by(self, file: str, content: Any) -> str:
        """Return the line that deploys a file of this content; ``file`` is its path, quoted for a shell."""
        return self.deployment.format(file=file)
