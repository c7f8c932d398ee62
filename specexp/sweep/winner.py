"""Pictures of a study's winner: its tree with what was accepted, and who did what when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.bench.publish import Report
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirm import AR, Confirmation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.data import Prompt

SECONDS_SHOWN = 0.5
"""Of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""


def pictures_of_winner(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Report:
    """Pictures of the winner, from what was seen while it was confirmed.

    Args:
        confirmation: What was measured.
        prompts: Its prompts; a tree under several sequences decoded together is counted on them once more.
    """
    figures: dict[str, Figure] = {}
    if "rank_paths" in confirmation.winner.attributes:
        figures["tree"] = _draw_tree(confirmation, prompts)
    if not confirmation.watch.time_lines:
        return Report(figures=figures)
    from specexp.bench.time_line_picture import draw_time_line
    from specexp.scheduling.trace import chrome_trace

    winner, lines = confirmation.winner, confirmation.watch.time_lines
    shown = {"AR (engine)": lines[AR], winner.label: lines[winner.name]}
    title = f"prompt {prompts[0].prompt_id}: {winner.over_ar} over AR"
    figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
    return Report(figures=figures, files={"time_line.json": chrome_trace(shown)})


def _draw_tree(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Figure:
    """The tree, with the share of steps in which each node was accepted."""
    from specexp.bench.tree_picture import draw_tree

    winner = confirmation.winner
    shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
    rates: dict[RankPath, float] = {}
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is not None:
        if not counter.steps:
            for prompt in prompts:
                confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
        rates = {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
    return draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR")
