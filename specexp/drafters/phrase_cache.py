"""The phrase cache drafts stored phrases, alone or in a draft model's passes (Post-use & Pre-cut, section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Reference
from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE
from specexp.core.wrappers import DrafterWrapper
from specexp.drafters.phrases import ENTRIES, LONGEST, Phrase, PhraseStore
from specexp.drafters.ranking import candidates_of
from specexp.drafters.token_drafter import Initialisation, StatePolicy, TokenDrafter


class PhraseCache(DrafterWrapper, TokenDrafter):
    """Drafts phrases that were correct earlier, stored under the token that they follow.

    As a wrapper around a drafter, the cache forwards requests for tokens, and answers requests for phrases (from
    :class:`~specexp.builders.Graft`) itself. If a request needs a pass of a draft model, that pass also feeds up to
    ``ride`` phrases below the requested nodes (appendix C, algorithm 2). The model's answers do not change. Where they
    agree with a phrase, the answers for its next tokens are already known, so one pass extends a draft by several
    tokens. Without a drafter, the cache proposes continuations of phrases that match the path to a node, longest match
    first.

    With a :class:`~specexp.builders.Graft` builder, this is Ouroboros (Zhao et al. 2024): phrases lengthen a draft
    both within its passes and at its end. They come from the target's corrections and, with ``state="carry"``, from
    earlier texts.

    The cache stores runs of USEFUL tokens (eq. 7: fed tokens that equal the target's, even beyond the first mismatch)
    and committed text. It also stores fed and grafted phrases, as corrected by the model that processed them.

    Args:
        drafter: the wrapped drafter; if None, only stored phrases are drafted.
        phrase_length: maximum number of tokens in a phrase; the paper's beta.
        max_keys: maximum number of tokens with stored phrases; the least used token is evicted.
        max_phrases: maximum number of phrases stored per token; the oldest is evicted.
        ride: maximum number of phrases fed along with a draft pass; 0 feeds none.
        shortest_match: minimum number of tokens of a fed phrase that the draft must confirm. Otherwise, its answers
            along the phrase are dropped and computed again in a later pass. The paper uses 2 (algorithm 2, line 14).
        committed: store all committed text. False, as published, stores only the run of USEFUL tokens below a step's
            root, followed by the target's next token.
        initialisation: ``prompt`` stores each prompt's phrases before decoding starts; ``empty`` does not.
        state: ``cold`` starts every prompt with an empty cache, ``carry`` keeps phrases from prompt to prompt, and
            ``preloaded`` starts every prompt with ``phrases``. The inner drafter has its own policy.
        phrases: arrays of :meth:`PhraseStore.state_dict`, for ``state="preloaded"``; in a configuration, the path to a
            ``phrase-cache`` artifact.

    Raises:
        ValueError: only one of ``phrases`` and ``state="preloaded"`` is given, or ``phrases`` is damaged or too large.
    """

    learns_from = "all-nodes"
    inner_key = "drafter"
    own_entries = ENTRIES

    def __init__(
        self,
        drafter: Drafter | None = None,
        phrase_length: Annotated[int, Field(ge=2, le=LONGEST)] = 5,
        max_keys: Annotated[int, Field(ge=1)] = 1000,
        max_phrases: Annotated[int, Field(ge=1)] = 20,
        ride: Annotated[int, Field(ge=0, le=256)] = 3,
        shortest_match: Annotated[int, Field(ge=0)] = 0,
        committed: bool = True,
        initialisation: Initialisation = "empty",
        state: StatePolicy = "cold",
        phrases: Annotated[Mapping[str, Any], Reference("phrase-cache")] | None = None,
    ) -> None:
        if (phrases is not None) != (state == "preloaded"):
            raise ValueError(
                "PhraseCache: phrases must be given if and only if state is 'preloaded', got state "
                f"{state!r} {'without' if phrases is None else 'with'} phrases"
            )
        self.inner = () if drafter is None else (drafter,)
        self.phrase_length = phrase_length
        self.max_phrases = max_phrases
        self.ride = ride
        self.shortest_match = shortest_match
        self.committed = committed
        self.initialisation = initialisation
        self.state = state
        self._initial = PhraseStore(phrase_length, max_keys, max_phrases)
        if phrases is not None:
            self._initial.load_state_dict(phrases)
        self.store = self._initial.copy()
        self._pending: PerSequence[_Pending] = PerSequence()

    @property
    def drafter(self) -> Drafter | None:
        """The inner drafter, or None."""
        return self.inner[0] if self.inner else None

    @property
    @override
    def max_candidates(self) -> int:
        return super().max_candidates or self.max_phrases

    @override
    def source_of(self, context: Context, path: tuple[int, ...]) -> str:
        drafter = self.drafter
        return super().source_of(context, path) if drafter is None else drafter.source_of(context, path)

    @override
    def for_new_sequence(self) -> PhraseCache:
        other = super().for_new_sequence()
        other._pending = PerSequence()
        if self.state != "carry":
            other.forget()
        return other

    @override
    def forget(self) -> None:
        self.store = self._initial.copy()

    @override
    def costs_pass(self, request: Request) -> bool:
        return request.length == 1 and super().costs_pass(request)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        super().begin(context, prefill)
        self._pending.pop(context, None)  # left by an unfinished step
        if self.initialisation == "prompt":
            self._insert_text(context.token_ids.tolist())

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        if request.length > 1:
            return self._phrases(context, request)
        if self.drafter is None:
            return self._continuations(context, request)
        fed: tuple[int, ...] = ()
        if self.ride and self.drafter.costs_pass(request):
            fed = self._feed_with_phrases(self.drafter, context, request)
        answer = self.drafter.propose(context, request)
        return replace(answer, pass_tokens=fed + answer.pass_tokens) if fed else answer

    @override
    def next_token(self, context: Context, path: tuple[int, ...]) -> int:
        drafter = self.drafter
        if isinstance(drafter, TokenDrafter):
            return drafter.next_token(context, path)
        committed = tuple(context.token_ids[-self.phrase_length :].tolist())
        return next(iter(self._after(context, (committed + path)[-self.phrase_length :], 1)), NO_CANDIDATE)

    @override
    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        pending = self._pending.pop(outcome.context, None)
        if pending is not None:
            for key in pending.used:
                self.store.use(key)
            for key, phrase in pending.corrected:
                self.store.insert(key, phrase)
        if outcome.tree.num_nodes > 0:
            self._insert_answered(outcome)
        if self.committed:
            new = len(outcome.new_token_ids) + self.phrase_length  # phrases at the old end have grown
            self._insert_text(outcome.context.token_ids[-new:].tolist())

    @override
    def reset(self) -> None:
        super().reset()
        self._pending.clear()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**self.store.state_dict(), **super().state_dict()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.store.load_state_dict({name: state[name] for name in ENTRIES})

    @override
    def check_vocabulary(self, vocab_size: int) -> None:
        super().check_vocabulary(vocab_size)
        largest = max(self._initial.largest_token, self.store.largest_token)
        if largest >= vocab_size:
            raise ValueError(
                f"the phrases' token ids must be from 0 to {vocab_size - 1}, as in the target's vocabulary, "
                f"got {largest}"
            )

    def _phrases(self, context: Context, request: Request) -> Candidates:
        tokens = np.full((request.rows.size, request.k, request.length), NO_CANDIDATE, dtype=np.int64)
        pending = self._pending.setdefault(context, _Pending())
        for number, key in enumerate(request.tokens[request.rows].tolist()):
            for place, phrase in enumerate(self.store.lookup(key, request.k)):
                pending.used[key] = None
                tokens[number, place, : len(phrase)] = phrase[: request.length]
        return Candidates(tokens)

    def _continuations(self, context: Context, request: Request) -> Candidates:
        committed = tuple(context.token_ids[-self.phrase_length :].tolist())
        wanted = min(request.k, self.max_phrases)
        texts = (committed + request.path_tokens(row) for row in request.rows.tolist())
        return candidates_of(request, (self._after(context, text[-self.phrase_length :], wanted) for text in texts))

    def _after(self, context: Context, path: tuple[int, ...], wanted: int) -> list[int]:
        """Continue the phrases that match the end of the path, starting with the longest match."""
        used = self._pending.setdefault(context, _Pending()).used
        found: dict[int, None] = {}
        for start, key in enumerate(path):  # an earlier key means a longer match
            matched = path[start + 1 :]
            for phrase in self.store.lookup(key, self.max_phrases):
                if len(phrase) > len(matched) and phrase[: len(matched)] == matched:
                    used[key] = None
                    found[phrase[len(matched)]] = None
            if len(found) >= wanted:
                break
        return list(found)[:wanted]

    def _feed_with_phrases(self, drafter: Drafter, context: Context, request: Request) -> tuple[int, ...]:
        """Feed the requested rows together with phrases below them; return the number of tokens fed in each pass.

        The phrases are rows of a larger tree, which the drafter feeds in one pass. The request itself, and later
        requests along a phrase, then need no pass. The draft's answers along the phrases are stored.
        """
        pending = self._pending.setdefault(context, _Pending())
        size = request.tokens.size
        tokens: list[int] = []
        parents: list[int] = []
        below: dict[tuple[int, int], int] = {}  # (row, token) -> phrase row
        riding: list[tuple[int, list[int]]] = []  # a key; its row, then those of a phrase
        for row in request.rows.tolist():
            if len(riding) == self.ride:
                break
            key = int(request.tokens[row])
            phrases = self.store.lookup(key, self.ride - len(riding))
            if not phrases or not drafter.costs_pass(replace(request, rows=np.array([row]))):
                continue
            pending.used[key] = None
            for phrase in phrases:
                path = [row]
                for token in phrase:  # phrases share the rows of a common prefix
                    child = below.get((path[-1], token))
                    if child is None:
                        child = below[path[-1], token] = size + len(tokens)
                        tokens.append(token)
                        parents.append(path[-1])
                    path.append(child)
                riding.append((key, path))
        if not riding:
            return ()
        longer = Request(
            np.concatenate((request.tokens, tokens)),
            np.concatenate((request.parents, parents)),
            np.concatenate((request.ranks, np.zeros(len(tokens), dtype=np.int64))),
            np.concatenate((request.rows, np.arange(size, size + len(tokens)))),
            k=1,
        )
        candidates = drafter.propose(context, longer)
        answers = dict(zip(longer.rows.tolist(), candidates.tokens[:, 0].tolist(), strict=True))
        for key, path in riding:
            # the draft's own answer after every row: the phrase as the draft corrects it
            corrected = tuple(answers[row] for row in path[: self.phrase_length])
            if NO_CANDIDATE not in corrected:  # beyond the draft's context there is no answer
                pending.corrected[key, corrected] = None
        confirmed = np.zeros(size, dtype=np.int64)  # by requested row: the longest match
        for _, path in riding:
            same = [answers[row] == longer.tokens[child] for row, child in pairwise(path)]
            confirmed[path[0]] = max(confirmed[path[0]], [*same, False].index(False))
        short = [row for _, path in riding if confirmed[path[0]] < self.shortest_match for row in path[1:]]
        if short:
            drafter.drop_answers(replace(longer, rows=np.array(short)))
        return candidates.pass_tokens

    def _insert_answered(self, outcome: Outcome) -> None:
        """Store grafted phrases with the target's corrections, then runs of USEFUL tokens outside the accepted path."""
        tree = outcome.tree
        tokens, parents = tree.tokens.tolist(), tree.shape.parents.tolist()
        answers = outcome.answers().tolist()
        if tree.grafted is not None:
            for leaf in np.flatnonzero(tree.grafted).tolist():
                if tree.shape.children[leaf]:
                    continue
                row, corrected = leaf, [answers[leaf]]
                while tree.grafted[row]:
                    row = parents[row]
                    corrected.append(answers[row])
                self.store.insert(tokens[row], corrected[::-1])
        useful = {}  # row -> its child with the target's token (eq. 7)
        for row, parent in enumerate(parents[1:], start=1):
            if tokens[row] == answers[parent]:
                useful[parent] = row
        reached = set(useful.values())
        if self.committed:  # a run that starts at the root is committed text, stored elsewhere
            reached.add(0)
        for first in useful:
            if first in reached:
                continue
            row, run = first, [tokens[first]]
            while row in useful:
                row = useful[row]
                run.append(tokens[row])
            self._insert_text([*run, answers[row]])

    def _insert_text(self, tokens: list[int]) -> None:
        for start, key in enumerate(tokens[:-1], start=1):
            self.store.insert(key, tokens[start : start + self.phrase_length])


@dataclass(slots=True)
class _Pending:
    """Lookups and corrections made in a step and learned at its end. The dictionaries serve as ordered sets."""

    used: dict[int, None] = field(default_factory=dict)  # keys of phrases that were looked up
    # pairs of a key and a phrase, as corrected by the draft
    corrected: dict[tuple[int, Phrase], None] = field(default_factory=dict)
