"""Breadth-first, best-first and Monte-Carlo tree search over thoughts. SEED leaves all but the first open (A.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf, log, sqrt
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.searches.search import Growth, Search, State, ThoughtTree

Count = Annotated[int, Field(ge=1)]


class BreadthFirst(Search):
    """Level by level: every kept state is expanded, all new states are valued, the best ``breadth`` are kept.

    As in Tree of Thoughts (Yao et al. 2023) and SEED (Algorithm 1). All states of a level are in one request, so
    ``breadth * thoughts`` sequences may be decoded together.

    Args:
        breadth: number of states of a level that are kept, all if there are fewer (b of Algorithm 1).
        thoughts: number of continuations of every kept state (n of Algorithm 1; 3 in the paper).
    """

    def __init__(self, breadth: Count = 1, thoughts: Count = 3) -> None:
        self.breadth = breadth
        self.thoughts = thoughts

    @override
    def max_expansions(self, depth: int) -> int:
        return sum(min(self.breadth, self.thoughts**level) for level in range(depth - 1))

    @override
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        kept: Sequence[State] = [tree.root]  # S_0 of SEED's Algorithm 1, line 2
        for _ in range(levels):  # line 3
            new = yield from self.expand(tree, kept)  # S'_i and its values E_i, lines 4 to 6
            # S_i, line 7: the b states with the highest sum of values are the b highest
            kept = sorted(new, key=tree.sort_key, reverse=True)[: self.breadth]


class BestFirst(Search):
    """Expands the waiting state with the highest priority, one after the other, until that is a deepest one.

    The priority is ``value + depth_weight * depth``, with the roles of A* (Hart et al. 1968): the depth is the way
    already made, the value an estimate of what is still to come, higher being nearer. With weight 0 the search turns
    back at every better value. Of equal priorities the deeper state comes first, then the one generated first.

    When ``expansions`` are used up, the last generation continues the best of the deepest states, and the path may be
    shorter than ``depth``.

    Args:
        expansions: the budget, in expanded states.
        thoughts: number of continuations of every expanded state.
        depth_weight: worth of one more level, in units of the value.
    """

    def __init__(
        self, expansions: Count = 12, thoughts: Count = 3, depth_weight: Annotated[float, Field(ge=0)] = 1.0
    ) -> None:
        self.expansions = expansions
        self.thoughts = thoughts
        self.depth_weight = depth_weight

    @override
    def max_expansions(self, depth: int) -> int:
        return min(self.expansions, _inner_states(self.thoughts, depth))

    @override
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        waiting: list[tuple[float, int, int, State]] = [(0.0, 0, 0, tree.root)]
        queued = 1
        for _ in range(self.expansions):
            *_, state = heappop(waiting)
            if state.depth == levels:
                return
            for new in (yield from self.expand(tree, [state])):
                priority = tree.sort_key(new) + self.depth_weight * new.depth
                heappush(waiting, (-priority, -new.depth, queued, new))
                queued += 1


class MonteCarlo(Search):
    """UCT (Kocsis and Szepesvari 2006) in which the value of a new state is the reward, in place of a rollout.

    A simulation walks down from the root to the child with the highest upper confidence bound until it meets a state
    that was not expanded. That one is expanded, all its new states are valued in one request, and each value is a
    reward of the new state and of all states above it. At a deepest state its value is the reward once more, and the
    simulation requests nothing.

    The bound is ``mean reward + exploration * sqrt(ln(visits of the parent) / visits)``, with rewards scaled to [0, 1]
    by the lowest and the highest so far. So ``exploration`` means the same for every task. The last generation
    continues the best of the deepest states, whatever their visits.

    Args:
        simulations: the budget; each simulation expands one state at most.
        thoughts: number of continuations of every expanded state.
        exploration: the weight of rarely visited states; 0 follows the best mean alone.
    """

    def __init__(
        self,
        simulations: Count = 12,
        thoughts: Count = 3,
        exploration: Annotated[float, Field(ge=0)] = sqrt(2),
    ) -> None:
        self.simulations = simulations
        self.thoughts = thoughts
        self.exploration = exploration

    @override
    def max_expansions(self, depth: int) -> int:
        return min(self.simulations, _inner_states(self.thoughts, depth))

    @override
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        rewards = _Rewards()
        for _ in range(self.simulations):
            state = tree.root
            while children := tree.children(state):  # down to a state that was not expanded
                state = max(children, key=partial(rewards.bound, exploration=self.exploration))
            if state.depth == levels:
                rewards.add(state, tree.sort_key(state))
            else:
                for new in (yield from self.expand(tree, [state])):
                    rewards.add(new, tree.sort_key(new))


class _Rewards:
    """Visits and rewards of every state, by path."""

    def __init__(self) -> None:
        self._visits: Counter[tuple[int, ...]] = Counter()
        self._totals: dict[tuple[int, ...], float] = {}
        self._lowest, self._highest = inf, -inf

    def add(self, state: State, reward: float) -> None:
        self._lowest, self._highest = min(self._lowest, reward), max(self._highest, reward)
        for depth in range(state.depth + 1):
            above = state.path[:depth]
            self._visits[above] += 1
            self._totals[above] = self._totals.get(above, 0.0) + reward

    def bound(self, child: State, exploration: float) -> float:
        # the bound of UCT, with rewards scaled to [0, 1]; every child was rewarded once, so visits > 0
        visits = self._visits[child.path]
        spread = self._highest - self._lowest
        mean = (self._totals[child.path] / visits - self._lowest) / spread if spread > 0 else 0.0
        return mean + exploration * sqrt(log(self._visits[child.path[:-1]]) / visits)


def _inner_states(thoughts: int, depth: int) -> int:
    """Return the number of states above the deepest in a whole tree: 1 + 3 + 9 for three thoughts and depth 4."""
    return sum(thoughts**level for level in range(depth - 1))
