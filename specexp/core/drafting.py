"""Who drafts for a sequence: its builder's questions are put to its drafter, as long as its controller lets them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType

import numpy as np

from specexp.core.context import Context
from specexp.core.controller import Controller
from specexp.core.dialogue import Build, Candidates, DraftState, Request
from specexp.core.drafter import Drafter
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
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
        self.may_stop = type(self.controller).keep_drafting is not Controller.keep_drafting

    def begin(self, prefill: Outcome | None) -> None:
        """The prompt is known: let the parts begin."""
        if self.drafter is not None:
            self.drafter.begin(self.context, prefill)
        self.controller.begin(self.context, prefill)

    def learn(self, outcome: Outcome) -> None:
        """What the target said of the last draft; the context already holds the new tokens."""
        if self.drafter is not None:
            self.drafter.observe(outcome)
        self.controller.observe(outcome)


class _Growing:
    """A tree that is being made.

    Args:
        drafting: who makes it.
        depth: deepest node of use.

    Attributes:
        request: what its builder asks the drafter next; None once the tree is made.
    """

    def __init__(self, drafting: Drafting, depth: int) -> None:
        started = perf_counter()
        self.drafting = drafting
        self.request: Request | None = None
        self._tree: TokenTree | None = None
        self._build: Build | None = None
        self._pass_tokens: list[int] = []
        self._drafted = self._built = 0.0  # seconds
        context, builder = drafting.context, drafting.builder
        if builder is None or depth == 0:
            self._tree = root_tree(context.root)
        else:
            plan = drafting.controller.plan(context)
            if plan.max_depth is None or plan.max_depth > depth:
                plan = replace(plan, max_depth=depth)
            self._build = builder.build(context.root, plan)
            self._go_on(None)
        self._built += perf_counter() - started

    @property
    def made(self) -> Draft:
        """The tree, and what it took."""
        assert self._tree is not None
        return Draft(self._tree, tuple(self._pass_tokens), self._drafted, self._built)

    @property
    def question(self) -> tuple[Drafter, Context, Request]:
        """Who is asked, in which sequence, and what."""
        drafter = self.drafting.drafter
        assert drafter is not None
        assert self.request is not None
        return drafter, self.drafting.context, self.request

    def take(self, answer: Candidates, passes: int, fed: int, seconds: float) -> None:
        """The drafter's answer, the draft passes that it took, their tokens and their time.

        Raises:
            TypeError: the answer is something else than candidates.
        """
        if not isinstance(answer, Candidates):  # None would end the draft unnoticed
            name = type(self.drafting.drafter).__name__
            raise TypeError(f"{name}.propose must return Candidates, got {type(answer).__name__}")
        if passes:  # several of one answer share its tokens
            self._pass_tokens += [fed // passes] * passes
        self._drafted += seconds
        started = perf_counter()
        self._go_on(answer)
        self._built += perf_counter() - started

    def _go_on(self, answer: Candidates | None) -> None:
        assert self._build is not None
        drafting = self.drafting
        try:
            self.request = self._build.send(answer)
            while drafting.may_stop and self._stops(self.request):
                self.request = self._build.send(None)
        except StopIteration as finished:
            self.request, self._tree = None, finished.value

    def _stops(self, request: Request) -> bool:
        """Whether the controller ends the draft before an answer that would cost a pass."""
        drafting = self.drafting
        if drafting.drafter is None or not drafting.drafter.costs_pass(request):
            return False
        nodes = int(np.count_nonzero(request.tokens >= 0)) - 1
        depths = request.depths()
        log_prob, last = request.best_path_log_probs()
        state = DraftState(nodes, max(depths, default=0), tuple(self._pass_tokens), log_prob, last)
        return not drafting.controller.keep_drafting(drafting.context, state)


def draft_together(asked: Sequence[tuple[Drafting, int]]) -> list[Draft]:
    """The trees that the target should check next, of one sequence, or of several whose drafters are a team: all of
    them are asked in one go, depth by depth.

    Args:
        asked: who drafts, each with the deepest node of use: the tokens still wanted, less the bonus token.
    """
    trees = []
    for drafting, depth in asked:
        with DraftingFor(drafting.context.sequence):
            trees.append(_Growing(drafting, depth))
    while growing := [tree for tree in trees if tree.request is not None]:
        started = perf_counter()
        questions = [tree.question for tree in growing]
        before = [(drafter.draft_passes, drafter.fed_tokens) for drafter, _, _ in questions]
        drafter, context, request = questions[0]
        if len(questions) == 1:
            with DraftingFor(context.sequence):
                answers = [drafter.propose(context, request)]
        else:
            answers = drafter.propose_together(questions)
        share = (perf_counter() - started) / len(growing)
        for tree, (drafter, context, _), (passes, fed), answer in zip(
            growing, questions, before, answers, strict=True
        ):
            with DraftingFor(context.sequence):
                tree.take(answer, drafter.draft_passes - passes, drafter.fed_tokens - fed, share)
    return [tree.made for tree in trees]


def teams(draftings: Sequence[Drafting]) -> list[list[int]]:
    """Who is asked together: places of drafters of one team, in the order of the first of each."""
    found: dict[Hashable, list[int]] = {}
    for place, drafting in enumerate(draftings):
        team = None if drafting.drafter is None else drafting.drafter.team
        found.setdefault((None, place) if team is None else (team,), []).append(place)
    return list(found.values())


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
