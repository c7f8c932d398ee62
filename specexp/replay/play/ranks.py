"""The draft model's rank of the output's next token, at every position of a recording.

A fixed tree of a draft model's ranked candidates decides nothing at run time, so its steps can be read off one table.
Below any root the accepted path follows the ranks of the output's own tokens as far as the tree has them. Thousands of
trees are evaluated in a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexp.core.latency import LatencyProfile
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.trie import NotRecordedError

MISSED = -1
"""Rank of a token that is not among the recorded candidates."""


@dataclass(frozen=True)
class StaticCounts:
    """Counts of a tree on every turn: arrays ``[turns]``. A step is a target pass; ``drafted`` counts nodes."""

    steps: NDArray[np.int64]
    accepted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    drafted: NDArray[np.int64]
    draft_passes: NDArray[np.int64]
    seconds: NDArray[np.float64] | None

    @property
    def tokens_per_step(self) -> float:
        """All tokens / all steps."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def tokens_per_second(self) -> float:
        """All tokens / all seconds."""
        assert self.seconds is not None
        return float(self.tokens.sum() / self.seconds.sum())


class RankTable:
    """Ranks of the output's tokens among a draft model's candidates, which do not depend on the path to a position.

    Args:
        turns: Turns of a recording, those of a conversation one after the other; raises NotRecordedError if one has no
            candidates after one of its tokens.
        max_new_tokens: Tokens per turn, at most as many as were recorded.
        context_limit: Tokens that the target's context holds.
    """

    def __init__(self, turns: Sequence[RecordedTurn], max_new_tokens: int, context_limit: int) -> None:
        self.turns = turns
        self.sizes = [min(turn.answer.size, max_new_tokens) for turn in turns]  # tokens of each turn
        # [positions] tokens in the cache
        self.prefixes = np.concatenate(
            [turn.prompt.size - 1 + np.arange(size) for turn, size in zip(turns, self.sizes, strict=True)]
        )
        found: list[int] = []
        self.width = 2**31  # candidates that are known at every position
        room = []
        for turn, size in zip(turns, self.sizes, strict=True):
            limit = min(max_new_tokens, context_limit - turn.prompt.size)
            for node, token in enumerate(turn.answer[:size].tolist()):
                candidates, _ = turn.trie.draft[node]
                if node + 1 >= limit:  # the last token wanted is the target's: nothing is drafted for it
                    found.append(MISSED)
                    continue
                if candidates.size == 0:
                    raise NotRecordedError(
                        f"prompt {turn.prompt_id!r}: the draft's candidates after {node} new tokens were not recorded; "
                        "record with a draft model and a coverage of at least a Chain"
                    )
                self.width = min(self.width, candidates.size)
                place = np.flatnonzero(candidates == token)
                found.append(int(place[0]) if place.size else MISSED)
            room.append(limit - 1 - np.arange(size))
        # [positions] ranks of all turns, concatenated; MISSED if the token is not a candidate
        self.ranks = np.array(found, dtype=np.int64)
        self._turn = np.repeat(np.arange(len(turns)), self.sizes)
        self._first = np.zeros(self.ranks.size, dtype=np.bool_)
        self._first[np.cumsum([0, *self.sizes[:-1]])] = True
        self.room = np.concatenate(room)  # [positions] depth of the deepest useful node
        # [positions] tokens to come
        self.left = np.concatenate([size - np.arange(size) for size in self.sizes])

    @property
    def positions(self) -> int:
        """Number of possible roots, visited by a run or not."""
        return int(self.prefixes.size)

    def plain_seconds(self, latency: LatencyProfile) -> NDArray[np.float64]:
        """Return ``[turns]`` seconds of plain decoding."""
        lengths = zip(self.turns, self.sizes, strict=True)
        return np.array([latency.plain_seconds(turn.prompt.size, size) for turn, size in lengths])

    def hits(self, max_depth: int) -> Counter[RankPath]:
        """Return the number of positions at which each rank path leads along the output.

        A path is hit at least as often as its continuations, so the most-hit paths always form a tree.
        """
        ranks = np.where(self.ranks < self.width, self.ranks, MISSED).tolist()
        ends = np.minimum(np.minimum(self.room, self.left), max_depth).tolist()
        found: Counter[RankPath] = Counter()
        for root, end in enumerate(ends):
            path = ranks[root : root + end]
            if MISSED in path:
                path = path[: path.index(MISSED)]
            found.update(tuple(path[:depth]) for depth in range(1, len(path) + 1))
        return found

    def matches(self, shape: TreeShape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ``[positions]`` accepted nodes below every root and the last one's row, without the length limit.

        Raises NotRecordedError if the tree has a higher rank than was recorded.
        """
        highest = int(shape.ranks.max(initial=-1))
        if highest >= self.width:
            raise NotRecordedError(
                f"the tree has {highest + 1} candidates a node and {self.width} were recorded: record with "
                f"record.candidates of at least {highest + 1}"
            )
        # The node after (node, rank). MISSED is -1, so it means the last column, which leads nowhere.
        below = np.zeros((shape.num_nodes + 1, highest + 2), dtype=np.int64)
        below[shape.parents[1:], shape.ranks[1:]] = np.arange(1, shape.num_nodes + 1)
        accepted = np.zeros(self.positions, dtype=np.int64)
        last = np.zeros(self.positions, dtype=np.int64)
        ranks = np.where(self.ranks > highest, MISSED, self.ranks)
        roots, node = np.arange(self.positions), np.zeros(self.positions, dtype=np.int64)
        for depth in range(shape.max_depth):
            if depth:
                inside = depth < self.left[roots]
                roots, node = roots[inside], node[inside]
            node = below[node, ranks[roots + depth]]
            alive = np.flatnonzero(node)
            roots, node = roots[alive], node[alive]
            if roots.size == 0:
                break
            accepted[roots] = depth + 1
            last[roots] = node
        return accepted, last

    def evaluate(self, shape: TreeShape, latency: LatencyProfile | None = None) -> StaticCounts:
        """Return the counts of a tree; seconds need costs of the composition (:meth:`LatencyProfile.of`)."""
        matched, last = self.matches(shape)
        accepted = np.minimum(matched, np.minimum(self.room, self.left))
        new = np.minimum(accepted + 1, self.left)
        roots = self._visited(new)
        cuts = np.minimum(self.room[roots], shape.max_depth)  # depth of a tree, cut near the length limit
        # rows of a tree cut at a depth
        sizes = np.bincount(shape.depths, minlength=shape.max_depth + 1).cumsum()
        nodes = sizes[cuts] - 1
        turn = self._turn[roots]
        seconds: NDArray[np.float64] | None = None
        if latency is not None:
            leaf = np.ones(shape.parents.size, dtype=np.bool_)
            leaf[shape.parents[1:]] = False
            ends = (accepted[roots] > 0) & ((accepted[roots] == cuts) | leaf[last[roots]])
            inner = np.bincount(shape.depths[~leaf], minlength=shape.max_depth)  # rows of each depth
            spent = self._seconds(latency, roots, sizes, inner, cuts, new[roots], ends)
            seconds = np.bincount(turn, spent, minlength=len(self.turns)).astype(np.float64)

        def by_turn(values: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.bincount(turn, values, minlength=len(self.turns)).astype(np.int64)

        return StaticCounts(
            steps=np.bincount(turn, minlength=len(self.turns)),
            accepted=by_turn(accepted[roots]),
            tokens=by_turn(new[roots]),
            drafted=by_turn(nodes),
            draft_passes=by_turn(cuts),
            seconds=seconds,
        )

    def _visited(self, new: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the roots that the runs visit."""
        following = (np.arange(new.size) + new).tolist()
        roots: list[int] = []
        at, size = 0, new.size
        while at < size:  # the end of a turn is the start of the next
            roots.append(at)
            at = following[at]
        return np.array(roots)

    def _seconds(
        self,
        latency: LatencyProfile,
        roots: NDArray[np.int64],  # [steps] positions at which the steps begin
        sizes: NDArray[np.int64],  # [depth + 1] rows of the tree cut at each depth
        inner: NDArray[np.int64],  # [depth] rows of each depth with children, which are one draft pass
        cuts: NDArray[np.int64],  # [steps] depth at which each step's tree is cut
        new: NDArray[np.int64],  # [steps] tokens
        ends: NDArray[np.bool_],  # [steps] whether the last accepted node was a leaf, not fed to the draft
    ) -> NDArray[np.float64]:
        """Return ``[steps]`` seconds."""
        prefix = self.prefixes[roots]
        near, far = int(prefix.min()), int(prefix.max())
        beyond = (prefix - near) / max(far - near, 1)

        def line(seconds: Callable[[int, int], float], tokens: int) -> NDArray[np.float64]:
            # Seconds grow linearly with the prefix.
            low = seconds(tokens, near)
            return np.array((low, seconds(tokens, far) - low))

        nodes = sizes - 1
        by_cut = np.array([line(latency.target_seconds, size) for size in sizes.tolist()])  # [depth + 1, 2]
        by_cut[:, 0] += np.where(nodes > 0, latency.step_ms + latency.node_ms * nodes, 0.0) / 1e3
        if inner.size:
            later = [line(latency.draft_seconds, rows) for rows in inner[1:].tolist()]
            by_cut[2:] += np.cumsum(np.array(later).reshape(-1, 2), axis=0)
        spent = by_cut[cuts, 0] + by_cut[cuts, 1] * beyond + latency.token_ms * new / 1e3
        if inner.size:
            # The first pass feeds the root and, if the step before ended with an accepted leaf, this leaf too.
            pending = np.zeros(roots.size, dtype=np.int64)
            pending[1:] = ends[:-1]
            pending[self._first[roots]] = 0
            first = np.array([line(latency.draft_seconds, tokens) for tokens in (1, 2)])
            spent += np.where(cuts > 0, first[pending, 0] + first[pending, 1] * beyond, 0.0)
        return np.asarray(spent)
