"""What the page of a study shows beside the confirmation's table: its charts, whose prompts, what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna import Study

from specexp.bench.page.charts import importances_chart, ratios_chart, search_chart
from specexp.config import Config
from specexp.config.sweep import Sweep
from specexp.sweep.backend import StudyBackend
from specexp.sweep.confirm import AR, Confirmation
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
    """What to do with the artifact, where one is exported."""
    if settings.export is None:
        return {}
    best = f"{settings.export.to}/best"
    carried = f"python -m specexp.export {best} --to FORMAT"
    if study_config.of_engine:
        return {"write the engine's own settings": carried}
    return {
        "prove that its output is unchanged": f"python -m specexp.verify {study_config.config.file} --artifact {best}",
        "serve it": f"python -m specexp.serve {best}{_models(study_config.config)} --port 8000",
        "use it in Python": f'specexp.load_artifact("{best}").decoder(specexp.load_pair(...).target)',
        "carry it to another engine": carried,
    }


def _models(config: Config) -> str:
    """The options that name other models than the embedded pair."""
    target, draft = config.get("pair.target"), config.get("pair.draft")
    named = "" if target == "stdlib" else f" --target {target}"
    return named + (f" --draft {draft}" if draft else "")


def titles_of(confirmation: Confirmation) -> dict[str, str]:
    """Names for a person of the arms whose prompts are shown: the winner, the others, plain decoding."""
    return {**{one.name: one.label for one in confirmation.confirmed}, AR: "AR (engine)"}


def tokenizer_of(backend: StudyBackend) -> PreTrainedTokenizerBase | None:
    """The target's; None of a recording alone."""
    return backend.confirming.backend.tokenizer
