"""Where each token of an output came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specexp.core.outcome import Outcome

CORRECTED = -1
"""The target's own token where every candidate of the draft was another."""
BONUS = -2
"""The target's own token where nothing more was drafted."""


class Sources:
    """Notes where each new token came from, step by step; an observer of a decoder.

    Attributes:
        found: For each new token the rank among its siblings of the drafted node it was, or :data:`CORRECTED` or
            :data:`BONUS`.

    Example:
        >>> sources = Sources()
        >>> decoder.generate(prompt_ids, observers=[sources])  # doctest: +SKIP
        >>> sources.found  # doctest: +SKIP
        [0, 0, 1, -1, -2]
    """

    def __init__(self) -> None:
        self.found: list[int] = []

    def __call__(self, outcome: Outcome) -> None:
        """One step is over."""
        shape = outcome.tree.shape
        self.found += [int(shape.ranks[row]) for row in outcome.accepted]
        if len(outcome.new_token_ids) > len(outcome.accepted):
            last = outcome.accepted[-1] if outcome.accepted else 0
            self.found.append(CORRECTED if shape.children[last] else BONUS)


def steps_of(sources: Sequence[int], turn_tokens: Sequence[int]) -> Iterator[range]:
    """Places of the tokens of each step: drafted ones, then the target's own unless the output ended before it.

    Args:
        sources: Of each new token, as :class:`Sources` notes them.
        turn_tokens: New tokens of each turn; a step is of one turn.

    Example:
        >>> [list(step) for step in steps_of([0, 0, -1, -2, 1], [3, 2])]
        [[0, 1, 2], [3], [4]]
    """
    turn_end = first = 0
    ends = set[int]()
    for tokens in turn_tokens:
        turn_end += tokens
        ends.add(turn_end)
    for place, source in enumerate(sources):
        if source < 0 or place + 1 in ends:
            yield range(first, place + 1)
            first = place + 1
