"""A draft model's answers from a recording, and how they come into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
"""What an answer that was not recorded is: an error; some tokens that are nobody's, which decide nothing beside the
output of a static tree, and are an error along it; or no candidate, an approximation.
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
        self._strangers = vocab_size  # the next token that is nobody's

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
        most = min(k, self._vocab_size)
        starts = draft.starts(answers, most)
        tokens, log_probs = draft.read(starts, most)
        if most < k:
            missing = (0, 0), (0, k - most)
            tokens = np.pad(tokens, missing, constant_values=NO_CANDIDATE)
            log_probs = np.pad(log_probs, missing, constant_values=-np.inf)
        if draft.end in starts:
            rows = [row for row, start in enumerate(starts) if start == draft.end]
            self._unanswered(context, request, rows, answers, tokens)
        return Candidates(tokens, log_probs)

    def twin(self) -> RecordedSource:
        """The same with no rows."""
        other = RecordedSource(self._vocab_size, self._context_limit, self.scoring, self.missing)
        other.turn = self.turn
        return other

    def _unanswered(
        self,
        context: Context,
        request: Request,
        rows: Sequence[int],
        answers: Sequence[int],
        tokens: NDArray[np.int64],
    ) -> None:
        """Put something for the answers of rows that were not recorded, or refuse."""
        assert self.turn is not None
        self.unanswered += len(rows)
        if self.missing == "unknown":
            for row in rows:
                node = answers[row]
                if NOWHERE < node < self.turn.trie.spine:  # a candidate there may become output
                    raise NotRecordedError(
                        f"prompt {self.turn.prompt_id!r}, after {node} new tokens: the draft's {request.k} best "
                        f"candidates are asked for and {self.turn.trie.draft.count(node)} were recorded; record with "
                        f"record.candidates of at least {request.k}"
                    )
            first = self._strangers
            self._strangers += len(rows) * request.k
            tokens[rows] = np.arange(first, self._strangers).reshape(len(rows), -1)
        elif self.missing == "refuse":
            path = list(request.path_tokens(int(request.rows[rows[0]])))
            raise NotRecordedError(
                f"prompt {self.turn.prompt_id!r}, after {len(context) - self.turn.prompt.size} new tokens: the draft's "
                f"{request.k} best candidates after {path} are asked for and were not recorded; record with a "
                "coverage that asks for them, such as the largest builder of the search"
            )


class RecordingSource(DraftSource):
    """A model whose answers are kept; it is run only where an answer is not known yet.

    What a step feeds waits until an unknown answer is asked for, and then all that waits is one pass. The model may
    so fall behind the sequence; the drafter then feeds it the committed tokens it lacks, as after any step.

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
        self._forget_step()
        self.source.truncate(rows)

    def copy_from(self, other: DraftSource, rows: int) -> None:
        """Of the model."""
        assert isinstance(other, RecordingSource)
        self.source.copy_from(other.source, rows)

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Of the model."""
        self.source.prefill(token_ids)

    def feed(self, context: Context, fed: Fed) -> list[Any]:
        """Find the new nodes; an answer is the number of a node in the step."""
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

    def commit(self, rows: Sequence[int]) -> None:
        """Of the model, as far as it was run."""
        if self._answers:
            fed = self._pending + len(self._answers) - 1
            self.source.commit([row for row in rows if row < fed])
        self._forget_step()

    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        """The model's, kept at least as wide as asked."""
        nodes = [self._nodes[answer] for answer in answers]
        known, k = self.writer.draft, request.k
        wanted = [self.width_of(node, k) for node in nodes]
        lacking = [
            row
            for row, (node, most) in enumerate(zip(nodes, wanted, strict=True))
            if node not in known or known[node][0].size < most
        ]
        if lacking:
            self._run(context)
            asked = replace(request, rows=request.rows[lacking], k=max(wanted[row] for row in lacking))
            found = [self._answers[answers[row]] for row in lacking]
            self.keep(scoring, context, asked, [(nodes[row], wanted[row]) for row in lacking], found)
        tokens = np.full((len(nodes), k), NO_CANDIDATE, dtype=np.int64)
        log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
        for row, node in enumerate(nodes):
            ranked, values = known[node]
            tokens[row, : ranked.size] = ranked[:k]
            log_probs[row, : values.size] = values[:k]
        return Candidates(tokens, log_probs)

    def width_of(self, node: int, k: int) -> int:
        """Candidates to keep after a node of which ``k`` are asked for."""
        most = self.spine_width if node <= self.writer.spine else self.width
        return min(max(k, most), self.vocab_size)

    def keep(
        self,
        scoring: Scoring,
        context: Context,
        request: Request,
        asked: Sequence[tuple[int, int]],
        answers: Sequence[Any],
    ) -> None:
        """Keep what the model said.

        Args:
            scoring: of the candidates.
            context: that the request was made in.
            request: with a row for each node.
            asked: ``[f]`` nodes, and how many candidates to keep of each.
            answers: ``[f]`` the model's.
        """
        wide = self.source.candidates(scoring, context, request, answers)
        assert wide.log_probs is not None
        for row, (node, count) in enumerate(asked):
            self.writer.draft[node] = wide.tokens[row, :count].copy(), wide.log_probs[row, :count].copy()
            if node < self.writer.spine and np.isnan(self.draft_log_probs[node]) and not scoring.coupled:
                self.draft_log_probs[node] = self._log_prob(scoring, answers[row], node)

    def twin(self) -> RecordingSource:
        """One that records too, wherever it is opened."""
        return RecordingSource(self.source.twin(), self.width, self.spine_width)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordingSource:
        """As :meth:`twin`: drafters that learn apart share the model."""
        return self.twin()

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

    def _log_prob(self, scoring: Scoring, answer: Any, node: int) -> float:
        from specexp.processors import Processors

        logits, row = answer
        temperature = 1.0 if scoring.temperature is None else scoring.temperature
        scores = Processors(temperature, scoring.top_k, scoring.top_p).scores(logits[row : row + 1])
        return float(scores.log_softmax(dim=-1)[0, self.writer.tokens[node + 1]])
