"""The tree file of SAMD (SAM-Decoding): the children of every row, the root being row 0, by candidate."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.export_format import ExportedFile, ExportFormat, Tuned
from specexp.deploy.export.formats._ordered_children import without_gaps


class Samd(ExportFormat):
    """``{"tree_adj": {"0": [1, 2], "1": [3], "2": [], "3": []}}``, rows breadth first."""

    kinds = ("static-tree", "composition")
    read_for = "SAM-Decoding"
    deployment = "SAM-Decoding reads {file} as its tree"

    @override
    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        shape, dropped = without_gaps(artifact, "samd")
        return ExportedFile(
            {"tree_adj": {str(row): list(below) for row, below in enumerate(shape.children)}}, dropped
        )
