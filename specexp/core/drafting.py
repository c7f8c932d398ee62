"""Who drafts for a sequence: its builder's questions are put to its drafter, as long as its controller lets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType

import numpy as np

from specexp.core.context import Context
from specexp.core.dialogue import DraftState, Request
from specexp.core.outcome import Outcome
from specexp.core.parts import Controller, Parts
from specexp.core.tree import TokenTree, root_tree


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
    """Who drafts for one sequence, and learns; it knows nothing of the target.

    Args:
        parts: drafter and builder, None in plain decoding, and the controller.
        context: the sequence.
    """

    def __init__(self, parts: Parts, context: Context) -> None:
        self.drafter, self.builder, _, self.controller = parts
        self.context = context
        self.learned_candidates = 0 if self.drafter is None else self.drafter.most_learned
        # most controllers never stop a draft: spare those the question
        self._may_stop = type(self.controller).keep_drafting is not Controller.keep_drafting

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
        pass_tokens: list[int] = []
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
                    if (
                        self._may_stop
                        and drafter.costs_pass(request)
                        and not self._keep_drafting(request, pass_tokens)
                    ):
                        request = build.send(None)
                        continue
                    asked = perf_counter()
                    passes, fed = drafter.draft_passes, drafter.fed_tokens
                    answer = drafter.propose(self.context, request)
                    if passes := drafter.draft_passes - passes:  # several of one answer share its tokens
                        pass_tokens += [(drafter.fed_tokens - fed) // passes] * passes
                    drafting += perf_counter() - asked
                    request = build.send(answer)
            except StopIteration as finished:
                tree = finished.value
        return Draft(tree, tuple(pass_tokens), drafting, perf_counter() - started - drafting)

    def learn(self, outcome: Outcome) -> None:
        """What the target said of the last draft; the context already holds the new tokens."""
        if self.drafter is not None:
            self.drafter.observe(outcome)
        self.controller.observe(outcome)

    def _keep_drafting(self, request: Request, pass_tokens: Sequence[int]) -> bool:
        nodes = int(np.count_nonzero(request.tokens >= 0)) - 1
        depths = request.depths()
        log_prob, last = request.best_path_log_probs()
        state = DraftState(nodes, max(depths, default=0), tuple(pass_tokens), log_prob, last)
        return self.controller.keep_drafting(self.context, state)


class DraftingFor:
    """Notes in whatever is raised within for whose draft it was; None names nobody."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: int | str | None) -> None:
        self.sequence = sequence

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self.sequence is not None:
            error.add_note(f"raised while drafting for sequence {self.sequence!r}")
