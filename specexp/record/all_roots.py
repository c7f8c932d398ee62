"""Covering builders asked at many roots at once, so that a pass of the draft model answers for all of them.

The output is known when a recording asks what could have been drafted. So neighbouring roots need not wait for one
another, and their builders go on in step: a pass is fed what all of them ask about, each node once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specexp.core.context import Context
from specexp.core.parts import Candidates, Plan, Request, TreeBuilder
from specexp.core.sampling import check_logits
from specexp.core.tree import NO_CANDIDATE
from specexp.drafters.draft_source import Scoring
from specexp.record.recording_source import RecordingSource

if TYPE_CHECKING:
    from specexp.core.parts import Build
    from specexp.replay.format.trie import TrieWriter

_ROOTS = 32
"""Roots whose nodes are in the draft's cache together."""
_ROWS = 256
"""Most rows of a pass."""


class AllRoots:
    """Keeps what a draft model says to builders at every root of an answer.

    Args:
        source: The model, which keeps its answers.
        scoring: How candidates are chosen.
        builders: Builders that ask.
    """

    def __init__(self, source: RecordingSource, scoring: Scoring, builders: Sequence[TreeBuilder]) -> None:
        self.source = source
        self.scoring = scoring
        self.builders = builders
        self.model = source.source.model

    def cover(self, context: Context, limit: int) -> set[int]:
        """Ask at every root of the answer that the source was opened with.

        Args:
            context: The turn's prompt; of a later turn the cache may hold a part of it.
            limit: Tokens that the answer could have had.

        Returns:
            The nodes of all trees.
        """
        source, model, start = self.source, self.model, len(context)
        writer = source.writer
        if not context.continued:
            source.truncate(0)
        source.prefill(context.token_ids[source.length : min(start - 1, model.context_limit)].tolist())
        self._depths = list(range(writer.spine + 1))
        drafted: set[int] = set()
        for first in range(0, writer.spine, _ROOTS):
            roots = range(first, min(first + _ROOTS, writer.spine))
            fed = [root for root in roots if start - 1 + root < model.context_limit]
            if not fed:
                break
            block = _Block(self, context, first)
            block.open(fed, limit)
            for builder in self.builders:
                source.width = builder.max_candidates
                drafted.update(block.build(builder, roots, limit))
            model.cache.commit(0, range(len(fed)))
        return drafted

    def depth(self, node: int) -> int:
        """Tokens from the prompt to a node."""
        parents = self.source.writer.parents
        while len(self._depths) <= node:
            self._depths.append(self._depths[parents[len(self._depths)]] + 1)
        return self._depths[node]


class _Block:
    """Some neighbouring roots; the cache holds what comes before the first of them, and then what is fed here."""

    def __init__(self, asked: AllRoots, context: Context, first: int) -> None:
        self.asked = asked
        self.context = context
        self.first = first
        self.source = asked.source
        self.writer: TrieWriter = asked.source.writer
        self._rows: dict[int, list[int]] = {}  # of each fed node, from the first root's down to its own
        self._count = 0  # rows fed

    def build(self, builder: TreeBuilder, roots: Iterable[int], limit: int) -> set[int]:
        """Build a tree at each root; their nodes."""
        drafted: set[int] = set()
        waiting: dict[int, tuple[Build, Request, dict[int, int]]] = {}

        def go_on(root: int, build: Build, nodes: dict[int, int], answer: Candidates | None) -> None:
            try:
                request = next(build) if answer is None else build.send(answer)
            except StopIteration as finished:
                drafted.update(self.writer.enter_tree(root, finished.value))
                waiting.pop(root, None)
            else:
                waiting[root] = build, request, nodes

        for root in roots:
            if limit > root + 1:
                plan = Plan(max_depth=limit - root - 1)
                go_on(root, builder.build(int(self.writer.tokens[root]), plan), {0: root}, None)
        while waiting:
            asked = {
                root: [self._node(request, row, nodes) for row in request.rows.tolist()]
                for root, (_, request, nodes) in waiting.items()
            }
            wanted: dict[int, int] = {}
            for root, (_, request, _) in waiting.items():
                for node in asked[root]:
                    wanted[node] = max(wanted.get(node, 0), request.k)
            self.ask({node: self.source.width_of(node, k) for node, k in wanted.items() if self._fits(node)})
            for root, (build, request, nodes) in list(waiting.items()):
                go_on(root, build, nodes, self._answer(asked[root], request.k))
        return drafted

    def open(self, roots: Sequence[int], limit: int) -> None:
        """Feed the roots, in order, and keep what is said after those that are drafted from."""
        known, most = self.writer.draft, min(self.source.spine_width, self.source.vocab_size)
        self._feed({root: most if limit > root + 1 and root not in known else 0 for root in roots})

    def ask(self, wanted: Mapping[int, int]) -> None:
        """Make sure that so many candidates after these nodes are known."""
        known = self.writer.draft
        fed: dict[int, int] = {}
        for node, count in wanted.items():
            if node not in known or known[node][0].size < count:
                fed |= dict.fromkeys(self._unfed(node, fed), 0)
                fed[node] = count
        nodes = list(fed)
        for start in range(0, len(nodes), _ROWS):
            self._feed({node: fed[node] for node in nodes[start : start + _ROWS]})

    def _unfed(self, node: int, fed: Mapping[int, int]) -> list[int]:
        """What a node hangs below and was not fed, nor is to be fed already, from the top."""
        found: list[int] = []
        above = self.writer.parents[node]
        while above >= self.first and above not in self._rows and above not in fed:
            found.append(above)
            above = self.writer.parents[above]
        return found[::-1]

    def _feed(self, wanted: Mapping[int, int]) -> None:
        """One pass over new rows; keep so many candidates after each."""
        nodes, old = list(wanted), self._count
        visible = np.zeros((len(nodes), old + len(nodes)), dtype=np.bool_)
        for index, node in enumerate(nodes):
            above = self._rows.get(self.writer.parents[node], []) if node > self.first else []
            rows = [*above, old + index]
            visible[index, rows] = True
            self._rows.setdefault(node, rows)
        self._count += len(nodes)
        depths = np.array([self.asked.depth(node) for node in nodes])
        tokens = np.array([self.writer.tokens[node] for node in nodes])
        logits = self.asked.model.grow(0, tokens, depths - self.first, visible)
        check_logits(logits, "draft", self.context)
        rows = [row for row, node in enumerate(nodes) if wanted[node]]
        if rows:
            line = np.arange(depths.max() + 1)  # as if asked at the prompt: row d stands d tokens below it
            request = Request(line, line - 1, line, depths[rows], max(wanted.values()))
            answers = [(logits, row) for row in rows]
            asked = [(nodes[row], wanted[nodes[row]]) for row in rows]
            self.source.keep(self.asked.scoring, self.context, request, asked, answers)

    def _answer(self, nodes: Sequence[int], k: int) -> Candidates:
        tokens = np.full((len(nodes), k), NO_CANDIDATE, dtype=np.int64)
        log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
        for row, node in enumerate(nodes):
            if self._fits(node):
                ranked, values = self.writer.draft[node]
                tokens[row, : ranked.size] = ranked[:k]
                log_probs[row, : values.size] = values[:k]
        return Candidates(tokens, log_probs)

    def _node(self, request: Request, row: int, nodes: dict[int, int]) -> int:
        """The trie's node of a request's row."""
        found = nodes.get(row)
        if found is None:
            parent = self._node(request, int(request.parents[row]), nodes)
            found = nodes[row] = self.writer.enter(parent, int(request.tokens[row]))
        return found

    def _fits(self, node: int) -> bool:
        """Whether the draft's context holds it."""
        return len(self.context) - 1 + self.asked.depth(node) < self.asked.model.context_limit
