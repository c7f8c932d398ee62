"""The choices of Medusa and EAGLE-1: a list of rank paths under its name in Python."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.export_format import ExportedFile, Tuned
from specexp.deploy.export.formats.rank_paths import RankPaths


class MedusaChoices(RankPaths):
    """``medusa_choices = [[0], [1], [0, 0]]``, a line for their ``medusa_choices.py``."""

    read_for = "Medusa and EAGLE-1"
    deployment = "the line of {file} belongs into medusa_choices.py of Medusa or EAGLE-1"

    @override
    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        made = super().export(artifact)
        return ExportedFile(
            f"medusa_choices = {made.content}\n", made.dropped.replace("rank-paths", "medusa", 1)
        )
