"""One continuation being decoded: a step split in two halves, ``draft`` and ``absorb``.

Plain decoding alternates the halves; a scheduler may draft many sequences while the target verifies others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal

import torch

from specexp.builders import TreeBuilder
from specexp.context import Context
from specexp.controllers import Controller, DraftState
from specexp.drafters import Drafter, Request
from specexp.models.language_model import LanguageModel
from specexp.models.logits import check_logits
from specexp.outcome import Outcome
from specexp.tree import TokenTree, root_tree
from specexp.verifiers import DeterministicVerifier, Verifier

FinishReason = Literal["eos", "length", "context"]
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


@dataclass(frozen=True)
class Strategy:
    """The parts of a speculative decoder; ``drafter`` and ``builder`` are None for plain decoding."""

    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier
    controller: Controller


class Sequence:
    """One continuation, its slot in the target's cache, and its step.

    Args:
        model: the target.
        strategy: the parts.
        context: prompt and noise keys; everything but its last token must be in the slot already.
        slot: the sequence's slot.
        max_new_tokens: tokens to generate at most.
        eos_token_ids: tokens that end the output.
        count_useful: also count useful tokens, outside the timed phases.
    """

    def __init__(
        self,
        model: LanguageModel,
        strategy: Strategy,
        context: Context,
        *,
        slot: int,
        max_new_tokens: int,
        eos_token_ids: Collection[int],
        count_useful: bool = False,
    ) -> None:
        self.model = model
        self.strategy = strategy
        self.context = context
        self.slot = slot
        self.counts = Counts(useful_tokens=0 if count_useful else None)
        self.finish_reason: FinishReason | None = None
        room = model.context_limit - len(context)
        self._limit: FinishReason = "length" if max_new_tokens <= room else "context"
        self._end = len(context) + min(max_new_tokens, room)
        self._eos = frozenset(eos_token_ids)
        self._tree: TokenTree | None = None
        self._pass_tokens: list[int] = []  # of this step
        self._seconds_before = dict(self.counts.seconds)

    def draft(self) -> TokenTree:
        """First half of a step: the tree the target should check next.

        It is never deeper than the tokens still wanted, less the bonus token.
        """
        started = perf_counter()
        drafting = 0.0
        self._pass_tokens = []
        self._seconds_before = dict(self.counts.seconds)
        drafter, builder = self.strategy.drafter, self.strategy.builder
        depth = self._end - len(self.context) - 1
        if drafter is None or builder is None or depth == 0:
            tree = root_tree(self.context.root)
        else:
            plan = self.strategy.controller.plan(self.context)
            if plan.max_depth is None or plan.max_depth > depth:
                plan = replace(plan, max_depth=depth)
            build = builder.build(self.context.root, plan)
            try:
                request = next(build)
                while True:
                    if drafter.costs_pass(request) and not self._keep_drafting(request):
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
        seconds = self.counts.seconds
        seconds["draft"] += drafting
        seconds["build"] += perf_counter() - started - drafting
        self._tree = tree
        return tree

    def _keep_drafting(self, request: Request) -> bool:
        controller = self.strategy.controller
        if type(controller).keep_drafting is Controller.keep_drafting:  # always yes: spare it the state
            return True
        nodes = int((request.tokens >= 0).sum()) - 1
        depths = request.depths()
        log_prob, last = request.best_log_prob()
        state = DraftState(nodes, max(depths, default=0), tuple(self._pass_tokens), log_prob, last)
        return controller.keep_drafting(self.context, state)

    def absorb(self, logits: torch.Tensor) -> Outcome:
        """Second half of a step: accept, commit, learn.

        Args:
            logits: ``[n + 1, V]`` the target's answer to the tree of :meth:`draft`.

        Returns:
            The outcome; :attr:`finish_reason` is set when it was the last.
        """
        tree = self._tree
        if tree is None:
            raise RuntimeError("absorb() needs the tree of a draft() before it")
        counts, seconds = self.counts, self.counts.seconds
        started = perf_counter()
        check_logits(logits, "target", self.context)
        verdict = self.strategy.verifier.verify(self.context, tree, logits)
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
        committed = perf_counter()
        seconds["commit"] += committed - verified
        seconds["verify"] += verified - started
        spent = {phase: seconds[phase] - before for phase, before in self._seconds_before.items()}
        outcome = Outcome(
            self.context, tree, logits, accepted, tuple(tokens), tuple(self._pass_tokens), spent
        )
        if self.strategy.drafter is not None:
            self.strategy.drafter.observe(outcome)
        self.strategy.controller.observe(outcome)
        seconds["update"] += perf_counter() - committed
        counts.steps += 1
        counts.accepted_drafts += len(accepted)
        counts.bonus_tokens += len(tokens) - len(accepted)
        counts.drafted_nodes += tree.num_nodes
        counts.draft_passes += len(self._pass_tokens)
        self._tree = None
        return outcome

    def _cut(self, tokens: list[int]) -> list[int]:
        """End the output at the first EOS and at the limit, and say why."""
        for index, token in enumerate(tokens):
            if token in self._eos:
                self.finish_reason = "eos"
                return tokens[: index + 1]
            if len(self.context) + index + 1 == self._end:
                self.finish_reason = self._limit
                return tokens[: index + 1]
        return tokens

    def _useful(self, tree: TokenTree, logits: torch.Tensor) -> int:
        verifier = self.strategy.verifier
        if not isinstance(verifier, DeterministicVerifier):
            return 0
        useful, row, position = 0, 0, len(self.context)
        while tree.shape.children[row]:
            child = tree.shape.children[row][0]
            useful += verifier.target_token(self.context, logits[row], position) == tree.tokens[child]
            row, position = child, position + 1
        return useful
