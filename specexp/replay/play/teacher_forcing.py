"""Ranks of drafters without a model, by teacher forcing: at every position the drafter is asked along the output.

Where candidates come from what was learned so far, ranks at one position depend on the path there and on everything
before. So the real drafter is led through the output token by token: it learns what the target said of each, and is
asked again and again which of its candidates comes next. What it would have learned from drafted tokens beside the
output depends on the tree and is left out: the paths are those of a run only for drafters that learn nothing from them
(Token Recycling's ``accepted`` rule, prompt lookup), and an approximation for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from specexp.builders import StaticTree
from specexp.core.dialogue import Build, Plan, Request
from specexp.core.drafter import Drafter
from specexp.core.generation import GenerationResult
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE, RankPath, TreeShape, root_tree
from specexp.core.tree_builder import TreeBuilder
from specexp.replay.format.errors import RecordingError
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import Recording
from specexp.replay.play.fidelity import Grade, fidelity, scoring_of
from specexp.replay.play.player import Player
from specexp.replay.play.ranks import OutputRanks, StaticCounts
from specexp.replay.play.verification import RecordedTarget

if TYPE_CHECKING:
    from specexp.core.decode import OutcomeObserver

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
"""Trees that are replayed for a curve: stepping through a recording is not as cheap as reading off ranks."""


class TeacherForcing(OutputRanks):
    """Ranks among the candidates of a drafter without a draft model.

    Args:
        recording: Holds the target's answers that the drafter learns from.
        parts: Parts whose drafter is asked, from its initial state on; the builder does not matter.
        turns: Turns of the recording, those of a conversation one after the other.
        max_new_tokens: Tokens per turn, at most as many as were recorded.

    Raises:
        RecordingError: The drafter has a draft model, or learns from what was not recorded.
    """

    drafts = False
    curve_sizes = SIZES

    def __init__(
        self, recording: Recording, parts: Parts, turns: Sequence[RecordedTurn], max_new_tokens: int
    ) -> None:
        super().__init__(turns, max_new_tokens)
        drafter = parts.drafter
        if drafter is None:
            raise RecordingError("plain decoding has no candidates to rank: give a drafter")
        if scoring_of(drafter) is not None:
            raise RecordingError(
                f"{type(drafter).__name__} runs a draft model, whose ranks a table has (specexp.replay.play.ranks); "
                "only drafters without one are asked position by position"
            )
        drafter.check_vocabulary(recording.manifest.vocab_size)
        self.recording = recording
        self.drafter: Drafter = drafter
        self.verifier = parts.verifier
        known = fidelity(Parts(drafter, StaticTree([[0]]), self.verifier))
        self.approximate = known.why if known.grade is Grade.APPROXIMATE else ""

    @override
    def paths(self, max_depth: int) -> list[RankPath | None]:
        builder = _AlongOutput(self.turns, self.max_new_tokens, max_depth, self.drafter.max_candidates)
        for _ in self._play(builder, builder.observe):
            pass
        return builder.paths

    @override
    def evaluate(self, shape: TreeShape, latency: LatencyProfile | None = None) -> StaticCounts:
        spent: list[float] = []
        builder = StaticTree([list(path) for path in shape.rank_paths[1:]])
        clock = (lambda outcome: 0.0) if latency is None else latency.outcome_seconds
        counts = list(self._play(builder, lambda outcome: spent.append(clock(outcome))))
        steps = np.array([count.steps for count in counts])
        ends = np.cumsum(steps)[:-1]
        return StaticCounts(
            steps=steps,
            accepted=np.array([count.accepted_drafts for count in counts]),
            tokens=np.array(self.sizes),
            drafted=np.array([count.drafted_nodes for count in counts]),
            draft_passes=np.zeros(len(counts), dtype=np.int64),
            seconds=None if latency is None else np.array([part.sum() for part in np.split(spent, ends)]),
        )

    def _play(self, builder: TreeBuilder, observe: OutcomeObserver) -> Iterator[GenerationResult]:
        """Replay all conversations with a builder, the drafter from its initial state on."""
        manifest = self.recording.manifest
        self.drafter.reset()
        lenient = bool(self.approximate)
        player = Player(
            Parts(self.drafter, builder, self.verifier),
            None,
            RecordedTarget(manifest.context_limits["target"]),
            manifest.made_of["generation"]["seed"],
            lenient,
            self.recording.fallback if lenient else None,
        )
        for (prompt_id, sample), turns in groupby(self.turns, key=lambda turn: (turn.prompt_id, turn.sample)):
            name = f"{prompt_id}#{sample}"
            yield from player.play(list(turns), self.max_new_tokens, name, observers=(observe,))


class _AlongOutput(TreeBuilder):
    """Asks along the output and drafts nothing, so that a run comes by every position.

    Attributes:
        paths: Rank paths found so far.
    """

    def __init__(
        self, turns: Sequence[RecordedTurn], max_new_tokens: int, max_depth: int, width: int
    ) -> None:
        self.paths: list[RankPath | None] = []
        self._max_depth = max_depth
        self._width = width
        answers = (turn.answer[:max_new_tokens].tolist() for turn in turns)
        self._coming = [answer[at:] for answer in answers for at in range(len(answer))]
        self._found: RankPath | None = None

    @property
    @override
    def max_nodes(self) -> int:
        return self._max_depth

    @property
    @override
    def max_candidates(self) -> int:
        return self._width

    def observe(self, outcome: Outcome) -> None:
        """Go on by one position; where no draft was asked for there is no path."""
        self.paths.append(self._found)
        self._found = None

    @override
    def build(self, root: int, plan: Plan) -> Build:
        depth = self._max_depth if plan.max_depth is None else min(self._max_depth, plan.max_depth)
        following = self._coming[len(self.paths)][:depth]
        tokens = np.full(len(following) + 1, NO_CANDIDATE, dtype=np.int64)
        tokens[0] = root
        parents = np.arange(-1, len(following))
        ranks = np.full(tokens.size, -1, dtype=np.int64)
        path: list[int] = []
        for row, token in enumerate(following):
            answer = yield Request(tokens, parents, ranks, np.array([row]), self._width)
            found = np.empty(0, dtype=np.int64) if answer is None else answer.tokens[0]
            place = np.flatnonzero(found == token)
            if place.size == 0:
                break
            path.append(int(place[0]))
            tokens[row + 1], ranks[row + 1] = token, path[-1]
        self._found = tuple(path)
        return root_tree(root)
