"""One continuation being decoded: a step split in two halves, drafting and verification.

Plain decoding alternates the halves in one place, as a :class:`Sequence`; a scheduler keeps them apart, and drafts some
sequences while the target verifies others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal, Protocol

import numpy as np
import torch

from specexp.core.context import Context
from specexp.core.logits import check_logits
from specexp.core.outcome import Outcome
from specexp.core.parts import (
    Controller,
    DeterministicVerifier,
    Drafter,
    DraftState,
    Parts,
    Request,
    TreeBuilder,
    Verifier,
)
from specexp.core.tree import TokenTree, root_tree

FinishReason = Literal["eos", "stop", "length", "context"]
Stop = Callable[[Tokens[int]], bool]
"""Whether the output ends with these new tokens. It is asked after every one of them, so that the output ends in the
same place however many were accepted together."""
PHASES = ("draft", "build", "target", "verify", "commit", "update")
"""Where the time of a step goes: the drafter's answers, the builder and controller, the target pass, acceptance,
keeping the accepted rows, and learning. They add up to the step."""


@dataclass
class Counts:
    """What decoding one sequence took; every metric of the papers derives from these.

    Attributes:
        steps: target passes, the prefill not counted.
        accepted_drafts: drafted tokens that became output.
        bonus_tokens: tokens the target added itself, at most one a step.
        draft_passes: forward passes of a draft model.
        drafted_nodes: nodes fed to the target, roots not counted.
        useful_tokens: drafted tokens of the first-ranked path that the target answered identically, also beyond the
            first mismatch (Post-use & Pre-cut, eq. 7); None unless asked for.
        seconds: time by phase, see :data:`PHASES`.
    """

    steps: int = 0
    accepted_drafts: int = 0
    bonus_tokens: int = 0
    draft_passes: int = 0
    drafted_nodes: int = 0
    useful_tokens: int | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafting gave, and what it took.

    Attributes:
        tree: what the target should check.
        pass_tokens: tokens fed in each forward pass of a draft model.
        draft_seconds: time of the drafter's answers.
        build_seconds: time of builder and controller.
    """

    tree: TokenTree
    pass_tokens: tuple[int, ...] = ()
    draft_seconds: float = 0.0
    build_seconds: float = 0.0


class Drafting:
    """The half of a sequence that drafts and learns; it knows nothing of the target.

    Args:
        drafter: who guesses; None, with ``builder`` None, drafts nothing.
        builder: which guesses become nodes.
        controller: how much to draft.
        context: the sequence.
    """

    def __init__(
        self, drafter: Drafter | None, builder: TreeBuilder | None, controller: Controller, context: Context
    ) -> None:
        self.drafter = drafter
        self.builder = builder
        self.controller = controller
        self.context = context
        self._pass_tokens: list[int] = []  # of this step
        # most controllers never stop a draft: spare those the question
        self._may_stop = type(controller).keep_drafting is not Controller.keep_drafting

    def begin(self, prefill: Outcome | None) -> None:
        """The prompt is known: let the parts begin."""
        if self.drafter is not None:
            self.drafter.begin(self.context, prefill)
        self.controller.begin(self.context, prefill)

    def draft(self, depth: int) -> Draft:
        """The tree the target should check next.

        Args:
            depth: deepest node of use: the tokens still wanted, less the bonus token.
        """
        started = perf_counter()
        drafting = 0.0
        self._pass_tokens = []
        drafter, builder = self.drafter, self.builder
        if drafter is None or builder is None or depth == 0:
            tree = root_tree(self.context.root)
        else:
            plan = self.controller.plan(self.context)
            if plan.max_depth is None or plan.max_depth > depth:
                plan = replace(plan, max_depth=depth)
            build = builder.build(self.context.root, plan)
            try:
                request = next(build)
                while True:
                    if self._may_stop and drafter.costs_pass(request) and not self._keep_drafting(request):
                        request = build.send(None)
                        continue
                    asked = perf_counter()
                    passes, fed = drafter.draft_passes, drafter.fed_tokens
                    answer = drafter.propose(self.context, request)
                    if passes := drafter.draft_passes - passes:  # several of one answer share its tokens
                        self._pass_tokens += [(drafter.fed_tokens - fed) // passes] * passes
                    drafting += perf_counter() - asked
                    request = build.send(answer)
            except StopIteration as finished:
                tree = finished.value
        return Draft(tree, tuple(self._pass_tokens), drafting, perf_counter() - started - drafting)

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens fed in each draft pass of the last draft."""
        return tuple(self._pass_tokens)

    def learn(self, outcome: Outcome) -> None:
        """What the target said of the last draft; the context already holds the new tokens."""
        if self.drafter is not None:
            self.drafter.observe(outcome)
        self.controller.observe(outcome)

    def _keep_drafting(self, request: Request) -> bool:
        nodes = int(np.count_nonzero(request.tokens >= 0)) - 1
        depths = request.depths()
        log_prob, last = request.best_log_prob()
        state = DraftState(nodes, max(depths, default=0), tuple(self._pass_tokens), log_prob, last)
        return self.controller.keep_drafting(self.context, state)


class Rows(Protocol):
    """Where the accepted rows are kept: a cache."""

    def commit(self, slot: int, rows: Tokens[int]) -> None:
        """Keep these rows of the last pass."""


class Target(Protocol):
    """What the verifying half needs of a target."""

    @property
    def context_limit(self) -> int:
        """Positions it takes at most."""

    @property
    def cache(self) -> Rows:
        """Of its sequences."""


class Verification:
    """The half of a sequence at the target: its slot, what is accepted, and where the output ends.

    Args:
        model: the target.
        verifier: what is accepted.
        context: prompt and noise keys; everything but its last token must be in the slot before the first step.
        slot: the sequence's slot.
        max_new_tokens: tokens to generate at most.
        eos_token_ids: tokens that end the output.
        stop: whether the output ends otherwise.
        count_useful: also count useful tokens, outside the timed phases.

    Attributes:
        counts: what was taken so far.
        finish_reason: why the output ended; None before that.
    """

    def __init__(
        self,
        model: Target,
        verifier: Verifier,
        context: Context,
        *,
        slot: int,
        max_new_tokens: int,
        eos_token_ids: Collection[int],
        stop: Stop | None = None,
        count_useful: bool = False,
    ) -> None:
        self.model = model
        self.verifier = verifier
        self.context = context
        self.slot = slot
        self.counts = Counts(useful_tokens=0 if count_useful else None)
        self.finish_reason: FinishReason | None = None
        room = model.context_limit - len(context)
        self._limit: FinishReason = "length" if max_new_tokens <= room else "context"
        self._end = len(context) + min(max_new_tokens, room)
        self._eos = frozenset(eos_token_ids)
        self._stop = stop

    @property
    def depth(self) -> int:
        """Deepest node of use in the next tree: the tokens still wanted, less the bonus token."""
        return self._end - len(self.context) - 1

    def absorb(self, draft: Draft, logits: torch.Tensor) -> Outcome:
        """Accept, keep the accepted rows, and commit the new tokens.

        Args:
            draft: what was fed.
            logits: ``[n + 1, V]`` the target's answer to it.

        Returns:
            The outcome; :attr:`finish_reason` is set when it was the last.
        """
        counts, seconds, tree = self.counts, self.counts.seconds, draft.tree
        started = perf_counter()
        self.check(logits)
        verdict = self.verifier.verify(self.context, tree, logits)
        tokens = [*(int(tree.tokens[row]) for row in verdict.accepted), verdict.bonus]
        tokens = self._cut(tokens)
        accepted = verdict.accepted[: len(tokens)]
        verified = perf_counter()
        # The last new token is the next root: it stays out of the cache even where a cut left it a drafted node.
        self.model.cache.commit(self.slot, [0, *accepted[: len(tokens) - 1]])
        if counts.useful_tokens is not None:
            paused = perf_counter()
            counts.useful_tokens += self._useful(tree, logits)
            pause = perf_counter() - paused
            started, verified = started + pause, verified + pause  # outside the clock
        self.context.append(tokens)
        self.context.steps += 1
        seconds["commit"] += perf_counter() - verified
        seconds["verify"] += verified - started
        counts.steps += 1
        counts.accepted_drafts += len(accepted)
        counts.bonus_tokens += len(tokens) - len(accepted)
        counts.drafted_nodes += tree.num_nodes
        counts.draft_passes += len(draft.pass_tokens)
        return self.outcome(draft, logits, accepted, tuple(tokens))

    def check(self, logits: torch.Tensor) -> None:
        """Refuse logits that nothing can be sampled from."""
        check_logits(logits, "target", self.context)

    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        """What is learned from."""
        return Outcome(self.context, draft.tree, logits, accepted, new_token_ids, draft.pass_tokens)

    def _cut(self, tokens: list[int]) -> list[int]:
        """End the output at the first EOS, at the first stop and at the limit, and say why."""
        said = self.context.new_token_ids if self._stop is not None else []
        for index, token in enumerate(tokens):
            said.append(token)
            if token in self._eos:
                self.finish_reason = "eos"
            elif self._stop is not None and self._stop(said):
                self.finish_reason = "stop"
            elif len(self.context) + index + 1 == self._end:
                self.finish_reason = self._limit
            if self.finish_reason is not None:
                return tokens[: index + 1]
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


class Sequence:
    """One continuation with both halves in one place, taking turns.

    Args:
        parts: of the step.
        verification: the half at the target, of a context whose prompt is prefilled and begun.

    Attributes:
        context: the sequence.
        drafting: the other half.
        verification: the half at the target.
    """

    def __init__(self, parts: Parts, verification: Verification) -> None:
        self.context = verification.context
        self.verification = verification
        self.drafting = Drafting(parts.drafter, parts.builder, parts.controller, self.context)
        self._draft: Draft | None = None
        self._seconds_before = dict(self.counts.seconds)

    @property
    def counts(self) -> Counts:
        """What was taken so far."""
        return self.verification.counts

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the output ended; None before that."""
        return self.verification.finish_reason

    def draft(self) -> TokenTree:
        """First half of a step: the tree the target should check next.

        It is never deeper than the tokens still wanted, less the bonus token.
        """
        self._seconds_before = dict(self.counts.seconds)
        draft = self._draft = self.drafting.draft(self.verification.depth)
        self.counts.seconds["draft"] += draft.draft_seconds
        self.counts.seconds["build"] += draft.build_seconds
        return draft.tree

    def absorb(self, logits: torch.Tensor) -> Outcome:
        """Second half of a step: accept, commit, learn.

        Args:
            logits: ``[n + 1, V]`` the target's answer to the tree of :meth:`draft`.

        Returns:
            The outcome; :attr:`finish_reason` is set when it was the last.
        """
        draft = self._draft
        if draft is None:
            raise RuntimeError("absorb() needs the tree of a draft() before it")
        outcome = self.verification.absorb(draft, logits)
        seconds = self.counts.seconds
        outcome.seconds = {phase: seconds[phase] - before for phase, before in self._seconds_before.items()}
        started = perf_counter()
        self.drafting.learn(outcome)
        seconds["update"] += perf_counter() - started
        self._draft = None
        return outcome
