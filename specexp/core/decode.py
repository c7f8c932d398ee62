"""The loop: draft, target pass, absorb, learn, written once, over one sequence or several.

A :class:`Lane` is a sequence being decoded in a slot of the target; a :class:`Decoding` takes all its lanes through one
step at a time, and lanes come and go between two steps. Who drafts may stand elsewhere (:mod:`specexp.scheduling`), and
who answers may be a recording; clock, counters, EOS, stops and limits are here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Literal

import torch

from specexp.core.drafting import DraftingFor, draft_together, teams
from specexp.core.lane import Lane, decide_together
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.runtime import Target

OutcomeObserver = Callable[[Outcome], None]
Side = Literal["target", "draft"]
What = Literal["prefill", "draft", "learn", "target", "verify", "resample"]
"""``target`` is a pass of the target; ``verify`` the decision after it where the accepted path is as deep as the tree,
and ``resample`` where it ends before that, and the target's own token takes a draft's place."""


class Decoding:
    """Lanes on one target, taken through a step at a time; they come and go between two steps.

    Drafts are made here, by each lane's own parts; drafters of a team are asked together. A subclass whose drafts are
    made elsewhere replaces :meth:`begin`, :meth:`drafts` and :meth:`learn`, and :meth:`note` if it wants to know who
    did what when.

    Args:
        target: it answers all lanes of a step in one pass.
        observers: called with every step's outcome after it was learned from, outside the lanes' clocks.
        together: whether drafters of a team are asked together; if not, no draft's rounding hangs on another lane.

    Attributes:
        lanes: those under way, by slot, in the order they came.
        passes: target passes so far.

    Example:
        >>> decoding = Decoding(model)  # doctest: +SKIP
        >>> decoding.start(Lane(context, model, verifier, Drafting(parts, context), max_new_tokens=64))
        >>> while decoding.lanes:
        ...     ended = decoding.step()
    """

    def __init__(
        self, target: Target, observers: Iterable[OutcomeObserver] = (), together: bool = True
    ) -> None:
        self.target = target
        self.together = together
        self.observers = tuple(observers)
        self.lanes: dict[int, Lane] = {}
        self.passes = 0

    def start(self, lane: Lane, wants_logits: bool = False, since: float | None = None) -> None:
        """Feed what the lane's slot lacks of the prompt, all but the root, and let its parts begin.

        Args:
            lane: takes part from the next step on; its slot holds a beginning of the prompt, or nothing.
            wants_logits: whether its drafter learns from the target's answers to the prompt.
            since: when its prefill began; now if None.
        """
        started = perf_counter() if since is None else since
        context, target = lane.context, self.target
        fed = context.token_ids[target.length(lane.slot) : -1].copy()
        logits = target.prefill(lane.slot, fed.tolist(), all_logits=wants_logits)
        target.synchronize()
        read = perf_counter()
        self.note("target", "prefill", lane, started, read, fed.size)
        hidden = target.hidden[0] if target.hidden else None
        if logits is None and hidden is not None:
            logits = torch.empty((0, 0))
        self.begin(lane, None if logits is None else prefill_outcome(context, fed, logits, hidden))
        lane.result.prefill_seconds += perf_counter() - started
        self.add(lane)

    def add(self, lane: Lane) -> None:
        """Let a lane take part from the next step on, whose prompt its slot and its parts know.

        Raises:
            ValueError: another lane has its slot.
        """
        if lane.slot in self.lanes:
            raise ValueError(
                f"slot {lane.slot} holds a sequence that goes on: remove its lane first, or take another"
            )
        self.lanes[lane.slot] = lane

    def remove(self, lane: Lane) -> None:
        """Leave a lane's output where it is; its slot is free."""
        del self.lanes[lane.slot]

    def step(self) -> list[Lane]:
        """Draft, pass, absorb, learn; the lanes whose output has ended with it, which take part no more."""
        lanes = self.drafts()
        trees = [lane.draft.tree for lane in lanes if lane.draft is not None]
        started = perf_counter()
        answers = self.target.tree_pass([lane.slot for lane in lanes], trees)
        self.target.synchronize()
        ended = perf_counter()
        fed = sum(tree.tokens.size for tree in trees)
        self.note("target", "target", lanes[0], started, ended, fed)
        hidden: Sequence[torch.Tensor | None] = self.target.hidden or [None] * len(lanes)
        for lane in lanes:
            lane.result.seconds["target"] += (ended - started) / len(lanes)
        answered = perf_counter()
        verdicts = decide_together(lanes, answers)
        for lane, tree, logits, states, verdict in zip(lanes, trees, answers, hidden, verdicts, strict=True):
            outcome = lane.absorb(logits, states, verdict)
            decision: What = "resample" if len(outcome.accepted) < tree.shape.max_depth else "verify"
            self.note("target", decision, lane, answered, perf_counter(), len(outcome.accepted))
            if lane.ended:
                self.remove(lane)  # first, so that one whose parts fail to learn is over all the same
            self.learn(lane, outcome)
            for observe in self.observers:
                observe(outcome)
            answered = perf_counter()
        self.passes += 1
        return [lane for lane in lanes if lane.ended]

    def begin(self, lane: Lane, prefill: Outcome | None) -> None:
        """Let the parts of a lane begin."""
        started = perf_counter()
        with DraftingFor(lane.context.sequence):
            lane.own_drafting.begin(prefill)
        self.note("draft", "prefill", lane, started, perf_counter())

    def drafts(self) -> list[Lane]:
        """The lanes that the next pass answers, each with what it drafted."""
        lanes = list(self.lanes.values())
        for lane in lanes:
            lane.context.lanes = len(lanes)
        groups = teams([lane.own_drafting for lane in lanes])
        for places in groups if self.together else [[place] for place in range(len(lanes))]:
            group = [lanes[place] for place in places]
            started = perf_counter()
            drafts = draft_together([(lane.own_drafting, lane.depth) for lane in group])
            ended = perf_counter()
            for lane, draft in zip(group, drafts, strict=True):
                lane.take(draft)
                self.note("draft", "draft", lane, started, ended, draft.tree.num_nodes)
        return lanes

    def learn(self, lane: Lane, outcome: Outcome) -> None:
        """Let the parts of a lane learn from a step."""
        started = perf_counter()
        with DraftingFor(lane.context.sequence):
            lane.own_drafting.learn(outcome)
        ended = perf_counter()
        lane.result.seconds["update"] += ended - started
        self.note("draft", "learn", lane, started, ended)

    def note(self, side: Side, what: What, lane: Lane, started: float, ended: float, tokens: int = 0) -> None:
        """Something was done, for a lane; here nobody keeps it.

        Args:
            side: who did it.
            what: was done.
            lane: for whom it was done; the first of several.
            started: when, by :func:`time.perf_counter`.
            ended: when it was over.
            tokens: tokens fed in a prefill or pass, nodes drafted, tokens accepted.
        """
