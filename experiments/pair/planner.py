"""Shortest plans for blocks, by breadth-first search from the goal: how far every arrangement is from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import permutations

from specexp.data.planning.blocks import (
    CLEAR,
    HAND_EMPTY,
    ON,
    ON_TABLE,
    OPERATORS,
    Action,
    Facts,
    IllegalActionError,
    apply,
)

Moves = Mapping[Facts, Mapping[Action, Facts]]


@cache
def moves(blocks: tuple[str, ...]) -> Moves:
    """Every arrangement of some blocks, and what each possible action makes of it."""
    start = frozenset(
        {(HAND_EMPTY,), *((ON_TABLE, one) for one in blocks), *((CLEAR, one) for one in blocks)}
    )
    found: dict[Facts, dict[Action, Facts]] = {}
    waiting = [start]
    while waiting:
        facts = waiting.pop()
        if facts in found:
            continue
        found[facts] = {}
        for action in actions(blocks):
            try:
                found[facts][action] = apply(facts, action)
            except IllegalActionError:
                continue
        waiting += found[facts].values()
    return found


@lru_cache(maxsize=4096)
def distances(blocks: tuple[str, ...], goal: Facts) -> Mapping[Facts, int]:
    """Actions that every arrangement is away from a goal. An action can be taken back, so the search starts there."""
    steps = moves(blocks)
    far = {facts: 0 for facts in steps if goal <= facts}
    waiting = deque(far)
    while waiting:
        facts = waiting.popleft()
        for after in steps[facts].values():
            if after not in far:
                far[after] = far[facts] + 1
                waiting.append(after)
    return far


def towers(blocks: Sequence[str], facts: Facts) -> Facts:
    """What lies on what."""
    return frozenset(fact for fact in facts if fact[0] == ON and set(fact[1:]) <= set(blocks))


@cache
def actions(blocks: tuple[str, ...]) -> tuple[Action, ...]:
    """Every action that some blocks allow, possible now or not."""
    return tuple(
        Action(name, named)
        for name, operator in OPERATORS.items()
        for named in permutations(blocks, operator.blocks)
    )
