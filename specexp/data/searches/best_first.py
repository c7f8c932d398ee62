"""Best-first search: a priority queue by value and depth (SEED leaves A* and its like open, appendix A.2)."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.searches.search import Growth, Search, State, ThoughtTree, inner_states


class BestFirst(Search):
    """Expands the waiting state with the highest priority, one after the other, until that is a deepest one.

    The priority is ``value + depth_weight * depth``, with the roles of A* (Hart et al. 1968): the depth is the way
    already made, the value an estimate of what is still to come, higher being nearer. With weight 0 the search turns
    back at every better value; the larger the weight, the more a state needs to be better to be preferred to a deeper
    one. Of equal priorities the deeper state comes first, then the one generated first.

    When ``expansions`` are used up, the last generation comes from the best of the deepest states there are, and the
    path is shorter than ``depth`` if that many expansions did not lead to its end.

    Args:
        expansions: the budget, in expanded states.
        thoughts: how many continuations every expanded state gets.
        depth_weight: what one level more is worth, in units of the value.
    """

    def __init__(
        self,
        expansions: Annotated[int, Field(ge=1)] = 12,
        thoughts: Annotated[int, Field(ge=1)] = 3,
        depth_weight: Annotated[float, Field(ge=0)] = 1.0,
    ) -> None:
        self.expansions = expansions
        self.thoughts = thoughts
        self.depth_weight = depth_weight

    @override
    def max_expansions(self, depth: int) -> int:
        return min(self.expansions, inner_states(self.thoughts, depth))

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
