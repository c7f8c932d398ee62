"""A draft model's answers from a recording, and how they come into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specexp.context import Context
from specexp.drafters import Candidates, Request
from specexp.drafters._draft_source import DraftSource, Fed, ModelSource, Scoring
from specexp.replay.errors import NotRecordedError, RecordingError
from specexp.replay.trie import NOWHERE, TrieWriter
from specexp.replay.turn import RecordedTurn
from specexp.tree import NO_CANDIDATE, NodeKind

Missing = Literal["refuse", "unknown", "none"]
"""What an answer that was not recorded is: an error; some tokens that are nobody's, which decide nothing in a static
tree; or no candidate, an approximation.
"""


class RecordedSource(DraftSource):
    """Answers as the recorded draft did; passes are counted as a model's would be.

    Args:
        vocab_size: of the draft.
        context_limit: of the draft.
        scoring: that the candidates were recorded with.
        missing: what an answer is that was not recorded.

    Attributes:
        turn: what is replayed.
        unanswered: rows asked whose answers were not recorded.
    """

    def __init__(
        self, vocab_size: int, context_limit: int, scoring: Scoring, missing: Missing = "refuse"
    ) -> None:
        self._vocab_size = vocab_size
        self._context_limit = context_limit
        self.scoring = scoring
        self.missing = missing
        self.turn: RecordedTurn | None = None
        self.unanswered = 0
        self._length = 0
        self._nodes: list[int] = []  # of the step's fed nodes, in the trie
        self._strangers = vocab_size

    @property
    def vocab_size(self) -> int:
        """The recorded draft's."""
        return self._vocab_size

    @property
    def context_limit(self) -> int:
        """The recorded draft's."""
        return self._context_limit

    @property
    def length(self) -> int:
        """Rows that a model would hold."""
        return self._length

    def truncate(self, rows: int) -> None:
        """Count fewer rows."""
        self._length = min(self._length, rows)

    def copy_from(self, other: DraftSource, rows: int) -> None:
        """Count as many rows."""
        self._length = rows

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Count more rows."""
        self._length += len(token_ids)

    def feed(self, context: Context, fed: Fed) -> list[Any]:
        """Find the new nodes; an answer is a node of the trie."""
        turn = self.turn
        assert turn is not None, "an arm opens a turn before it replays it"
        if fed.known == 0:
            self._nodes = []
        new = len(fed.ancestors) - fed.known
        for ancestors, token in zip(
            fed.ancestors[fed.known :], fed.tokens[len(fed.tokens) - new :], strict=True
        ):
            if len(ancestors) == 1:
                self._nodes.append(len(context) - turn.prompt.size)
            else:
                self._nodes.append(turn.trie.child(self._nodes[ancestors[-2]], token))
        return self._nodes[fed.known :]

    def commit(self, rows: Sequence[int]) -> None:
        """Count the kept rows."""
        self._length += len(rows)

    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        """As recorded.

        Raises:
            NotRecordedError: an answer was not recorded, or with fewer candidates.
            RecordingError: candidates are to be drawn, which were recorded ranked.
        """
        if request.kind is not NodeKind.POINT_MASS:
            raise RecordingError(
                "the recording holds ranked candidates, and the builder draws its own: set candidates to top-k"
            )
        assert self.turn is not None
        draft, k = self.turn.trie.draft, request.k
        if (
            len(answers) == 1 and answers[0] >= 0 and draft.count(answers[0]) >= k
        ):  # a chain asks for little else
            found, values = draft[answers[0]]
            return Candidates(found[:k].astype(np.int64)[np.newaxis], values[:k][np.newaxis])
        tokens = np.full((len(answers), k), NO_CANDIDATE, dtype=np.int64)
        log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
        for row, node in enumerate(answers):
            count = 0 if node == NOWHERE else draft.count(node)
            if count < min(k, self._vocab_size):
                self._unanswered(context, request, row, tokens[row])
                continue
            found, values = draft[node]
            tokens[row, :count] = found[:k]
            log_probs[row, :count] = values[:k]
        return Candidates(tokens, log_probs)

    def twin(self) -> RecordedSource:
        """The same with no rows."""
        other = RecordedSource(self._vocab_size, self._context_limit, self.scoring, self.missing)
        other.turn = self.turn
        return other

    def _unanswered(self, context: Context, request: Request, row: int, tokens: NDArray[np.int64]) -> None:
        self.unanswered += 1
        if self.missing == "unknown":
            tokens[:] = np.arange(self._strangers, self._strangers + tokens.size)
            self._strangers += tokens.size
        elif self.missing == "refuse":
            assert self.turn is not None
            path = list(request.path_tokens(int(request.rows[row])))
            raise NotRecordedError(
                f"prompt {self.turn.prompt_id!r}, after {len(context) - self.turn.prompt.size} new tokens: the draft's "
                f"{request.k} best candidates after {path} are asked for and were not recorded; record with a "
                "coverage that asks for them, such as the largest builder of the search"
            )


class RecordingSource(DraftSource):
    """A model whose answers are kept.

    Args:
        source: the model.
        width: candidates kept of every answer, at least.
        spine_width: the same after tokens of the answer.

    Attributes:
        writer: where they are kept.
        draft_log_probs: of the answer's tokens, filled in on the way; NaN where there is no distribution.
    """

    def __init__(self, source: ModelSource, width: int, spine_width: int) -> None:
        self.source = source
        self.width = width
        self.spine_width = spine_width
        self.writer = TrieWriter(0, ())
        self.draft_log_probs = np.empty(0, dtype=np.float32)
        self._start = 0
        self._nodes: list[int] = []

    def open(self, writer: TrieWriter, prompt_length: int) -> None:
        """Keep what is said from here on in another trie."""
        self.writer = writer
        self._start = prompt_length
        self.draft_log_probs = np.full(writer.spine, np.nan, dtype=np.float32)

    @property
    def vocab_size(self) -> int:
        """The model's."""
        return self.source.vocab_size

    @property
    def context_limit(self) -> int:
        """The model's."""
        return self.source.context_limit

    @property
    def length(self) -> int:
        """The model's."""
        return self.source.length

    def truncate(self, rows: int) -> None:
        """Of the model."""
        self.source.truncate(rows)

    def copy_from(self, other: DraftSource, rows: int) -> None:
        """Of the model."""
        assert isinstance(other, RecordingSource)
        self.source.copy_from(other.source, rows)

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Of the model."""
        self.source.prefill(token_ids)

    def feed(self, context: Context, fed: Fed) -> list[Any]:
        """Run the model; an answer is the model's with its node."""
        answers = self.source.feed(context, fed)
        if fed.known == 0:
            self._nodes = []
        new = len(fed.ancestors) - fed.known
        for ancestors, token in zip(
            fed.ancestors[fed.known :], fed.tokens[len(fed.tokens) - new :], strict=True
        ):
            root = len(ancestors) == 1
            self._nodes.append(
                len(context) - self._start if root else self.writer.enter(self._nodes[ancestors[-2]], token)
            )
        return list(zip(self._nodes[fed.known :], answers, strict=True))

    def commit(self, rows: Sequence[int]) -> None:
        """Of the model."""
        self.source.commit(rows)

    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        """The model's, kept at least as wide as asked."""
        from dataclasses import replace

        nodes = [node for node, _ in answers]
        spine = self.writer.spine
        most = max(request.k, self.spine_width if min(nodes) <= spine else self.width)
        most = min(most, self.vocab_size)
        wide = self.source.candidates(scoring, context, replace(request, k=most), [one for _, one in answers])
        assert wide.log_probs is not None
        for row, node in enumerate(nodes):
            keep = max(request.k, self.spine_width if node <= spine else self.width)
            known = self.writer.draft.get(node)
            if known is None or known[0].size < min(keep, most):
                self.writer.draft[node] = wide.tokens[row, :keep].copy(), wide.log_probs[row, :keep].copy()
            if node < spine and np.isnan(self.draft_log_probs[node]) and not scoring.coupled:
                self.draft_log_probs[node] = self._log_prob(scoring, answers[row][1], node)
        return Candidates(wide.tokens[:, : request.k], wide.log_probs[:, : request.k])

    def twin(self) -> RecordingSource:
        """One recording is made by one drafter."""
        raise RuntimeError("a recording is made one sequence at a time")

    def _log_prob(self, scoring: Scoring, answer: Any, node: int) -> float:
        from specexp.processors import Processors

        logits, row = answer
        temperature = 1.0 if scoring.temperature is None else scoring.temperature
        scores = Processors(temperature, scoring.top_k, scoring.top_p).scores(logits[row : row + 1])
        return float(scores.log_softmax(dim=-1)[0, self.writer.tokens[node + 1]])
