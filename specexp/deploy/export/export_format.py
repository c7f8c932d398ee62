"""The base class of export formats, which convert an artifact or a model for another project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specexp.artifacts import ArtifactError
from specexp.artifacts.kinds import classes_with

if TYPE_CHECKING:
    from specexp.config.artifacts import LoadedArtifact
    from specexp.engines.settings import Settings


def all_formats() -> dict[str, type[ExportFormat]]:
    """Return the classes of all formats, keyed by name."""
    return classes_with("specexp.deploy.export.formats", "name")


class NotInEngineError(ArtifactError):
    """Raised if an engine does not decode as an artifact does. ``why`` is the message without the advice."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(f"{why}: {advice}")
        self.why = why


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of an export. ``options`` maps the names in :attr:`ExportFormat.options` to values."""

    source: str | Path
    output: Path | None = None
    trust: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedFile:
    """The result of an export."""

    content: Any  # content of the file, as JSON values or as text; for a folder, a list with its path
    dropped: str = ""  # a sentence naming the settings that the format cannot express; empty if there are none
    # template of the command that deploys the file as it was measured, with ``{file}`` for its path; empty if the
    # format's own command is meant
    command: str = ""
    settings: Settings | None = None  # the engine's settings in the file; None for other files


class ExportFormat:
    """An export format. To add a format, write a class in a file in ``specexp/deploy/export/formats``."""

    name: ClassVar[str]  # the value of ``--to``
    kinds: ClassVar[tuple[str, ...]] = ()  # of artifacts that can be exported; empty if the format overrides make()
    read_for: ClassVar[str]  # project and version for which the exported fields are valid
    options: ClassVar[tuple[str, ...]] = ()  # names of the options in addition to the source and ``--output``
    folder: ClassVar[bool] = False  # whether the format writes a folder instead of a file
    updates: ClassVar[bool] = False  # whether other keys of an existing file are kept
    greedy: ClassVar[Mapping[str, Any]] = {"temperature": 0}  # fields that a request must have for greedy decoding
    # template of the command that deploys the file, with ``{file}`` for its path; empty if there is none. Users replace
    # ``MODEL``, ``DRAFT`` and ``FOLDER``
    deployment: ClassVar[str] = ""

    def make(self, request: ExportRequest) -> ExportedFile:
        """Export a request's artifact. Raises ArtifactError if that is not possible."""
        artifact = self.load(request)
        return self.noted(self.export(artifact, **request.options), artifact)

    def noted(self, made: ExportedFile, artifact: LoadedArtifact) -> ExportedFile:
        """Return an exported file with a note on the sampling that the study decided and requests must set, if any."""
        config = artifact.provenance.get("config") or {}
        spec = artifact.recorded.get("verifier") or config.get("verifier") or {}
        name = spec.get("class_path", "").rpartition(".")[2]
        given = spec.get("init_args") or {}
        values = (
            self.greedy
            if name == "Greedy"
            else {key: given[key] for key in ("temperature", "top_p", "top_k") if given.get(key) is not None}
        )
        if not values:
            return made
        shown = ", ".join(f"{key} {value}" for key, value in values.items())
        note = f"not in the file: the study's verifier {name}, so requests must set {shown}"
        return replace(made, dropped=f"{made.dropped or self.name}; {note}")

    def load(self, request: ExportRequest) -> LoadedArtifact:
        """Load a request's artifact. Raises ArtifactError unless its kind is one of :attr:`kinds`."""
        from specexp.config.artifacts import load_artifact

        artifact = load_artifact(request.source, request.trust)
        if artifact.kind not in self.kinds:
            raise ArtifactError(
                f"{artifact.folder}: kind {artifact.kind!r} cannot be exported to {self.name}; allowed are "
                f"{', '.join(self.kinds)}" + (f"; {artifact.purpose}" if artifact.purpose else "")
            )
        return artifact

    def export(self, artifact: LoadedArtifact, **options: str) -> ExportedFile:
        """Return the contents of the exported file. ``options`` holds the options that the user set."""
        raise NotImplementedError

    def deployed_by(self, file: str, content: Any) -> str:
        """Return the command that deploys an exported file. ``file`` is the file's path, quoted for a shell."""
        return self.deployment.format(file=file)
