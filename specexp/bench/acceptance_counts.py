"""Counts which rank paths of a draft tree the target accepts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from specexp.artifacts.atomic_write import atomic_write
from specexp.core.outcome import Outcome
from specexp.core.tree import RankPath


class AcceptanceCounter:
    """Counts, for every rank path, in how many steps it was drafted and in how many it was accepted.

    Attributes:
        steps: Steps seen.
        counts: Accepted nodes by rank path.
        drafted: Drafted nodes by rank path.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.counts: Counter[RankPath] = Counter()
        self.drafted: Counter[RankPath] = Counter()

    def observe(self, outcome: Outcome) -> None:
        """Count one step."""
        self.steps += 1
        paths = outcome.tree.shape.rank_paths
        self.drafted.update(paths[1:])
        self.counts.update(paths[row] for row in outcome.accepted)

    def save(self, path: str | Path) -> None:
        """Write the counts as JSON, rank paths as ``"0,2,1"``."""
        text = {",".join(map(str, rank_path)): count for rank_path, count in self.counts.most_common()}
        atomic_write(Path(path), json.dumps(text, indent=0) + "\n")
