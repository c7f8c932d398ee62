"""Pictures and charts of a study: the charts of its page, and its winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState

from specexp.bench.drawings import draw_time_line, draw_tree
from specexp.bench.page.charts import importances_chart, ratios_chart, search_chart
from specexp.bench.page.sections import folding_tree
from specexp.bench.publish import Report
from specexp.config.sweep import Sweep
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirmation import AR, BASELINES, Confirmation
from specexp.sweep.trials import trial_row

if TYPE_CHECKING:
    from specexp.data import Prompt

SECONDS_SHOWN = 0.5
"""Length of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""


def charts_of(
    study: optuna.Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Return the charts of a study's page: the confirmation prompt by prompt, and the search."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    searched = optuna.create_study(directions=study.directions)
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    # Known configurations outside the space have no parameters.
    searched.add_trials([one for one in complete if one.params and "duplicate_of" not in one.user_attrs])
    try:
        shares = optuna.importance.get_param_importances(searched, target=lambda trial: trial.values[0])
    except (ValueError, RuntimeError, ZeroDivisionError):  # too few trials
        shares = {}
    found = {
        "confirmation": ratios_chart(confirmation.records, AR, titles, texts),
        "search": search_chart(rows, choice),
        "importances": importances_chart(shares, len(searched.get_trials(deepcopy=False))),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def pictures_of_winner(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Report:
    """Draw the winner's tree and its time line in the confirmation.

    A tree under several sequences was not observed, so it decodes ``prompts`` once more.
    """
    winner = confirmation.winner
    figures, fragments, files = dict[str, Any](), dict[str, str](), dict[str, str]()
    if "rank_paths" in winner.attributes:
        shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
        rates = _acceptance_rates(confirmation, shape, prompts)
        figures["tree"] = draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR")
        fragments["tree"] = folding_tree(shape.rank_paths[1:], rates, f"The tree of {winner.label}")
    if lines := confirmation.watch.time_lines:
        from specexp.scheduling.timeline import chrome_trace

        shown = {BASELINES[AR]: lines[AR], winner.label: lines[winner.name]}
        title = f"prompt {prompts[0].prompt_id}: {winner.over_ar} over AR"
        figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
        files["time_line.json"] = chrome_trace(shown)
    return Report(figures=figures, files=files, fragments=fragments)


def _acceptance_rates(
    confirmation: Confirmation, shape: TreeShape, prompts: Sequence[Prompt]
) -> dict[RankPath, float]:
    winner = confirmation.winner
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is None:
        return {}
    if not counter.steps:
        for prompt in prompts:
            confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
    return {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
