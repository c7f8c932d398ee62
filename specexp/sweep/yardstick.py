"""A replayed study's winner beside the best static trees known without a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import write_whole
from specexp.builders import StaticTree
from specexp.controllers import Fixed
from specexp.core.parts import Parts
from specexp.replay.play.fidelity import is_plain_static, scoring_of

if TYPE_CHECKING:
    from specexp.replay.play.ranks import OutputRanks
    from specexp.replay.play.yardstick import Yardstick
    from specexp.sweep.confirm import Confirmed
    from specexp.sweep.replay_bench import ReplayBench

MAX_NODES = 64
MAX_DEPTH = 12
"""Of the yardstick's trees, where the winner is no larger and no deeper."""


def yardstick_of(resolved: Mapping[str, Any], bench: ReplayBench) -> Yardstick | None:
    """The yardstick of a study's prompts; None where its winner is no fixed tree, and of drafters that have none: those
    that learned before they were measured, and several with a draft model among them.

    Args:
        resolved: parts of the winner.
        bench: that searched.
    """
    from specexp.replay.play.teacher_forcing import TeacherForcing
    from specexp.replay.play.yardstick import yardstick

    parts = bench.compose(resolved).parts
    if not isinstance(parts.builder, StaticTree):
        return None
    shape = parts.builder.shape
    max_nodes, max_depth = max(MAX_NODES, shape.num_nodes), max(MAX_DEPTH, shape.max_depth)
    if is_plain_static(parts):
        ranks: OutputRanks = bench.table
    elif bench.lessons or not _is_fixed(parts) or scoring_of(parts.drafter) is not None:
        return None
    else:
        ranks = TeacherForcing(bench.recording, parts, bench.turns, bench.generation.max_new_tokens)
    return yardstick(ranks, bench.profile, max_nodes=max_nodes, max_depth=max_depth, composition=parts.label)


def _is_fixed(parts: Parts) -> bool:
    """Whether no controller changes the tree."""
    controller = parts.controller
    return controller is None or (isinstance(controller, Fixed) and controller.changes_nothing)


def write_yardstick(
    found: Yardstick, said: Sequence[str], winner: Confirmed, goodput: float, folder: Path
) -> Path:
    """Write ``yardstick.md`` and ``goodput_budget.png``; the picture's path."""
    from specexp.sweep.goodput_picture import SearchedTree, draw_goodput

    write_whole(folder / "yardstick.md", "".join(f"{sentence}  \n" for sentence in said))
    path = folder / "goodput_budget.png"
    searched = SearchedTree(winner.label, winner.attributes["nodes"], goodput)
    draw_goodput(found, searched).savefig(path)
    return path
