"""Where a study's results go, and what to do with its artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from specexp.config import build_engine
from specexp.config.next_step import (
    artifact_again,
    command_line,
    experiment_again,
    model_options,
    trust_options,
    trusted_packages,
)
from specexp.config.sweep import Sweep
from specexp.sweep.study_config import StudyConfig

if TYPE_CHECKING:
    from specexp.tracking import Tracker

BEST_TREE = "best-tree"
"""Alias of the fastest composition that drafts, whether it beats plain decoding or not."""


@dataclass(frozen=True)
class StudyOutput:
    """Where a study's results go."""

    folder: Path  # the study's folder; it exists and can be written
    console: Console
    tracker: Tracker
    command: str

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(sentence, highlight=False, soft_wrap=True)


def next_steps(settings: Sweep, study_config: StudyConfig) -> dict[str, str]:
    """What to do with the artifact, where one is exported; ``best`` may decode plainly, ``best-tree`` always drafts."""
    if settings.export is None:
        return {}
    config, to = study_config.config, settings.export.to
    best, tree = f"{to}/best", f"{to}/{BEST_TREE}"
    if study_config.of_engine:
        form = build_engine(config).exported_as
        return {"write the engine's own settings": command_line("export", tree, "--to", form)}
    trust = trust_options(config)
    pair = ", ".join(repr(one) for one in (config.get("pair.target"), config.get("pair.draft")) if one)
    trusted = f", trust={trusted_packages(config)!r}" if trust else ""
    again = experiment_again(config, artifact_again(config, tree))
    return {
        "prove that its output is unchanged": command_line("verify", *again),
        "serve it": command_line("serve", best, *model_options(config), *trust, "--port", 8000),
        "use it in Python": (
            f"pair = specexp.load_pair({pair}); "
            f"decoder = specexp.load_artifact({best!r}{trusted}).decoder(pair.target, pair.draft)"
        ),
        "carry it to another engine": command_line("export", "--help", why="lists the engines"),
    }
