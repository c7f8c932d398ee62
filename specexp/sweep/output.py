"""Where a study's results go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from specexp.tracking import Tracker


@dataclass(frozen=True)
class StudyOutput:
    """Where a study's results go.

    Attributes:
        folder: The study's folder; it exists and can be written.
        console: Where progress and tables go.
        tracker: The bridge to W&B.
        command: What was typed, for provenance.
    """

    folder: Path
    console: Console
    tracker: Tracker
    command: str

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(sentence, highlight=False, soft_wrap=True)
