"""Breadth-first, best-first and Monte-Carlo tree search over thoughts. SEED (A.2) details only the first."""

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
    """Breadth-first (beam) search: expand the kept states of a level, evaluate all new states, keep the best ones.

    This is the search of Tree of Thoughts (Yao et al. 2023) and SEED (Algorithm 1). A request contains all states of a
    level, so ``breadth * thoughts`` sequences can be decoded together.

    Args:
        breadth: maximal number of states that are kept at each level (b in Algorithm 1).
        thoughts: number of continuations of each kept state (n in Algorithm 1; 3 in the paper).
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
            # S_i, line 7: the set of b states with the highest sum of values is the b highest states
            kept = sorted(new, key=tree.sort_key, reverse=True)[: self.breadth]


class BestFirst(Search):
    """Best-first search: always expand the open state of highest priority, until that state has the full depth.

    The priority is ``value + depth_weight * depth``. As in A* (Hart et al. 1968), the depth measures the path so far,
    and the value estimates the remaining path. With weight 0 the search backtracks whenever an earlier state has a
    higher value. Ties go to the deeper state, then to the one generated first.

    When the budget ``expansions`` is used up, the last generation continues the best of the deepest states, and the
    path may be shorter than ``depth``.

    Args:
        expansions: maximal number of expanded states.
        thoughts: number of continuations of each expanded state.
        depth_weight: weight of a level of depth, in units of the value.
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
    """Monte-Carlo tree search: UCT (Kocsis and Szepesvari 2006) with the value of a new state in place of a rollout.

    A simulation descends from the root, always to the child with the highest upper confidence bound, to a state that
    was not expanded. It expands that state and evaluates all new states in one request. Each value is a reward for the
    new state and all its ancestors. If the descent ends at full depth, the value of that state is added again as a
    reward, without a request.

    The bound is ``mean reward + exploration * sqrt(ln(visits of the parent) / visits)``. Rewards are scaled to [0, 1]
    by the lowest and highest reward so far, so ``exploration`` means the same for all tasks. The last generation
    continues the state of highest value among the deepest ones, regardless of visits.

    Args:
        simulations: number of simulations; each expands at most one state.
        thoughts: number of continuations of each expanded state.
        exploration: weight of rarely visited states; 0 always follows the highest mean reward.
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
    """The number of visits and the total reward of each state, by path."""

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
        # UCT's bound, with rewards scaled to [0, 1]; visits > 0, since expansion rewards each child once
        visits = self._visits[child.path]
        spread = self._highest - self._lowest
        mean = (self._totals[child.path] / visits - self._lowest) / spread if spread > 0 else 0.0
        return mean + exploration * sqrt(log(self._visits[child.path[:-1]]) / visits)


def _inner_states(thoughts: int, depth: int) -> int:
    """Return the number of inner states of a complete tree, such as 1 + 3 + 9 for three thoughts and depth 4."""
    return sum(thoughts**level for level in range(depth - 1))
