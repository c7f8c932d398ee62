"""Replays a recorded conversation with a composition of parts.

The recording replaces the target: a drafted token is accepted if it equals the recorded output. The target's best
tokens are read only if a part needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.dialogue import Candidates, Request
from specexp.core.loop import Clock, Decoding, Draft, Drafting, Lane, OutcomeObserver
from specexp.core.outcome import GenerationResult, Outcome, Top, prefill_outcome
from specexp.core.parts import Parts
from specexp.core.runtime import PassResult, Target
from specexp.core.tree import NO_CANDIDATE, TokenTree
from specexp.drafters.draft_source import DraftSource, Fed
from specexp.drafters.ranking import Scoring
from specexp.replay.format.recording import RecordedTurn
from specexp.replay.format.trie import NOWHERE, NotRecordedError, RecordingError
from specexp.replay.play.fidelity import learns

_ENDED = -1
"""Placeholder for the target's token after the end of the output. No drafted token equals it."""


class RecordedOutcome(Outcome):
    """An outcome without logits. When a part needs the target's best tokens, they are read from the recording."""

    def __init__(
        self, lane: RecordedLane, draft: Draft, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> None:
        context = lane.context
        super().__init__(context, draft.tree, NO_LOGITS, accepted, new_token_ids, draft.pass_tokens)
        self.turn = lane.turn
        self.root = len(context) - len(new_token_ids) - int(lane.turn.prompt.size)  # a node of the spine
        self.lenient = lane.lenient  # if False, a missing prediction raises
        self._nodes: list[int] | None = None

    @property
    def nodes(self) -> list[int]:
        """The trie node of each row, ``[n + 1]``; ``NOWHERE`` if the row was not recorded."""
        if self._nodes is None:
            child, parents = self.turn.trie.child, self.tree.shape.parents.tolist()
            self._nodes = [self.root]
            for parent, token in zip(parents[1:], self.tree.tokens.tolist()[1:], strict=True):
                self._nodes.append(child(self._nodes[parent], token))
        return self._nodes

    def recorded_part(self) -> RecordedOutcome:
        """Return a copy for drafters to learn from, reduced to the rows with recorded target predictions."""
        target, tree = self.turn.trie.target, self.tree
        known = np.array([node >= 0 and target.count(node) > 0 for node in self.nodes])
        for row, parent in enumerate(tree.shape.parents.tolist()[1:], start=1):
            known[row] &= known[parent]  # a row cannot be kept without its parent
        part = copy(self)
        part._nodes = [node for node, is_known in zip(self.nodes, known, strict=True) if is_known]
        if not known.all():
            part.tree = tree.select(known)
            new_row = np.cumsum(known) - 1
            part.accepted = tuple(int(new_row[row]) for row in self.accepted if known[row])
        kept = [target[node] for node in part._nodes]  # never empty: the root is always recorded
        width = min(tokens.size for tokens, _ in kept)
        part.top = (
            np.array([tokens[:width] for tokens, _ in kept], dtype=np.int64),
            np.array([logits[:width] for _, logits in kept], dtype=np.float32),
        )
        return part

    def _first(self) -> NDArray[np.int64]:
        return self._best(1)[0][:, 0].copy()

    def _best(self, k: int) -> Top:
        if self.top is None or self.top[0].shape[1] < k:
            tokens, logits, lacking = self.turn.trie.target.best(self.nodes, k)
            if lacking and not self.lenient:
                path = [int(self.tree.tokens[node]) for node in self.tree.shape.path(lacking[0])]
                raise NotRecordedError(
                    f"prompt {self.turn.prompt_id!r}, after {self.root} new tokens: a part learns from the target's "
                    f"{k} best tokens after {path}, which were not recorded; record again with a coverage that drafts "
                    f"this path and a target_top_k of at least {k}"
                )
            self.top = tokens, logits
        return self.top


class RecordedPrefill(Outcome):
    """The outcome of a turn's prefill (step 0), without logits."""

    def __init__(self, context: Context, fed: NDArray[np.int64], turn: RecordedTurn) -> None:
        prefill = prefill_outcome(context, fed, NO_LOGITS)
        super().__init__(context, prefill.tree, NO_LOGITS, prefill.accepted, ())
        self.top = turn.prefill_top.astype(np.int64), turn.prefill_logits
        self.turn = turn

    def _best(self, k: int) -> Top:
        assert self.top is not None
        if self.top[0].shape[1] < k:
            raise NotRecordedError(
                f"prompt {self.turn.prompt_id!r}: a part learns from the target's {k} best tokens after every token of "
                f"the prompt, but {self.top[0].shape[1]} were recorded; record with a target_top_k of at least {k}"
            )
        return self.top


class _NoLogits:
    """A placeholder for logits that are never read."""

    device = SimpleNamespace(type="cpu")

    def numel(self) -> int:
        return 0

    def __getitem__(self, row: int) -> Any:
        return self


NO_LOGITS = cast("torch.Tensor", _NoLogits())


def add_fed_nodes(nodes: list[int], fed: Fed, root: int, child: Callable[[int, int], int]) -> None:
    """Append the trie nodes of a draft pass to a step's ``nodes``. ``child(node, token)`` returns a node's child."""
    new = fed.ancestors[fed.known :]
    for ancestors, token in zip(new, fed.tokens[len(fed.tokens) - len(new) :], strict=True):
        nodes.append(root if len(ancestors) == 1 else child(nodes[ancestors[-2]], token))


Missing = Literal["refuse", "unknown", "none"]
"""The policy for draft candidates that were not recorded.

``refuse`` raises. ``unknown`` fills in tokens outside the vocabulary, which are never accepted, so a fixed tree is
replayed exactly; nodes of the output still raise. ``none`` returns no candidates, so the replay is approximate.
"""


class RecordedSource(DraftSource):
    """Draft source that reads candidates from the recorded ``turn`` and tracks the length that a cache would have."""

    length: int = 0

    def __init__(self, vocab_size: int, context_limit: int, scoring: Scoring, missing: Missing = "refuse") -> None:
        self.vocab_size = vocab_size
        self.context_limit = context_limit
        self.scoring = scoring
        self.missing = missing
        self.turn: RecordedTurn | None = None
        self._nodes: list[int] = []  # trie nodes of the tokens fed in this step
        self._unknown_token = vocab_size  # next unused token id outside the vocabulary

    @override
    def truncate(self, rows: int) -> None:
        self.length = min(self.length, rows)

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        self.length = rows

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        self.length += len(token_ids)

    @override
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        # the returned handles are trie nodes
        turn = self.turn
        assert turn is not None, "Player.play sets the turn before it decodes"
        if fed.known == 0:
            self._nodes = []
        add_fed_nodes(self._nodes, fed, len(context) - int(turn.prompt.size), turn.trie.child)
        return self._nodes[fed.known :]

    @override
    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    @override
    def candidates(self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]) -> Candidates:
        assert self.turn is not None
        draft, k = self.turn.trie.draft, request.k
        most = min(k, self.vocab_size)
        tokens, log_probs, rows = draft.best(answers, most)
        if most < k:
            missing = (0, 0), (0, k - most)
            tokens = np.pad(tokens, missing, constant_values=NO_CANDIDATE)
            log_probs = np.pad(log_probs, missing, constant_values=-np.inf)
        if rows and self.missing == "refuse":
            path = list(request.path_tokens(int(request.rows[rows[0]])))
            raise NotRecordedError(
                f"prompt {self.turn.prompt_id!r}, after {len(context) - self.turn.prompt.size} new tokens: the draft's "
                f"{k} best candidates after {path} are needed, but were not recorded; record with a coverage that "
                "drafts them, such as the largest builder of the search"
            )
        if rows and self.missing == "unknown":
            for node in (answers[row] for row in rows):
                # on the output's path, so a candidate may be accepted
                if NOWHERE < node < self.turn.trie.spine:
                    raise NotRecordedError(
                        f"prompt {self.turn.prompt_id!r}, after {node} new tokens: the draft's {k} best candidates are "
                        f"needed, but {draft.count(node)} were recorded; record with record.candidates of at least {k}"
                    )
            first = self._unknown_token
            self._unknown_token += len(rows) * k
            tokens[rows] = np.arange(first, self._unknown_token).reshape(len(rows), -1)
        return Candidates(tokens, log_probs)

    @override
    def for_new_sequence(self) -> RecordedSource:
        other = RecordedSource(self.vocab_size, self.context_limit, self.scoring, self.missing)
        other.turn = self.turn
        return other


class FollowOutput(DeterministicVerifier):
    """Verifier that accepts a drafted token if it equals the recorded output of the turn."""

    def __init__(self, turn: RecordedTurn) -> None:
        self._answer: list[int] = turn.answer.tolist()
        self._start = int(turn.prompt.size)

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        at = position - self._start
        return self._answer[at] if at < len(self._answer) else _ENDED


class RecordedTarget(Target):
    """Target without a model. It provides only a context length of ``context_limit`` tokens."""

    def __init__(self, context_limit: int) -> None:
        self.context_limit = context_limit

    @override
    def length(self, slot: int) -> int:
        return 0

    @override
    def prefill(self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False) -> PassResult:
        return PassResult()

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        return PassResult([NO_LOGITS] * len(trees))

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        pass

    @override
    def synchronize(self) -> None:
        pass


class RecordedLane(Lane):
    """A lane that reads its outcomes from a recorded turn."""

    turn: RecordedTurn
    lenient: bool

    @override
    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        return RecordedOutcome(self, draft, accepted, new_token_ids)


class _RecordedDrafting(Drafting):
    """Drafting with drafters that learn only from recorded predictions."""

    def __init__(self, parts: Parts, context: Context) -> None:
        super().__init__(parts, context)
        self.learns = learns(parts.drafter)

    @override
    def learn(self, outcome: Outcome) -> None:
        assert isinstance(outcome, RecordedOutcome)
        if self.drafter is not None:
            self.drafter.observe(outcome.recorded_part() if self.learns else outcome)
        self.controller.observe(outcome)


@dataclass(eq=False)
class Player:
    """Replays conversations with one composition of parts."""

    parts: Parts  # any draft model among them must use ``source``
    source: RecordedSource | None  # recorded candidates of the draft model; None if there is none
    context_limit: int  # context length of the target in tokens
    seed: int  # seed of the recording
    lenient: bool = False  # whether to skip missing target predictions instead of raising

    def play(
        self,
        turns: Sequence[RecordedTurn],
        max_new_tokens: int,
        sequence: str,
        clock: Clock | None = None,
        observers: Iterable[OutcomeObserver] = (),
    ) -> list[GenerationResult]:
        """Replay the turns of a conversation and return the counts for each turn.

        ``max_new_tokens`` per turn must equal the recorded limit if there are several turns. ``sequence`` is the key of
        the random numbers. ``clock`` returns the seconds of a step's phases, for parts that learn from timings. Raises
        RecordingError if a recorded answer is too short.
        """
        context: Context | None = None
        target = RecordedTarget(self.context_limit)
        counts = []
        for turn in turns:
            if turn.finish_reason == "length" and max_new_tokens > turn.answer.size:
                raise RecordingError(
                    f"prompt {turn.prompt_id!r}: generation.max_new_tokens must be at most {turn.answer.size}, as "
                    f"recorded, got {max_new_tokens}: lower it, or record longer answers"
                )
            prompt = turn.prompt.tolist()
            known = 0
            if context is None:
                context = self.parts.context(prompt, self.seed, sequence)
            else:
                known = len(context) - 1  # the last token of an answer is fed only in the next turn
                context.next_turn(prompt[len(context) :])
            if self.source is not None:
                self.source.turn = turn
            drafting = _RecordedDrafting(self.parts, context)
            ended = turn.finish_reason == "eos" and turn.answer.size <= max_new_tokens
            lane = RecordedLane(
                context,
                target,
                FollowOutput(turn),
                drafting,
                max_new_tokens=max_new_tokens,
                eos_token_ids=turn.answer[-1:].tolist() if ended else (),
                stop_at_repetition=turn.finish_reason == "repetition",
                clock=clock or (lambda outcome: {}),
            )
            lane.turn = turn
            lane.lenient = self.lenient
            fed = context.token_ids[known:-1]
            wanted = self.parts.wants_prefill_logits and fed.size
            drafting.begin(RecordedPrefill(context, fed.copy(), turn) if wanted else None)
            decoding = Decoding(target, observers)
            decoding.add(lane)
            while decoding.lanes:
                decoding.step()
            counts.append(replace(lane.result, seconds=dict.fromkeys(lane.result.seconds, 0.0)))
        return counts
