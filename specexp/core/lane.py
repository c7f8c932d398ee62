"""A sequence being decoded: what is drafted for it, what is accepted of that, where its output ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from time import perf_counter

import torch

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.drafting import Draft, Drafting
from specexp.core.generation import FinishReason, GenerationResult
from specexp.core.outcome import Outcome, Top
from specexp.core.runtime import Target
from specexp.core.sampling import check_best, check_logits, on_host, to_host
from specexp.core.tree import TokenTree
from specexp.core.verifier import DeterministicVerifier, Verifier, walk

Stop = Callable[[Sequence[int]], bool]
"""Whether the output ends with these new tokens. It is asked after every one of them, so that the output ends in the
same place however many were accepted together."""
Clock = Callable[[Outcome], Mapping[str, float]]
"""Seconds of a step by phase, where they are modelled."""


def _count_each(counts: list[int], positions: int) -> None:
    """One more of each of the first positions."""
    counts.extend([0] * (positions - len(counts)))
    for position in range(positions):
        counts[position] += 1


class Lane:
    """A sequence being decoded: where it lies at the target, what is accepted, where the output ends, what it took.

    Args:
        context: prompt and noise keys.
        target: whose slot it has.
        verifier: what is accepted.
        drafting: who drafts for it; None where that stands elsewhere.
        slot: the sequence's slot.
        max_new_tokens: tokens to generate at most.
        eos_token_ids: tokens that end the output.
        stop: whether the output ends otherwise.
        count_useful: also count useful tokens, outside the timed phases.
        clock: seconds of a step, for parts that learn from them; measured if None.

    Attributes:
        draft: what the target checks in the next step; None while there is none.
        result: what it gave and took so far.
    """

    def __init__(
        self,
        context: Context,
        target: Target,
        verifier: Verifier,
        drafting: Drafting | None = None,
        *,
        slot: int = 0,
        max_new_tokens: int,
        eos_token_ids: Collection[int] = frozenset(),
        stop: Stop | None = None,
        count_useful: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.context = context
        self.target = target
        self.verifier = verifier
        self.drafting = drafting
        self.slot = slot
        self.draft: Draft | None = None
        self.result = GenerationResult(seed=context.seed, useful_tokens=0 if count_useful else None)
        room = target.context_limit - len(context)
        self._limit: FinishReason = "length" if max_new_tokens <= room else "context"
        self._end = len(context) + min(max_new_tokens, room)
        self._eos = frozenset(eos_token_ids)
        self._stop = stop
        self._clock = clock
        self._seconds_before = dict(self.result.seconds)

    @property
    def depth(self) -> int:
        """Deepest node of use in the next tree: the tokens still wanted, less the bonus token."""
        return self._end - len(self.context) - 1

    @property
    def own_drafting(self) -> Drafting:
        """Who drafts for it here."""
        assert self.drafting is not None, "drafts for this lane are made elsewhere"
        return self.drafting

    @property
    def ended(self) -> bool:
        """Whether the output has ended."""
        return self.result.finish_reason != ""

    def take(self, draft: Draft) -> None:
        """A step begins: this is what the target checks in it.

        Raises:
            ValueError: a drafted token is not in the target's vocabulary.
        """
        tokens = draft.tree.tokens.tolist()  # for trees of this size numpy's reductions cost more
        if not 0 <= min(tokens) <= max(tokens) < self.target.vocab_size:
            raise ValueError(self._foreign_token(tokens))
        seconds = self.result.seconds
        self._seconds_before = dict(seconds)
        seconds["draft"] += draft.draft_seconds
        seconds["build"] += draft.build_seconds
        self.draft = draft

    def _foreign_token(self, tokens: Sequence[int]) -> str:
        known = self.target.vocab_size
        token = next(token for token in tokens if not 0 <= token < known)
        drafter = None if self.drafting is None else self.drafting.drafter
        name = "the drafter" if drafter is None else type(drafter).__name__
        return f"{name} proposed token {token}; the target's vocabulary has ids 0 to {known - 1}"

    def absorb(
        self, logits: torch.Tensor, hidden: torch.Tensor | None = None, verdict: Verdict | None = None
    ) -> Outcome:
        """Accept, keep the accepted rows, and commit the new tokens; after the last ones the lane has :attr:`ended`.

        Args:
            logits: ``[n + 1, V]`` the target's answer to the tree of :attr:`draft`.
            hidden: ``[n + 1, d]`` its hidden states, where they are kept.
            verdict: what :func:`decide_together` decided; None where nothing was.
        """
        result, draft = self.result, self.draft
        assert draft is not None
        tree = draft.tree
        started = perf_counter()
        top = None
        if verdict is None:
            verdict, top = self.decide(tree, logits)
        tokens = self._cut([*(int(tree.tokens[row]) for row in verdict.accepted), verdict.bonus])
        accepted = verdict.accepted[: len(tokens)]
        verified = perf_counter()
        # The last new token is the next root: it stays out of the cache even where a cut left it a drafted node.
        self.target.commit(self.slot, [0, *accepted[: len(tokens) - 1]])
        if result.useful_tokens is not None:
            paused = perf_counter()
            result.useful_tokens += self._useful(tree, logits)
            pause = perf_counter() - paused
            started, verified = started + pause, verified + pause  # outside the clock
        self.context.append(tokens)
        self.context.steps += 1
        result.seconds["commit"] += perf_counter() - verified
        result.seconds["verify"] += verified - started
        result.steps += 1
        result.accepted_drafts += len(accepted)
        result.bonus_tokens += len(tokens) - len(accepted)
        result.drafted_nodes += tree.num_nodes
        _count_each(result.drafted_at, tree.shape.max_depth)
        _count_each(result.accepted_at, len(accepted))
        result.draft_passes += len(draft.pass_tokens)
        if self.ended:
            result.token_ids = self.context.new_token_ids
        outcome = self.outcome(draft, logits, accepted, tuple(tokens))
        outcome.hidden = hidden
        if top is not None:
            outcome.top = top
        if self._clock is None:
            before = self._seconds_before
            outcome.seconds = {phase: spent - before[phase] for phase, spent in result.seconds.items()}
        else:
            outcome.seconds = self._clock(outcome)
        self.draft = None
        return outcome

    def decide(self, tree: TokenTree, logits: torch.Tensor) -> tuple[Verdict, Top | None]:
        """What the verifier decided, and what was read beside it of the target's best tokens, for who learns them.

        Where the logits are on a device, its tokens, whether they are numbers, and what is learned come in one copy; a
        verifier that tries child after child has the logits themselves copied, and works on the host.
        """
        verifier, scores = self.verifier, None
        if not on_host(logits):
            if isinstance(verifier, DeterministicVerifier):
                scores = verifier.scores(self.context, tree, logits)
            else:
                logits = logits.cpu()
        if scores is None:
            check_logits(logits, "target", self.context)
            return verifier.verify(self.context, tree, logits), None
        best, tokens = scores.max(dim=-1)
        wanted = [tokens, best.float()]
        if self.drafting is not None and (k := self.drafting.learned_candidates):
            values, indices = logits.topk(k, dim=-1)
            wanted += [indices, values.float()]
        said, highest, *top = to_host(*wanted)
        check_best(highest, "target", self.context)
        return walk(tree, said.tolist().__getitem__), (top[0], top[1]) if top else None

    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        """What is learned from."""
        return Outcome(self.context, draft.tree, logits, accepted, new_token_ids, draft.pass_tokens)

    def _cut(self, tokens: list[int]) -> list[int]:
        """End the output at the first EOS, at the first stop and at the limit, and say why."""
        said = self.context.new_token_ids if self._stop is not None else []
        for place, token in enumerate(tokens):
            said.append(token)
            reason: FinishReason = ""
            if token in self._eos:
                reason = "eos"
            elif self._stop is not None and self._stop(said):
                reason = "stop"
            elif len(self.context) + place + 1 == self._end:
                reason = self._limit
            if reason:
                self.result.finish_reason = reason
                return tokens[: place + 1]
        return tokens

    def _useful(self, tree: TokenTree, logits: torch.Tensor) -> int:
        verifier = self.verifier
        if not isinstance(verifier, DeterministicVerifier):
            return 0
        useful, row, position = 0, 0, len(self.context)
        while tree.shape.children[row]:
            child = tree.shape.children[row][0]
            useful += verifier.target_token(self.context, logits[row], position) == tree.tokens[child]
            row, position = child, position + 1
        return useful


def decide_together(lanes: Sequence[Lane], answers: Sequence[torch.Tensor]) -> list[Verdict | None]:
    """What verifiers of one law decide of several lanes' trees, all of them a level at a time; None for a lane that
    decides by itself. Their time is noted in equal parts.

    Args:
        lanes: those of a pass.
        answers: ``[n + 1, V]`` the target's answer to the tree of each.
    """
    groups: dict[Hashable, list[int]] = {}
    for place, (lane, logits) in enumerate(zip(lanes, answers, strict=True)):
        verifier = lane.verifier
        if isinstance(verifier, DeterministicVerifier) and verifier.law is not None and on_host(logits):
            groups.setdefault(verifier.law, []).append(place)
    verdicts: list[Verdict | None] = [None] * len(lanes)
    for places in groups.values():
        if len(places) > 1:
            started = perf_counter()
            together = [(lanes[place], answers[place]) for place in places]
            for place, verdict in zip(places, _walk_together(together), strict=True):
                verdicts[place] = verdict
            share = (perf_counter() - started) / len(places)
            for lane, _ in together:
                lane.result.seconds["verify"] += share
    return verdicts


def _walk_together(asked: Sequence[tuple[Lane, torch.Tensor]]) -> list[Verdict]:
    """As :func:`~specexp.core.verifier.walk`, for several lanes whose verifiers have one law."""
    paths: list[list[int]] = [[0] for _ in asked]  # rows from the root down
    bonus = [0] * len(asked)
    verifier = asked[0][0].verifier
    assert isinstance(verifier, DeterministicVerifier)
    for lane, logits in asked:
        check_logits(logits, "target", lane.context)
    going = list(range(len(asked)))
    while going:
        rows = torch.stack([asked[place][1][paths[place][-1]] for place in going])
        contexts = [asked[place][0].context for place in going]
        depth = len(paths[going[0]]) - 1
        tokens = verifier.target_tokens(contexts, rows, [len(context) + depth for context in contexts])
        further = []
        for place, token in zip(going, tokens, strict=True):
            draft = asked[place][0].draft
            assert draft is not None
            child = draft.tree.child_with_token(paths[place][-1], token)
            if child is None:
                bonus[place] = token
            else:
                paths[place].append(child)
                further.append(place)
        going = further
    return [Verdict(tuple(path[1:]), token) for path, token in zip(paths, bonus, strict=True)]
