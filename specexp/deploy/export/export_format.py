"""What an export format is: an artifact, a model or a measurement in, a file or folder of another project out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.artifacts.parts import Spec
from specexp.core.controller import Controller
from specexp.core.tree_builder import TreeBuilder


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
class Given:
    """What the command was given.

    Attributes:
        source: the artifact, or whatever else the format takes.
        to: the format's name.
        output: file or folder to write.
        trust: installed packages whose classes an artifact's parts may be.
        options: values of :attr:`Format.options`.
    """

    source: str | Path
    to: str
    output: Path | None = None
    trust: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedFile:
    """What was made.

    Attributes:
        content: what the file holds, as JSON values or as text; of a folder the paths of what was written.
        dropped: one sentence on what the format cannot say; empty where it says all.
    """

    content: Any
    dropped: str = ""


class Format:
    """One format. A further one is one file in ``specexp/deploy/export/formats``, which ``--to`` finds by its name.

    Attributes:
        read_for: the project and version its fields were read for.
        options: what it takes beside the source and ``--output``.
        folder: whether it writes a folder itself.
        updates: whether an existing file keeps its other keys.
        deployment: the line that deploys the file, in which ``{file}`` is its path; ``MODEL``, ``DRAFT`` and ``FOLDER``
            are the user's to fill; empty where the user knows.
    """

    read_for: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    folder: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    deployment: ClassVar[str] = ""

    def make(self, given: Given) -> ExportedFile:
        """What the command asks for.

        Raises:
            ArtifactError: one sentence.
        """
        raise NotImplementedError

    def deployed_by(self, file: str, made: ExportedFile) -> str:
        """Return the line that deploys what was made.

        Args:
            file: its path, quoted for a shell.
            made: what was made.
        """
        return self.deployment.format(file=file)


class ExportFormat(Format):
    """A format of artifacts.

    Attributes:
        kinds: kinds of artifacts it can express.
    """

    kinds: ClassVar[tuple[str, ...]]

    @override
    def make(self, given: Given) -> ExportedFile:
        from specexp.config.artifacts import load_artifact

        artifact = load_artifact(given.source, given.trust)
        if artifact.kind not in self.kinds:
            raise ArtifactError(
                f"{artifact.folder}: kind {artifact.kind!r} cannot be exported to {given.to}, "
                f"which takes {', '.join(self.kinds)}" + (f"; {artifact.purpose}" if artifact.purpose else "")
            )
        return self.export(artifact, **given.options)

    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        """The file for an artifact of one of :attr:`kinds`.

        Args:
            artifact: what is exported.
            options: those of :attr:`options` that were given.
        """
        raise NotImplementedError
