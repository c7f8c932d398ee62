"""The command that starts a server as a study found it fastest."""

from __future__ import annotations

import shlex
from typing import Any

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.deploy.export.export_format import ExportedFile, ExportFormat
from specexp.engines.engine import EngineError
from specexp.engines.server import filled

_LEFT = ("port", "target")
"""Names that the deployment fills."""


class Endpoint(ExportFormat):
    """A line for a shell, in which ``{port}`` and ``{target}`` are the deployment's."""

    kinds = ("engine-settings",)
    read_for = "the server that was measured"
    deployment = """sh -c "$(sed 's/{{port}}/8000/; s/{{target}}/MODEL/' {file})\""""

    @override
    def export(self, artifact: Any, **options: str) -> ExportedFile:
        told = dict(artifact.settings)
        command, body = told.pop("command", None), told.pop("body", None)
        if artifact.engine != "endpoint" or not isinstance(command, str):
            raise ArtifactError(
                f"{artifact.folder}: no command started the engine {artifact.engine!r} that these settings are "
                "of; export them to it"
            )
        try:
            words = filled(command, {**told, **{name: f"{{{name}}}" for name in _LEFT}})
        except EngineError as error:
            raise ArtifactError(f"{artifact.folder}: {error}") from error
        dropped = f"endpoint: dropped what requests say, {body}" if body else ""
        return ExportedFile(f"{shlex.join(words)}\n", dropped)
