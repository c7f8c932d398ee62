"""Monte-Carlo tree search with UCT (Kocsis and Szepesvari 2006), which SEED leaves open (appendix A.2)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import inf, log, sqrt
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.searches.search import Growth, Search, State, ThoughtTree, inner_states


class MonteCarlo(Search):
    """UCT in which the value of a new state is the reward, in place of a rollout.

    A simulation walks down from the root to the child with the highest upper confidence bound until it meets a state
    that was not expanded. That one is expanded, all its new states are valued in one request, and each value is a
    reward of the new state and of all states above it. At a deepest state there is nothing to expand: its value is
    the reward once more, and the simulation asks for nothing.

    The bound is ``mean reward + exploration * sqrt(ln(visits of the parent) / visits)``, with rewards scaled to [0, 1]
    by the lowest and the highest seen so far, so that ``exploration`` means the same for every task.

    The last generation comes, as for every search, from the best of the deepest states; visits decide only which
    states there are.

    Args:
        simulations: the budget; each simulation expands one state at most.
        thoughts: how many continuations every expanded state gets.
        exploration: the weight of what is rarely visited; 0 follows the best mean alone.
    """

    def __init__(
        self,
        simulations: Annotated[int, Field(ge=1)] = 12,
        thoughts: Annotated[int, Field(ge=1)] = 3,
        exploration: Annotated[float, Field(ge=0)] = sqrt(2),
    ) -> None:
        self.simulations = simulations
        self.thoughts = thoughts
        self.exploration = exploration

    @override
    def max_expansions(self, depth: int) -> int:
        return min(self.simulations, inner_states(self.thoughts, depth))

    @override
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        rewards = _Rewards()
        for _ in range(self.simulations):
            state = tree.root
            while children := tree.children(state):
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
        """A visit of the state and of all above it."""
        self._lowest, self._highest = min(self._lowest, reward), max(self._highest, reward)
        for depth in range(state.depth + 1):
            above = state.path[:depth]
            self._visits[above] += 1
            self._totals[above] = self._totals.get(above, 0.0) + reward

    def bound(self, child: State, exploration: float) -> float:
        """The upper confidence bound of a visited state below the root."""
        visits = self._visits[child.path]
        spread = self._highest - self._lowest
        mean = (self._totals[child.path] / visits - self._lowest) / spread if spread > 0 else 0.0
        return mean + exploration * sqrt(log(self._visits[child.path[:-1]]) / visits)
