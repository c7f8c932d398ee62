"""Pictures of a study's winner: its tree with what was accepted, and who did what when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specexp.bench.publish import Report
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirm import AR, Confirmation

if TYPE_CHECKING:
    from specexp.data import Prompt

SECONDS_SHOWN = 0.5
"""Of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""


def pictures_of_winner(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Report:
    """Pictures of the winner, from what was seen while it was confirmed.

    Args:
        confirmation: What was measured.
        prompts: Its prompts; a tree under several sequences decoded together is counted on them once more.
    """
    winner, figures, fragments = confirmation.winner, dict[str, Any](), dict[str, str]()
    if "rank_paths" in winner.attributes:
        from specexp.bench.drawings import draw_tree
        from specexp.bench.page.sections import folding_tree

        shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
        rates = _rates(confirmation, shape, prompts)
        figures["tree"] = draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR")
        fragments["tree"] = folding_tree(shape.rank_paths[1:], rates, f"The tree of {winner.label}")
    if not confirmation.watch.time_lines:
        return Report(figures=figures, fragments=fragments)
    from specexp.bench.drawings import draw_time_line
    from specexp.scheduling.timeline import chrome_trace

    lines = confirmation.watch.time_lines
    shown = {"AR (engine)": lines[AR], winner.label: lines[winner.name]}
    title = f"prompt {prompts[0].prompt_id}: {winner.over_ar} over AR"
    figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
    return Report(figures=figures, files={"time_line.json": chrome_trace(shown)}, fragments=fragments)


def _rates(confirmation: Confirmation, shape: TreeShape, prompts: Sequence[Prompt]) -> dict[RankPath, float]:
    """Share of the steps in which each node of the winner's tree was accepted; empty where it was not counted."""
    winner = confirmation.winner
    rates: dict[RankPath, float] = {}
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is not None:
        if not counter.steps:
            for prompt in prompts:
                confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
        rates = {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
    return rates
