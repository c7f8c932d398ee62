"""A draft model whose answers are kept on their way into a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.tree import NO_CANDIDATE
from specexp.drafters.draft_source import DraftSource, Fed, ModelSource
from specexp.drafters.ranking import Scoring
from specexp.replay.format.trie import TrieWriter


class RecordingSource(DraftSource):
    """A model whose answers are kept; it is run only where an answer is not known yet.

    What a step feeds waits until an unknown answer is asked for, and then all that waits is one pass. The model may
    so fall behind the sequence; the drafter then feeds it the committed tokens it lacks, as after any step.

    Args:
        source: The model.
        width: Candidates kept of every answer, at least.
        spine_width: Candidates kept after tokens of the turn's answer, at least.

    Attributes:
        writer: The trie that they are kept in.
    """

    def __init__(self, source: ModelSource, width: int, spine_width: int) -> None:
        self.source = source
        self.width = width
        self.spine_width = spine_width
        self.writer = TrieWriter(0, ())
        self._start = 0
        self._forget_step()

    def _forget_step(self) -> None:
        self._nodes: list[int] = []  # of the step's fed nodes, in the trie
        self._answers: list[Any] = []  # of those that the model was fed
        self._waiting: list[Fed] = []  # what it was not fed yet
        self._pending = 0  # committed tokens in the step's first pass

    def open(self, writer: TrieWriter, prompt_length: int) -> None:
        """Keep what is said from here on in another trie."""
        self.writer = writer
        self._start = prompt_length

    @property
    @override
    def vocab_size(self) -> int:
        return self.source.vocab_size

    @property
    @override
    def context_limit(self) -> int:
        return self.source.context_limit

    @property
    @override
    def length(self) -> int:
        return self.source.length

    @override
    def truncate(self, rows: int) -> None:
        self._forget_step()
        self.source.truncate(rows)

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        assert isinstance(other, RecordingSource)
        self.source.copy_from(other.source, rows)

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        self.source.prefill(token_ids)

    @override
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        # an answer is the number of a node in the step
        if fed.known == 0:
            self._forget_step()
        self._waiting.append(fed)
        self._pending = fed.pending
        new = len(fed.ancestors) - fed.known
        for ancestors, token in zip(
            fed.ancestors[fed.known :], fed.tokens[len(fed.tokens) - new :], strict=True
        ):
            root = len(ancestors) == 1
            self._nodes.append(
                len(context) - self._start if root else self.writer.enter(self._nodes[ancestors[-2]], token)
            )
        return list(range(fed.known, len(self._nodes)))

    @override
    def commit(self, rows: Sequence[int]) -> None:
        if self._answers:
            fed = self._pending + len(self._answers) - 1
            self.source.commit([row for row in rows if row < fed])
        self._forget_step()

    @override
    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        nodes = [self._nodes[answer] for answer in answers]
        known, k = self.writer.draft, request.k
        wanted = [self._width_of(node, k) for node in nodes]
        lacking = [
            row
            for row, (node, most) in enumerate(zip(nodes, wanted, strict=True))
            if node not in known or known[node][0].size < most
        ]
        if lacking:
            self._run(context)
            asked = replace(request, rows=request.rows[lacking], k=max(wanted[row] for row in lacking))
            found = [self._answers[answers[row]] for row in lacking]
            self._keep(scoring, context, asked, [(nodes[row], wanted[row]) for row in lacking], found)
        tokens = np.full((len(nodes), k), NO_CANDIDATE, dtype=np.int64)
        log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
        for row, node in enumerate(nodes):
            ranked, values = known[node]
            tokens[row, : ranked.size] = ranked[:k]
            log_probs[row, : values.size] = values[:k]
        return Candidates(tokens, log_probs)

    def _width_of(self, node: int, k: int) -> int:
        """Candidates to keep after a node of which ``k`` are asked for."""
        most = self.spine_width if node <= self.writer.spine else self.width
        return min(max(k, most), self.vocab_size)

    def _keep(
        self,
        scoring: Scoring,
        context: Context,
        request: Request,
        asked: Sequence[tuple[int, int]],
        answers: Sequence[Any],
    ) -> None:
        """Keep what the model said.

        Args:
            scoring: How candidates are chosen.
            context: The sequence that the request was made in.
            request: The question, with a row for each node.
            asked: ``[f]`` nodes, and how many candidates to keep of each.
            answers: ``[f]`` answers of the model.
        """
        wide = self.source.candidates(scoring, context, request, answers)
        assert wide.log_probs is not None
        for row, (node, count) in enumerate(asked):
            self.writer.draft[node] = wide.tokens[row, :count].copy(), wide.log_probs[row, :count].copy()

    @override
    def for_new_sequence(self) -> RecordingSource:
        return RecordingSource(self.source.for_new_sequence(), self.width, self.spine_width)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordingSource:
        """As :meth:`for_new_sequence`: drafters that learn apart share the model."""
        return self.for_new_sequence()

    def _run(self, context: Context) -> None:
        """Feed the model what waits, in one pass."""
        waiting = self._waiting
        if waiting:
            whole = Fed(
                [token for fed in waiting for token in fed.tokens],
                [depth for fed in waiting for depth in fed.depths],
                self._pending,
                len(self._answers),
                waiting[-1].ancestors[: len(self._nodes)],
            )
            self._answers += self.source.feed(context, whole)
            self._waiting = []
