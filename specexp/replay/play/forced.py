"""Rank paths of drafters without a model, by teacher forcing: at every position the drafter is asked along the output.

Where candidates come from what was learned so far, ranks at one position depend on the path there and on everything
before. So the real drafter is led through the output token by token: it learns what the target said of each, and is
asked again and again which of its candidates comes next. What it would have learned from drafted tokens beside the
output depends on the tree and is left out: the paths are those of a run only for drafters that learn nothing from them
(Token Recycling's ``accepted`` rule, prompt lookup), and an approximation for all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specexp.builders import StaticTree, TreeBuilder
from specexp.controllers import Fixed, Plan
from specexp.core.builder import Build
from specexp.core.composition import Parts
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.sequence import Strategy
from specexp.core.tree import NO_CANDIDATE, RankPath, TreeShape, root_tree
from specexp.drafters import Drafter, Request
from specexp.replay.format.errors import RecordingError
from specexp.replay.format.recording import Recording
from specexp.replay.format.turn import RecordedTurn
from specexp.replay.play.fidelity import Grade, fidelity, scoring_of
from specexp.replay.play.player import Player
from specexp.replay.play.rank_paths import RankPathHits
from specexp.replay.play.verification import RecordedTarget
from specexp.replay.play.yardstick import Yardstick, measure
from specexp.verifiers import Greedy

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
"""Trees that are replayed for the curve: stepping through a recording is not as cheap as reading off ranks."""

Conversations = Mapping[tuple[str, int], Sequence[RecordedTurn]]
"""By prompt id and sample, as :attr:`specexp.replay.format.recording.Recording.turns`."""


def rank_paths(
    recording: Recording,
    parts: Parts,
    *,
    max_depth: int,
    max_new_tokens: int,
    conversations: Conversations | None = None,
) -> list[RankPath]:
    """The longest rank path along the output at every position of all turns, ``()`` where no candidate is its token.

    Args:
        recording: with the target's answers that the drafter learns from.
        parts: whose drafter is asked, from its initial state on; the builder does not matter.
        max_depth: longest path.
        max_new_tokens: per turn, at most as many as were recorded.
        conversations: of the recording; all if None.

    Raises:
        RecordingError: the drafter has a draft model, or learns from what was not recorded.
    """
    drafter = _without_model(parts)
    builder = _AlongOutput(max_depth, drafter.max_candidates)
    player = _player(recording, parts, builder)
    for (prompt_id, sample), turns in (conversations or recording.turns).items():
        builder.follow(turns, max_new_tokens)
        player.play(turns, max_new_tokens, f"{prompt_id}#{sample}", observers=(builder.observe,))
    return builder.paths


def forced_yardstick(
    recording: Recording,
    parts: Parts,
    latency: LatencyProfile,
    *,
    max_nodes: int,
    max_depth: int,
    max_new_tokens: int,
    conversations: Conversations | None = None,
    sizes: Sequence[int] = SIZES,
) -> Yardstick:
    """The yardstick of a drafter without a draft model; as good as its :func:`rank_paths` are.

    Args:
        recording: with the target's answers that the drafter learns from.
        parts: whose drafter and verifier are replayed, from the drafter's initial state on.
        latency: what steps cost, with the overheads of all compositions if it states them.
        max_nodes: most nodes of a tree.
        max_depth: deepest node.
        max_new_tokens: per turn, at most as many as were recorded.
        conversations: of the recording; all if None.
        sizes: of the trees that are replayed for the curve.

    Raises:
        RecordingError: as :func:`rank_paths`.
        ValueError: no candidate of the drafter is ever the output's token.
    """
    chosen = conversations or recording.turns
    paths = rank_paths(
        recording, parts, max_depth=max_depth, max_new_tokens=max_new_tokens, conversations=chosen
    )
    lengths = [
        (turn.prompt.size, min(turn.answer.size, max_new_tokens))
        for turns in chosen.values()
        for turn in turns
    ]
    prefix = float(np.mean(np.concatenate([before - 1 + np.arange(tokens) for before, tokens in lengths])))
    known = fidelity(Parts(parts.drafter, StaticTree([[0]]), parts.verifier, Fixed()))
    priced = latency.of(parts.drafter, StaticTree([[0]]))

    def replay(shape: TreeShape) -> _Played:
        builder = StaticTree([list(path) for path in shape.rank_paths[1:]])
        player = _player(recording, parts, builder)
        spent: list[float] = []

        def note(outcome: Outcome) -> None:
            spent.append(priced.outcome_seconds(outcome))

        for (prompt_id, sample), turns in chosen.items():
            player.play(turns, max_new_tokens, f"{prompt_id}#{sample}", observers=(note,))
        return _Played(len(paths) / len(spent), len(paths) / sum(spent))

    return measure(
        RankPathHits.of_paths(paths, prefix),
        priced,
        replay,
        max_nodes=max_nodes,
        max_depth=max_depth,
        plain_goodput=len(paths) / sum(latency.plain_seconds(*length) for length in lengths),
        drafts=False,
        sizes=sizes,
        approximate=known.why if known.grade is Grade.APPROXIMATE else "",
    )


@dataclass(frozen=True)
class _Played:
    tokens_per_step: float
    tokens_per_second: float


class _AlongOutput(TreeBuilder):
    """Asks along the output and drafts nothing, so that a run comes by every position.

    Attributes:
        paths: found so far.
    """

    def __init__(self, max_depth: int, width: int) -> None:
        self.paths: list[RankPath] = []
        self._max_depth = max_depth
        self._width = width
        self._coming: list[list[int]] = []  # of each turn, the tokens still to come
        self._asked = False

    @property
    def max_nodes(self) -> int:
        """Of the path that is asked along."""
        return self._max_depth

    @property
    def max_candidates(self) -> int:
        """As many as the drafter has."""
        return self._width

    def follow(self, turns: Sequence[RecordedTurn], max_new_tokens: int) -> None:
        """Be led along these turns next."""
        self._coming = [turn.answer[:max_new_tokens].tolist() for turn in turns]
        self._asked = False

    def observe(self, outcome: Outcome) -> None:
        """One position further; where no draft was asked for there is no path."""
        if not self._asked:
            self.paths.append(())
        self._asked = False
        self._coming[0].pop(0)
        if not self._coming[0]:
            self._coming.pop(0)

    def build(self, root: int, plan: Plan) -> Build:
        """A request a depth, as long as a candidate is the output's next token."""
        depth = self._max_depth if plan.max_depth is None else min(self._max_depth, plan.max_depth)
        following = self._coming[0][:depth]
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
        self.paths.append(tuple(path))
        self._asked = True
        return root_tree(root)


def _without_model(parts: Parts) -> Drafter:
    drafter = parts.drafter
    if drafter is None:
        raise RecordingError("plain decoding has no candidates to rank: give a drafter")
    if scoring_of(drafter) is not None:
        raise RecordingError(
            f"{type(drafter).__name__} runs a draft model, whose ranks a table has (specexp.replay.play.yardstick); "
            "only drafters without one are asked position by position"
        )
    return drafter


def _player(recording: Recording, parts: Parts, builder: TreeBuilder) -> Player:
    drafter = _without_model(parts)
    manifest = recording.manifest
    drafter.check_vocabulary(manifest.vocab_size)
    drafter.reset()
    strategy = Strategy(drafter, builder, parts.verifier or Greedy(), Fixed())
    lenient = fidelity(strategy.parts).grade is Grade.APPROXIMATE
    return Player(
        strategy,
        None,
        RecordedTarget(manifest.context_limits["target"]),
        manifest.made_of["generation"]["seed"],
        lenient,
        recording.estimates if lenient else None,
    )
