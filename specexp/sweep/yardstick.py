"""The best static trees known without a search, for the prompts of a replayed study."""

from __future__ import annotations

from collections.abc import Sequence

from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import Recording
from specexp.replay.play.fidelity import fixed_shape_of, is_plain_static, scoring_of
from specexp.replay.play.ranks import OutputRanks, RankTable
from specexp.replay.play.teacher_forcing import TeacherForcing
from specexp.replay.play.yardstick import Yardstick, yardstick

MAX_NODES = 64
MAX_DEPTH = 12
"""Of the yardstick's trees, where the winner is no larger and no deeper."""


def yardstick_of(
    parts: Parts,
    recording: Recording,
    turns: Sequence[RecordedTurn],
    max_new_tokens: int,
    latency: LatencyProfile,
    *,
    table: RankTable | None = None,
    warm_started: bool = False,
) -> Yardstick | None:
    """The yardstick of a study's prompts; None where its winner is no fixed tree, and of drafters that have none: those
    that learned before they were measured, and several with a draft model among them.

    Args:
        parts: Parts of the winner.
        recording: Who answered.
        turns: Recorded turns of the study's prompts.
        max_new_tokens: Most tokens of a turn.
        latency: What steps cost.
        table: Ranks of a draft model on these turns, where they are known already.
        warm_started: Whether the winner learned from other prompts before.
    """
    shape = fixed_shape_of(parts.builder)
    if shape is None:
        return None
    ranks: OutputRanks
    if is_plain_static(parts):
        ranks = table or RankTable(turns, max_new_tokens, recording.manifest.context_limits["target"])
    elif warm_started or not parts.controller.changes_nothing or scoring_of(parts.drafter) is not None:
        return None
    else:
        ranks = TeacherForcing(recording, parts, turns, max_new_tokens)
    return yardstick(
        ranks,
        latency,
        max_nodes=max(MAX_NODES, shape.num_nodes),
        max_depth=max(MAX_DEPTH, shape.max_depth),
        composition=parts.label,
    )
