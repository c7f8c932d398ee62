"""The growmap of Sequoia and UMbreLLa; :mod:`specexp.artifacts.files.growmap` says what it holds."""

from __future__ import annotations

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.export_format import Export, ExportFormat
from specexp.artifacts.files.growmap import fields_of
from specexp.artifacts.formats._ordered_children import without_gaps


class Growmap(ExportFormat):
    """The tree, without nodes whose elder siblings are missing."""

    kinds = ("static-tree", "composition")

    def export(self, artifact: Artifact) -> Export:
        """All six fields; UMbreLLa reads the same."""
        shape, dropped = without_gaps(artifact, "growmap")
        return Export(fields_of(shape), dropped)
