"""Evaluates fixed trees from the draft model's rank of the output token at every position of a recording.

A fixed tree of ranked candidates involves no decisions at run time, so a single table of ranks determines its steps.
From any root, the accepted path follows the ranks of the output tokens for as long as the tree contains them. Thousands
of trees can be evaluated per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexp.core.latency import LatencyProfile
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.format.recording import RecordedTurn
from specexp.replay.format.trie import NotRecordedError

MISSED = -1
"""The rank of a token that is not among the recorded candidates."""


@dataclass(frozen=True)
class StaticCounts:
    """Per-turn counts for one tree, as arrays ``[turns]``. Each step is one target pass; ``drafted`` counts nodes."""

    steps: NDArray[np.int64]
    accepted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    drafted: NDArray[np.int64]
    draft_passes: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @property
    def tokens_per_step(self) -> float:
        """Total tokens divided by total steps."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def tokens_per_second(self) -> float:
        """Total tokens divided by total seconds."""
        return float(self.tokens.sum() / self.seconds.sum())


class RankTable:
    """The rank of each output token among the draft model's candidates at its position.

    The turns of a conversation must be in order, and ``max_new_tokens`` (per turn) at most the recorded limit. Raises
    NotRecordedError if the candidates after an output token are missing.
    """

    def __init__(self, turns: Sequence[RecordedTurn], max_new_tokens: int, context_limit: int) -> None:
        self.turns = turns
        self.sizes = [min(turn.answer.size, max_new_tokens) for turn in turns]  # output tokens of each turn
        # [positions] tokens in the cache
        self.prefixes = np.concatenate(
            [turn.prompt.size - 1 + np.arange(size) for turn, size in zip(turns, self.sizes, strict=True)]
        )
        found: list[int] = []
        self.width = 2**31  # number of candidates recorded at every position
        room = []
        for turn, size in zip(turns, self.sizes, strict=True):
            limit = min(max_new_tokens, context_limit - turn.prompt.size)
            for node, token in enumerate(turn.answer[:size].tolist()):
                candidates, _ = turn.trie.draft[node]
                if node + 1 >= limit:  # the target supplies the last token, so it is not drafted
                    found.append(MISSED)
                    continue
                if candidates.size == 0:
                    raise NotRecordedError(
                        f"prompt {turn.prompt_id!r}: the draft's candidates after {node} new tokens were not recorded; "
                        "record with a draft model and a coverage such as Chain"
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
        # [positions] output tokens still to come
        self.left = np.concatenate([size - np.arange(size) for size in self.sizes])

    @property
    def positions(self) -> int:
        """Number of output positions. Each may be the root of a tree."""
        return int(self.prefixes.size)

    def plain_seconds(self, latency: LatencyProfile) -> NDArray[np.float64]:
        """Return the seconds that plain decoding takes for each turn, ``[turns]``."""
        lengths = zip(self.turns, self.sizes, strict=True)
        return np.array([latency.plain_seconds(turn.prompt.size, size) for turn, size in lengths])

    def hits(self, max_depth: int) -> Counter[RankPath]:
        """Return, for each rank path, the number of positions at which it matches the output.

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
        """Return, for each root, the number of accepted nodes and the row of the last one, as arrays ``[positions]``.

        The length limit is ignored. Raises NotRecordedError if the tree has a rank that was not recorded.
        """
        highest = int(shape.ranks.max(initial=-1))
        if highest >= self.width:
            raise NotRecordedError(
                f"the tree has {highest + 1} candidates a node, but {self.width} were recorded: record with "
                f"record.candidates of at least {highest + 1}"
            )
        # [node, rank] -> child, or 0. MISSED is -1, so it indexes the last column, which stays 0.
        below = np.zeros((shape.num_nodes + 1, highest + 2), dtype=np.int64)
        below[shape.parents[1:], shape.ranks[1:]] = np.arange(1, shape.num_nodes + 1)
        accepted = np.zeros(self.positions, dtype=np.int64)
        last = np.zeros(self.positions, dtype=np.int64)
        ranks = np.where(self.ranks > highest, MISSED, self.ranks)
        roots = np.arange(self.positions)
        node = np.zeros(self.positions, dtype=np.int64)
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

    def evaluate(self, shape: TreeShape, latency: LatencyProfile) -> StaticCounts:
        """Replay a fixed tree and return its counts and seconds."""
        matched, last = self.matches(shape)
        accepted = np.minimum(matched, np.minimum(self.room, self.left))
        new = np.minimum(accepted + 1, self.left)
        roots = self._visited(new)
        # depth of each step's tree, cut near the length limit
        cuts = np.minimum(self.room[roots], shape.max_depth)
        # [depth + 1] rows of the tree when cut at each depth
        sizes = np.bincount(shape.depths, minlength=shape.max_depth + 1).cumsum()
        nodes = sizes[cuts] - 1
        turn = self._turn[roots]
        leaf = np.ones(shape.parents.size, dtype=np.bool_)
        leaf[shape.parents[1:]] = False
        ends = (accepted[roots] > 0) & ((accepted[roots] == cuts) | leaf[last[roots]])
        # rows with children, by depth
        inner = np.bincount(shape.depths[~leaf], minlength=shape.max_depth)
        spent = self._seconds(latency, roots, sizes, inner, cuts, new[roots], ends)

        def by_turn(values: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.bincount(turn, values, minlength=len(self.turns)).astype(np.int64)

        return StaticCounts(
            steps=np.bincount(turn, minlength=len(self.turns)),
            accepted=by_turn(accepted[roots]),
            tokens=by_turn(new[roots]),
            drafted=by_turn(nodes),
            draft_passes=by_turn(cuts),
            seconds=np.bincount(turn, spent, minlength=len(self.turns)).astype(np.float64),
        )

    def _visited(self, new: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions at which steps begin, given the new tokens of a step starting at each position."""
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
        inner: NDArray[np.int64],  # [depth] rows with children at each depth, fed in one draft pass
        cuts: NDArray[np.int64],  # [steps] depth at which each step's tree is cut
        new: NDArray[np.int64],  # [steps] new tokens of each step
        ends: NDArray[np.bool_],  # [steps] whether the last accepted node was a leaf, not fed to the draft
    ) -> NDArray[np.float64]:
        """Return the seconds of each step, ``[steps]``."""
        prefix = self.prefixes[roots]
        near, far = int(prefix.min()), int(prefix.max())
        beyond = (prefix - near) / max(far - near, 1)

        def line(seconds: Callable[[int, int], float], tokens: int) -> NDArray[np.float64]:
            # The time grows linearly with the prefix length.
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
            # The first draft pass feeds the root, and the previous step's last accepted node if it was a leaf.
            pending = np.zeros(roots.size, dtype=np.int64)
            pending[1:] = ends[:-1]
            pending[self._first[roots]] = 0
            first = np.array([line(latency.draft_seconds, tokens) for tokens in (1, 2)])
            spent += np.where(cuts > 0, first[pending, 0] + first[pending, 1] * beyond, 0.0)
        return np.asarray(spent)
