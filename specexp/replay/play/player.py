"""Playing a recorded conversation with the parts that would have decoded it.

The recorded target answers in place of a model: a token is accepted where it is the recorded output's, and the target's
best tokens are read only where a part asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.loop import Clock, Decoding, Draft, Drafting, Lane
from specexp.core.outcome import GenerationResult, Outcome
from specexp.core.parts import Parts
from specexp.core.runtime import Target
from specexp.core.tree import TokenTree, TreeShape
from specexp.replay.format.recorded_turn import LONGEST, Answer, NgramFallback, RecordedTurn
from specexp.replay.format.trie import NOWHERE, NotRecordedError, RecordingError
from specexp.replay.play.fidelity import learns
from specexp.replay.play.source import RecordedSource

if TYPE_CHECKING:
    import torch

    from specexp.core.loop import OutcomeObserver

Top = tuple[NDArray[np.int64], NDArray[np.float32]]
_ENDED = -1
"""The token after the end of the output, which no tree holds."""


class RecordedOutcome(Outcome):
    """An outcome without logits: the target's best tokens come from the recording, and only if asked for.

    Args:
        turn: The turn that is replayed.
        root: The tree's root, a node of the spine.
        lenient: Whether answers that were not recorded are no token instead of an error.
    """

    def __init__(
        self,
        context: Context,
        tree: TokenTree,
        accepted: tuple[int, ...],
        new_token_ids: tuple[int, ...],
        pass_tokens: tuple[int, ...],
        turn: RecordedTurn,
        root: int,
        lenient: bool = False,
    ) -> None:
        super().__init__(context, tree, NO_LOGITS, accepted, new_token_ids, pass_tokens)
        self.turn = turn
        self.root = root
        self.lenient = lenient
        self._nodes: list[int] | None = None

    @property
    def nodes(self) -> list[int]:
        """``[n + 1]`` the rows' nodes in the trie."""
        if self._nodes is None:
            child, parents = self.turn.trie.child, self.tree.shape.parents.tolist()
            self._nodes = [self.root]
            for parent, token in zip(parents[1:], self.tree.tokens.tolist()[1:], strict=True):
                self._nodes.append(child(self._nodes[parent], token))
        return self._nodes

    def recorded_part(self, fallback: NgramFallback | None = None) -> RecordedOutcome:
        """The outcome of the rows with a recorded or estimated answer: parts learn from these alone."""
        trie = self.turn.trie
        answers: list[Answer | None] = [
            trie.target[node] if node >= 0 and trie.target.count(node) else None for node in self.nodes
        ]
        tree = self.tree
        if fallback is not None:
            tokens, parents = tree.tokens.tolist(), tree.shape.parents.tolist()
            for row, answer in enumerate(answers):
                if answer is None:
                    above = row
                    path: list[int] = []
                    while above >= 0 and len(path) < LONGEST:
                        path.append(tokens[above])
                        above = parents[above]
                    answers[row] = fallback.after(self.turn, self.root, tuple(path[::-1]))
        known = np.array([answer is not None for answer in answers])
        part = self
        if not known.all():
            for row, parent in enumerate(tree.shape.parents.tolist()[1:], start=1):
                known[row] &= known[parent]
            part = self._of(known)
        width = min(answer[0].size for answer in answers if answer is not None)
        kept = [
            answer
            for answer, there in zip(answers, known.tolist(), strict=True)
            if there and answer is not None
        ]
        part.top = (
            np.array([tokens[:width] for tokens, _ in kept], dtype=np.int64),
            np.array([logits[:width] for _, logits in kept], dtype=np.float32),
        )
        return part

    def _of(self, known: NDArray[np.bool_]) -> RecordedOutcome:
        """The outcome of a part of the tree."""
        tree, row = self.tree, np.cumsum(known) - 1
        part = RecordedOutcome(
            self.context,
            tree.select(known),
            tuple(int(row[accepted]) for accepted in self.accepted if known[accepted]),
            self.new_token_ids,
            self.pass_tokens,
            self.turn,
            self.root,
            self.lenient,
        )
        part.seconds = self.seconds
        part._nodes = [node for node, kept in zip(self.nodes, known.tolist(), strict=True) if kept]
        return part

    def _first(self) -> NDArray[np.int64]:
        return self._best(1)[0][:, 0].copy()

    def _best(self, k: int) -> Top:
        if self.top is None or self.top[0].shape[1] < k:
            target = self.turn.trie.target
            tokens = np.full((len(self.nodes), k), NOWHERE, dtype=np.int64)
            logits = np.full(tokens.shape, -np.inf, dtype=np.float32)
            for row, node in enumerate(self.nodes):
                found, values = target[node] if node >= 0 else (tokens[row, :0], logits[row, :0])
                if found.size < k:
                    if self.lenient:
                        continue
                    self._refuse(row, k)
                tokens[row], logits[row] = found[:k], values[:k]
            self.top = tokens, logits
        return self.top

    def _refuse(self, row: int, k: int) -> None:
        path = [int(self.tree.tokens[node]) for node in self.tree.shape.path(row)]
        raise NotRecordedError(
            f"prompt {self.turn.prompt_id!r}, after {self.root} new tokens: the target's {k} best tokens after {path} "
            "are learned from and were not recorded; record with a coverage that drafts there, and a target_top_k of "
            f"at least {k}"
        )


class RecordedPrefill(Outcome):
    """The prefill of a turn as step 0, without logits."""

    def __init__(self, context: Context, fed: NDArray[np.int64], turn: RecordedTurn) -> None:
        rows = np.arange(fed.size)
        chain = TokenTree(TreeShape(rows - 1, np.where(rows == 0, -1, 0)), fed)
        super().__init__(context, chain, NO_LOGITS, tuple(range(1, fed.size)), ())
        self.top = turn.asked.astype(np.int64), turn.asked_logits
        self.turn = turn

    def _best(self, k: int) -> Top:
        assert self.top is not None
        if self.top[0].shape[1] < k:
            raise NotRecordedError(
                f"prompt {self.turn.prompt_id!r}: the target's {k} best tokens after every token of the prompt are "
                f"learned from and {self.top[0].shape[1]} were recorded; record with a target_top_k of at least {k}"
            )
        return self.top


class _NoLogits:
    """Stands for logits where no one reads them: empty, on the host."""

    device = SimpleNamespace(type="cpu")

    def numel(self) -> int:
        return 0

    def __getitem__(self, row: int) -> Any:
        return self


NO_LOGITS = cast("torch.Tensor", _NoLogits())


class FollowOutput(DeterministicVerifier):
    """Accepts the tokens of a turn's output."""

    def __init__(self, turn: RecordedTurn) -> None:
        self._answer: list[int] = turn.answer.tolist()
        self._start = int(turn.prompt.size)

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        at = position - self._start
        return self._answer[at] if at < len(self._answer) else _ENDED


class RecordedTarget(Target):
    """A target without a model, since its answers are read in the recording.

    Args:
        context_limit: Tokens that the recorded target's context holds.
    """

    def __init__(self, context_limit: int) -> None:
        self.context_limit = context_limit

    @override
    def length(self, slot: int) -> int:
        return 0

    @override
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        return None

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        return [NO_LOGITS] * len(trees)

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        pass

    @override
    def synchronize(self) -> None:
        pass


class RecordedLane(Lane):
    """A replayed turn.

    Args:
        turn: The turn that is replayed.
        target: The recorded target.
        context: The turn's prompt.
        drafting: The drafting half of the lane.
        max_new_tokens: Tokens to generate, at most as many as were recorded.
        lenient: Whether answers that were not recorded are left out of what drafters learn from.
        clock: Modelled seconds of a step; none if None.
    """

    def __init__(
        self,
        turn: RecordedTurn,
        target: RecordedTarget,
        context: Context,
        drafting: Drafting,
        *,
        max_new_tokens: int,
        lenient: bool = False,
        clock: Clock | None = None,
    ) -> None:
        ended = turn.finish_reason == "eos" and turn.answer.size <= max_new_tokens
        super().__init__(
            context,
            target,
            FollowOutput(turn),
            drafting,
            max_new_tokens=max_new_tokens,
            eos_token_ids=turn.answer[-1:].tolist() if ended else (),
            clock=clock or (lambda outcome: {}),
        )
        self.turn = turn
        self.lenient = lenient

    @override
    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        root = len(self.context) - len(new_token_ids) - int(self.turn.prompt.size)
        return RecordedOutcome(
            self.context,
            draft.tree,
            accepted,
            new_token_ids,
            draft.pass_tokens,
            self.turn,
            root,
            self.lenient,
        )


class _Drafting(Drafting):
    """Drafters learn from recorded and estimated answers alone."""

    fallback: NgramFallback | None = None
    learns = True

    @override
    def learn(self, outcome: Outcome) -> None:
        assert isinstance(outcome, RecordedOutcome)
        if self.drafter is not None:
            self.drafter.observe(outcome.recorded_part(self.fallback) if self.learns else outcome)
        self.controller.observe(outcome)


class Player:
    """Replays conversations with one composition of parts.

    Args:
        parts: Parts that are replayed; a draft model in them answers from ``source``.
        source: Recorded answers of the draft model; None where there is none.
        target: The recorded target.
        seed: Seed of the recording.
        lenient: Whether answers that were not recorded are left out of what drafters learn from, or are an error.
        fallback: Estimates of what was not recorded; None leaves it out.
    """

    def __init__(
        self,
        parts: Parts,
        source: RecordedSource | None,
        target: RecordedTarget,
        seed: int,
        lenient: bool = False,
        fallback: NgramFallback | None = None,
    ) -> None:
        self.parts = parts
        self.source = source
        self.target = target
        self.seed = seed
        self.lenient = lenient
        self.fallback = fallback
        # a draft model alone only keeps what was accepted
        self._learns = learns(parts.drafter)

    def play(
        self,
        turns: Sequence[RecordedTurn],
        max_new_tokens: int,
        sequence: str,
        clock: Clock | None = None,
        observers: Iterable[OutcomeObserver] = (),
    ) -> list[GenerationResult]:
        """Replay the turns of a conversation and return the counts of each.

        Args:
            turns: Turns of one prompt and sample.
            max_new_tokens: Tokens per turn; of several turns as many as were recorded.
            sequence: Name of the sequence, by which randomness is keyed.
            clock: Seconds of a step by phase, for parts that learn from them.
            observers: Called with every step's outcome.

        Raises:
            RecordingError: The recording is too short.
        """
        counts = []
        context: Context | None = None
        for turn in turns:
            prompt = turn.prompt.tolist()
            known = 0
            if context is None:
                context = self.parts.context(prompt, self.seed, sequence)
            else:
                known = len(context) - 1  # the last token of an answer is not fed before the next turn
                context.next_turn(prompt[len(context) :])
            counts.append(self._turn(turn, context, known, max_new_tokens, clock, observers))
        return counts

    def _turn(
        self,
        turn: RecordedTurn,
        context: Context,
        known: int,
        max_new_tokens: int,
        clock: Clock | None,
        observers: Iterable[OutcomeObserver],
    ) -> GenerationResult:
        if turn.finish_reason == "length" and max_new_tokens > turn.answer.size:
            raise RecordingError(
                f"prompt {turn.prompt_id!r}: generation.max_new_tokens is {max_new_tokens} and {turn.answer.size} were "
                "recorded: record longer answers, or ask for fewer tokens"
            )
        drafting = _Drafting(self.parts, context)
        drafting.fallback, drafting.learns = self.fallback, self._learns
        lane = RecordedLane(
            turn,
            self.target,
            context,
            drafting,
            max_new_tokens=max_new_tokens,
            lenient=self.lenient,
            clock=clock,
        )
        if self.source is not None:
            self.source.turn = turn
        fed = context.token_ids[known:-1]
        wanted = self.parts.wants_prefill_logits and fed.size
        drafting.begin(RecordedPrefill(context, fed.copy(), turn) if wanted else None)
        decoding = Decoding(self.target, observers)
        decoding.add(lane)
        while decoding.lanes:
            decoding.step()
        return replace(lane.result, seconds=dict.fromkeys(lane.result.seconds, 0.0))
