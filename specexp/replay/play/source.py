"""A draft model's answers from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.drafters.draft_source import DraftSource, Fed
from specexp.drafters.ranking import Scoring
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.trie import NOWHERE, NotRecordedError, RecordingError

Missing = Literal["refuse", "unknown", "none"]
"""What an answer that was not recorded is: an error; some tokens that are nobody's, which decide nothing beside the
output of a static tree, and are an error along it; or no candidate, an approximation.
"""


class RecordedSource(DraftSource):
    """Answers as the recorded draft did; passes are counted as a model's would be.

    Args:
        vocab_size: Tokens of the draft's vocabulary.
        context_limit: Tokens that the draft's context holds.
        scoring: How the recorded candidates were chosen.
        missing: What an answer is that was not recorded.

    Attributes:
        turn: The turn that is replayed.
        unanswered: Number of rows asked whose answers were not recorded.
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
    @override
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    @override
    def context_limit(self) -> int:
        return self._context_limit

    @property
    @override
    def length(self) -> int:
        return self._length

    @override
    def truncate(self, rows: int) -> None:
        self._length = min(self._length, rows)

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        self._length = rows

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        self._length += len(token_ids)

    @override
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        # an answer is a node of the trie
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

    @override
    def commit(self, rows: Sequence[int]) -> None:
        self._length += len(rows)

    @override
    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        """As recorded.

        Raises:
            NotRecordedError: An answer was not recorded, or with fewer candidates.
            RecordingError: Candidates are to be drawn, which were recorded ranked.
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

    @override
    def for_new_sequence(self) -> RecordedSource:
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
