"""What the page of a study shows beside the confirmation's table: its charts, whose prompts, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna import Study

from specexp.bench.page.charts import importances_chart, ratios_chart, search_chart
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
from specexp.sweep.backend import StudyBackend
from specexp.sweep.confirm import AR, Confirmation
from specexp.sweep.export import BEST_TREE
from specexp.sweep.plots import importances
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.trials import trial_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def charts_of(
    study: Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """The confirmation prompt by prompt, and the search behind it."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    found = {
        "confirmation": ratios_chart(confirmation.records, AR, titles, texts),
        "search": search_chart(rows, choice),
        "importances": importances_chart(*importances(study)),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def onward(settings: Sweep, study_config: StudyConfig) -> dict[str, str]:
    """What to do with the artifact, where one is exported; ``best`` may decode plainly, ``best-tree`` always drafts."""
    if settings.export is None:
        return {}
    config, best, tree = (
        study_config.config,
        f"{settings.export.to}/best",
        f"{settings.export.to}/{BEST_TREE}",
    )
    if study_config.of_engine:
        form = build_engine(config).exported_as
        return {"write the engine's own settings": command_line("export", tree, "--to", form)}
    trust = trust_options(config)
    pair = ", ".join(repr(one) for one in (config.get("pair.target"), config.get("pair.draft")) if one)
    trusted = f", trust={trusted_packages(config)!r}" if trust else ""
    return {
        "prove that its output is unchanged": command_line(
            "verify", *experiment_again(config, artifact_again(config, tree))
        ),
        "serve it": command_line("serve", best, *model_options(config), *trust, "--port", 8000),
        "use it in Python": (
            f"pair = specexp.load_pair({pair}); "
            f"decoder = specexp.load_artifact({best!r}{trusted}).decoder(pair.target, pair.draft)"
        ),
        "carry it to another engine": command_line("export", "--help", why="lists the engines"),
    }


def titles_of(confirmation: Confirmation) -> dict[str, str]:
    """Names for a person of the arms whose prompts are shown: the winner, the others, plain decoding."""
    return {**{one.name: one.label for one in confirmation.confirmed}, AR: "AR (engine)"}


def tokenizer_of(backend: StudyBackend) -> PreTrainedTokenizerBase | None:
    """The target's; None of a recording alone."""
    return backend.confirming.backend.tokenizer
