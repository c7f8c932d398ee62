"""The report page of a sweep: charts, the winner's tree and time line, and the text that later commands print again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import optuna
from optuna.trial import TrialState
from rich.console import Console

from specexp.config.sweep import Sweep
from specexp.core.tree import RankPath, TreeShape
from specexp.data import Prompt
from specexp.report.pictures import draw_time_line, tree_lines
from specexp.report.publish import Report
from specexp.report.sections import folding_tree, importances_chart, ratios_chart, search_chart
from specexp.report.table import Table
from specexp.scheduling.timeline import chrome_trace
from specexp.sweep.confirmation import BASELINES, Confirmation
from specexp.sweep.trials import trial_row
from specexp.tracking.names import PLAIN

FEWEST_TRIALS = 20
"""Importances of fewer trials are mostly noise and are not shown."""
SECONDS_SHOWN = 0.5
"""Seconds shown in the picture of a time line; more would hide single passes. The Perfetto file has the whole run."""


def text_of(shown: Table, sentences: Sequence[str], width: int) -> str:
    """Return a table and the sentences below it as they are printed."""
    file = StringIO()
    console = Console(file=file, width=width, highlight=False, force_jupyter=False, emoji=False)
    console.print(shown.to_rich())
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    return file.getvalue()


def charts_of(
    study: optuna.Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Return the charts of a study's page: the confirmation prompt by prompt, the search, and parameter importances."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    searched = optuna.create_study(directions=study.directions)
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    # Known configurations outside the space have no parameters.
    searched.add_trials([one for one in complete if one.params and "duplicate_of" not in one.user_attrs])
    enough = len(searched.get_trials(deepcopy=False)) >= FEWEST_TRIALS
    try:
        importances = optuna.importance.get_param_importances
        shares = importances(searched, target=lambda trial: trial.values[0]) if enough else {}
    except (ValueError, RuntimeError, ZeroDivisionError):  # too few trials
        shares = {}
    found = {
        "confirmation": ratios_chart(confirmation.records, PLAIN, titles, texts),
        "search": search_chart(rows, choice),
        "importances": importances_chart(shares, len(searched.get_trials(deepcopy=False))),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def pictures_of_winner(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Report:
    """Draw the winner's tree, and its time line during the confirmation.

    If several sequences were decoded together, acceptances were not counted, so the winner decodes ``prompts`` again.
    """
    winner = confirmation.winner
    figures = dict[str, Any]()
    fragments = dict[str, str]()
    files = dict[str, str]()
    drawing = ""
    if "rank_paths" in winner.attributes:
        shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
        rates = _acceptance_rates(confirmation, shape, prompts)
        drawing = tree_lines(shape, rates, f"The tree of {winner.label}")
        fragments["tree"] = folding_tree(shape.rank_paths[1:], rates, f"The tree of {winner.label}")
    if lines := confirmation.watch.time_lines:
        shown = {BASELINES[PLAIN]: lines[PLAIN], winner.label: lines[winner.name]}
        title = f"prompt {prompts[0].prompt_id}: {winner.over_plain} over plain decoding"
        figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
        files["time_line.json"] = chrome_trace(shown)
    return Report(figures=figures, files=files, fragments=fragments, drawing=drawing)


def _acceptance_rates(confirmation: Confirmation, shape: TreeShape, prompts: Sequence[Prompt]) -> dict[RankPath, float]:
    winner = confirmation.winner
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is None:
        return {}
    if not counter.steps:
        for prompt in prompts:
            confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
    return {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
