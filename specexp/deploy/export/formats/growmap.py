"""The growmap of Sequoia and UMbreLLa; :mod:`specexp.artifacts.files.growmap` says what it holds."""

from __future__ import annotations

from typing_extensions import override

from specexp.artifacts.files.growmap import fields_of
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, Tuned
from specexp.deploy.export.formats._ordered_children import without_gaps


class Growmap(ExportFormat):
    """The tree, without nodes whose elder siblings are missing."""

    kinds = ("static-tree", "composition")
    read_for = "Sequoia and UMbreLLa"
    deployment = "Sequoia and UMbreLLa read {file} as their growmap"

    @override
    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        shape, dropped = without_gaps(artifact, "growmap")
        return ExportedFile(fields_of(shape), dropped)
