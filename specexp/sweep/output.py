"""The outputs of a study: console, folder, W&B runs of its trials, and the next commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial
from rich.console import Console

from specexp.artifacts.environment import device_name, package_versions
from specexp.bench.record import MEASURED
from specexp.config import Config, build_engine
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
from specexp.sweep.trials import Confirmed, trial_row
from specexp.tracking.names import MODELLED, SPEEDUP, TOKENS_PER_SECOND, TOKENS_PER_STEP

if TYPE_CHECKING:
    from specexp.tracking import Tracker

BEST_TREE = "best-tree"
"""Alias of the fastest composition that drafts, even if plain decoding is faster."""


@dataclass(frozen=True)
class StudyOutput:
    """The outputs of a study."""

    folder: Path  # it exists and can be written
    console: Console
    tracker: Tracker
    command: str

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(sentence, highlight=False, soft_wrap=True)


def next_steps(settings: Sweep, study_config: StudyConfig) -> dict[str, str]:
    """Return the next commands for an exported artifact; ``best`` may decode plainly, ``best-tree`` always drafts."""
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


def track_trial(
    tracker: Tracker, trial: FrozenTrial, setting: Mapping[str, Any], objectives: Sequence[str]
) -> None:
    """Write the W&B run of a trial that has ended: a step of its history for each prompt, and its row as the summary.

    Args:
        setting: See :func:`setting_of`.
    """
    attributes = trial.user_attrs.get("attributes", {})
    speedup = f"{MODELLED if 'clock' in attributes else ''}{SPEEDUP}"
    config = {**setting, **attributes.get("resolved", {})}
    with tracker.trial(trial.number, trial.params, config) as run:
        for prompt, log_speedup in trial.intermediate_values.items():
            run.log({speedup: math.exp(log_speedup)}, step=prompt)
        row = trial_row(trial, objectives)
        run.summary({key: value for key, value in row.items() if value is not None})


def summary_of(winner: Confirmed) -> dict[str, Any]:
    """Return the confirmed figures of the winner, by which studies are compared."""
    modelled = "" if winner.over_ar.clock == MEASURED else MODELLED
    return {
        "winner": winner.label,
        "winner_trial": winner.trial,
        f"{modelled}confirmed_{SPEEDUP}": winner.over_ar.ratio,
        f"{modelled}confirmed_{SPEEDUP}_low": winner.over_ar.low,
        f"{modelled}confirmed_{SPEEDUP}_high": winner.over_ar.high,
        f"{modelled}{TOKENS_PER_SECOND}": winner.tokens_per_second,
        TOKENS_PER_STEP: winner.tokens_per_step,
    }


def method_of(config: Config, winner: Confirmed) -> str:
    """Return the method by which studies are grouped: the winner's choice, or the drafter or engine."""
    part = config.get("drafter") or config.get("engine") or {"class_path": "plain"}
    return winner.choice or str(part["class_path"]).rpartition(".")[2]


def setting_of(config: Config) -> dict[str, Any]:
    """Return the settings that comparable studies share; passwords are hidden."""
    whole = config.to_dict()
    device = whole["pair"]["device"]
    sections = {name: whole.get(name) for name in ("pair", "verifier", "data", "generation", "latency")}
    return {
        **{name: section for name, section in sections.items() if section is not None},
        "model": whole["pair"]["target"],
        "device": device,
        "device_name": device_name(device),
        "versions": package_versions(),
    }
