"""Blocks on a table and one arm: the four operators, what forbids an action, and whether a plan reaches a goal.

A state is the set of facts that hold, as in PDDL: ``("on", "a", "b")``, ``("ontable", "b")``, ``("clear", "a")``,
``("holding", "c")``, ``("handempty",)``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

Fact = tuple[str, ...]
Facts = frozenset[Fact]

ON, ON_TABLE, CLEAR, HOLDING, HAND_EMPTY = "on", "ontable", "clear", "holding", "handempty"
ARITY: Mapping[str, int] = {ON: 2, ON_TABLE: 1, CLEAR: 1, HOLDING: 1, HAND_EMPTY: 0}
"""Blocks that each predicate is about."""


@dataclass(frozen=True)
class Operator:
    """A kind of action in the sense of STRIPS; its blocks are written ``"?0"`` and ``"?1"``.

    Attributes:
        blocks: how many it names.
        needs: facts that have to hold before.
        makes: facts that hold afterwards.
        ends: facts that hold no longer.
    """

    blocks: int
    needs: Facts
    makes: Facts
    ends: Facts


OPERATORS: Mapping[str, Operator] = {
    "pick-up": Operator(
        1,
        needs=frozenset({(CLEAR, "?0"), (ON_TABLE, "?0"), (HAND_EMPTY,)}),
        makes=frozenset({(HOLDING, "?0")}),
        ends=frozenset({(CLEAR, "?0"), (ON_TABLE, "?0"), (HAND_EMPTY,)}),
    ),
    "put-down": Operator(
        1,
        needs=frozenset({(HOLDING, "?0")}),
        makes=frozenset({(CLEAR, "?0"), (ON_TABLE, "?0"), (HAND_EMPTY,)}),
        ends=frozenset({(HOLDING, "?0")}),
    ),
    "stack": Operator(
        2,
        needs=frozenset({(CLEAR, "?1"), (HOLDING, "?0")}),
        makes=frozenset({(HAND_EMPTY,), (CLEAR, "?0"), (ON, "?0", "?1")}),
        ends=frozenset({(CLEAR, "?1"), (HOLDING, "?0")}),
    ),
    "unstack": Operator(
        2,
        needs=frozenset({(ON, "?0", "?1"), (CLEAR, "?0"), (HAND_EMPTY,)}),
        makes=frozenset({(HOLDING, "?0"), (CLEAR, "?1")}),
        ends=frozenset({(ON, "?0", "?1"), (CLEAR, "?0"), (HAND_EMPTY,)}),
    ),
}

_SENTENCES = {
    ON: "{} lies on {}",
    ON_TABLE: "{} lies on the table",
    CLEAR: "{} is clear",
    HOLDING: "the arm holds {}",
    HAND_EMPTY: "the arm is empty",
}
_DENIALS = {
    ON: "{} does not lie on {}",
    ON_TABLE: "{} does not lie on the table",
    CLEAR: "{} is not clear",
    HOLDING: "the arm does not hold {}",
    HAND_EMPTY: "the arm is not empty",
}
_WORDS = {
    "pick-up": "pick up {}",
    "put-down": "put down {}",
    "stack": "stack {} on {}",
    "unstack": "unstack {} from {}",
}
_FILLING = r"(?:the|block|from|onto|on|top|of)\b"  # words between the verb and the names
_ACTION = re.compile(
    rf"(?P<operator>pick[ -]?up|put[ -]?down|stack|unstack)(?:\s+{_FILLING})*\s+(?!{_FILLING})(?P<first>\w+)"
    rf"(?:(?:\s+{_FILLING})*\s+(?!{_FILLING})(?P<second>\w+))?"
)


class IllegalActionError(ValueError):
    """An action whose preconditions do not hold, or that names a block that is not there; the message says which."""


@dataclass(frozen=True)
class Action:
    """One of the operators with its blocks.

    Example:
        >>> str(Action("unstack", ("c", "d")))
        'unstack c from d'
    """

    operator: str
    blocks: tuple[str, ...]

    def __str__(self) -> str:
        """In words, as prompts write it."""
        return _WORDS[self.operator].format(*self.blocks)

    @classmethod
    def parse(cls, text: str) -> Action | None:
        """The action a line begins with, in words or as in PDDL; None if it begins with none.

        Example:
            >>> Action.parse("(pick-up a)"), Action.parse("Stack block a on top of b."), Action.parse("wait")
            (Action(operator='pick-up', blocks=('a',)), Action(operator='stack', blocks=('a', 'b')), None)
        """
        found = _ACTION.match(text.strip().lower().lstrip("([-* "))
        if found is None:
            return None
        verb = found["operator"]
        name = {"pic": "pick-up", "put": "put-down"}.get(verb[:3], verb)
        blocks = (found["first"], found["second"])[: OPERATORS[name].blocks]
        return None if None in blocks else cls(name, blocks)

    def ground(self, facts: Facts) -> Facts:
        """Facts of its operator, with its own blocks in place of ``"?0"`` and ``"?1"``."""
        places = {f"?{place}": block for place, block in enumerate(self.blocks)}
        return frozenset(tuple(places.get(word, word) for word in fact) for fact in facts)


@dataclass(frozen=True)
class BlocksProblem:
    """Where the blocks are, and where they should be.

    Attributes:
        blocks: their names, in the order of the file.
        start: the facts that hold; all others do not.
        goal: facts that have to hold at the end; others may.
    """

    blocks: tuple[str, ...]
    start: Facts
    goal: Facts


def apply(facts: Facts, action: Action) -> Facts:
    """The state after an action.

    Raises:
        IllegalActionError: a precondition does not hold; the message names all that do not.

    Example:
        >>> table = frozenset({("ontable", "a"), ("clear", "a"), ("handempty",)})
        >>> apply(table, Action("pick-up", ("a",)))
        frozenset({('holding', 'a')})
    """
    operator = OPERATORS[action.operator]
    missing = action.ground(operator.needs) - facts
    if missing:
        reasons = " and ".join(sorted(_DENIALS[name].format(*blocks) for name, *blocks in missing))
        raise IllegalActionError(f"{action}: {reasons}")
    return (facts - action.ground(operator.ends)) | action.ground(operator.makes)


def run_plan(facts: Facts, plan: Iterable[Action]) -> Facts:
    """The state after all actions of a plan.

    Raises:
        IllegalActionError: as :func:`apply`, with the number of the action, from 1.
    """
    for number, action in enumerate(plan, start=1):
        try:
            facts = apply(facts, action)
        except IllegalActionError as error:
            raise IllegalActionError(f"action {number}, {error}") from error
    return facts


def inconsistency(facts: Facts, blocks: Collection[str]) -> str | None:
    """Why no arrangement of the blocks has exactly these facts, in one sentence; None if one has."""
    below: dict[str, str | None] = {}  # block to what it lies on, None for the table or the arm
    for name, *named in sorted(facts):
        if name not in ARITY or len(named) != ARITY[name]:
            return f"({' '.join((name, *named))}) is no fact about blocks"
        if unknown := [block for block in named if block not in blocks]:
            return f"there is no block {unknown[0]!r}"
        if name in (ON, ON_TABLE, HOLDING):
            if named[0] in below:
                return f"{named[0]!r} is in two places"
            below[named[0]] = named[1] if name == ON else None
    for block in blocks:
        if block not in below:
            return f"{block!r} is nowhere"
        seen, under = {block}, below[block]
        while under is not None:
            if under in seen:
                return f"{block!r} stands in a ring"
            seen.add(under)
            under = below[under]
    held = [block for name, *named in facts if name == HOLDING for block in named]
    covered = [under for under in below.values() if under is not None]
    if len(held) > 1 or len(set(covered)) < len(covered) or set(held) & set(covered):
        return "two blocks are in one place"
    free = {(CLEAR, block) for block in blocks if block not in covered and block not in held}
    if {fact for fact in facts if fact[0] == CLEAR} != free:
        return "what is said to be clear is not what is clear"
    if ((HAND_EMPTY,) in facts) == bool(held):
        return "the hand is said to be empty and not to be, or neither"
    return None


def sentence(fact: Fact) -> str:
    """One fact in words.

    Example:
        >>> sentence(("holding", "a"))
        'The arm holds a.'
    """
    name, *named = fact
    words = _SENTENCES[name].format(*named)
    return f"{words.replace('the arm', 'The arm')}."


def describe(facts: Facts) -> str:
    """Where the blocks are, in words; what is clear follows from it and is left out.

    Example:
        >>> describe(frozenset({("on", "a", "b"), ("ontable", "b"), ("ontable", "c"), ("handempty",)}))
        'a lies on b. b and c lie on the table. The arm is empty.'
    """
    order = sorted(facts)
    sentences = [sentence(fact) for fact in order if fact[0] == ON]
    table = [block for name, *named in order if name == ON_TABLE for block in named]
    if table:
        sentences.append(f"{_listed(table)} {'lies' if len(table) == 1 else 'lie'} on the table.")
    return " ".join(sentences + [sentence(fact) for fact in order if fact[0] in (HOLDING, HAND_EMPTY)])


def unmet(facts: Facts, goal: Facts) -> str | None:
    """What of the goal does not hold, in words; None if all does."""
    missing = sorted(goal - facts)
    return " and ".join(_DENIALS[name].format(*named) for name, *named in missing) if missing else None


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
