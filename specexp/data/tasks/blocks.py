"""Blocks on a table and one arm: the four operators, their preconditions, plans, and problems in PDDL.

A state is the set of facts that hold, as in PDDL: ``("on", "a", "b")``, ``("ontable", "b")``, ``("clear", "a")``,
``("holding", "c")``, ``("handempty",)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Fact = tuple[str, ...]
Facts = frozenset[Fact]

ON, ON_TABLE, CLEAR, HOLDING, HAND_EMPTY = "on", "ontable", "clear", "holding", "handempty"
ARITY: Mapping[str, int] = {ON: 2, ON_TABLE: 1, CLEAR: 1, HOLDING: 1, HAND_EMPTY: 0}
"""Blocks that each predicate is about."""


@dataclass(frozen=True)
class Operator:
    """A kind of action in the sense of STRIPS, with the number of its blocks; it ends the facts that it needs."""

    blocks: int
    needs: Facts
    makes: Facts


OPERATORS: Mapping[str, Operator] = {
    "pick-up": Operator(
        1,
        needs=frozenset({(CLEAR, "?0"), (ON_TABLE, "?0"), (HAND_EMPTY,)}),
        makes=frozenset({(HOLDING, "?0")}),
    ),
    "put-down": Operator(
        1,
        needs=frozenset({(HOLDING, "?0")}),
        makes=frozenset({(CLEAR, "?0"), (ON_TABLE, "?0"), (HAND_EMPTY,)}),
    ),
    "stack": Operator(
        2,
        needs=frozenset({(CLEAR, "?1"), (HOLDING, "?0")}),
        makes=frozenset({(HAND_EMPTY,), (CLEAR, "?0"), (ON, "?0", "?1")}),
    ),
    "unstack": Operator(
        2,
        needs=frozenset({(ON, "?0", "?1"), (CLEAR, "?0"), (HAND_EMPTY,)}),
        makes=frozenset({(HOLDING, "?0"), (CLEAR, "?1")}),
    ),
}
"""The operators by name; ``"?0"`` and ``"?1"`` are the blocks of an action."""

_SENTENCES = {
    ON: "{} {lies} on {}",
    ON_TABLE: "{} {lies} on the table",
    CLEAR: "{} {is} clear",
    HOLDING: "the arm {holds} {}",
    HAND_EMPTY: "the arm {is} empty",
}
_AFFIRMED = {"lies": "lies", "is": "is", "holds": "holds"}
_DENIED = {"lies": "does not lie", "is": "is not", "holds": "does not hold"}
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
    """An action whose preconditions, named in the message, do not hold."""


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
        return _WORDS[self.operator].format(*self.blocks)

    @classmethod
    def parse(cls, text: str) -> Action | None:
        """Return the action that a line begins with, in words or as in PDDL; None if it begins with none.

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
        """Return facts of its operator with its own blocks in place of ``"?0"`` and ``"?1"``."""
        places = {f"?{place}": block for place, block in enumerate(self.blocks)}
        return frozenset(tuple(places.get(word, word) for word in fact) for fact in facts)


@dataclass(frozen=True)
class BlocksProblem:
    """The blocks in the order of the file, the facts that hold, and the facts that must hold at the end."""

    blocks: tuple[str, ...]
    start: Facts
    goal: Facts


def apply(facts: Facts, action: Action) -> Facts:
    """Return the state after an action; raises IllegalActionError if its preconditions do not hold.

    Example:
        >>> table = frozenset({("ontable", "a"), ("clear", "a"), ("handempty",)})
        >>> apply(table, Action("pick-up", ("a",)))
        frozenset({('holding', 'a')})
    """
    operator = OPERATORS[action.operator]
    needs = action.ground(operator.needs)
    reasons = unmet(facts, needs)
    if reasons is not None:
        raise IllegalActionError(f"{action}: {reasons}")
    return (facts - needs) | action.ground(operator.makes)


def run_plan(facts: Facts, plan: Iterable[Action]) -> Facts:
    """Return the state after all actions; raises IllegalActionError with the number of the first illegal one."""
    for number, action in enumerate(plan, start=1):
        try:
            facts = apply(facts, action)
        except IllegalActionError as error:
            raise IllegalActionError(f"action {number}, {error}") from error
    return facts


def sentence(fact: Fact) -> str:
    """Return a fact in words.

    Example:
        >>> sentence(("holding", "a"))
        'The arm holds a.'
    """
    words = _SENTENCES[fact[0]].format(*fact[1:], **_AFFIRMED)
    return f"{words.replace('the arm', 'The arm')}."


def describe(facts: Facts) -> str:
    """Return the positions of the blocks in words; which are clear follows from them.

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
    """Return the facts of a goal that do not hold, in words; None if all do."""
    missing = sorted(_SENTENCES[name].format(*named, **_DENIED) for name, *named in goal - facts)
    return " and ".join(missing) or None


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


Expression = str | list["Expression"]


class PDDLError(ValueError):
    """A text is not the expected PDDL."""


def read_problem(text: str) -> BlocksProblem:
    """Read a problem in PDDL: ``:objects``, ``:init`` and a ``:goal`` that is one fact or a conjunction.

    Raises:
        PDDLError: A part is missing, or a fact names other blocks than the problem's.
    """
    expression = _parse(text)
    parts = [part for part in expression if isinstance(part, list) and part]
    sections = {part[0]: part[1:] for part in parts if isinstance(part[0], str)}
    if expression[:1] != ["define"] or "problem" not in sections:
        raise PDDLError("the text defines no problem")
    blocks = tuple(word for word in sections.get(":objects", []) if isinstance(word, str))
    (goal, *_) = sections.get(":goal") or [[]]
    wanted = goal[1:] if goal[:1] == ["and"] else [goal]
    if not blocks or not goal:
        raise PDDLError(f"the problem has no {':goal' if blocks else ':objects'}")
    start = _facts(sections.get(":init", []), ":init", blocks)
    return BlocksProblem(blocks, start, _facts(wanted, ":goal", blocks))


def _parse(text: str) -> list[Expression]:
    """Return the first expression of a text as nested lists, in lower case, since PDDL ignores case."""
    stack: list[list[Expression]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";.*", "", text).lower()):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1:
            raise PDDLError("a parenthesis is closed that was not opened")
        else:
            done = stack.pop()
            stack[-1].append(done)
    if len(stack) > 1:
        raise PDDLError("a parenthesis is not closed")
    (first, *_) = stack[0] or [[]]
    if not isinstance(first, list):
        raise PDDLError(f"an expression in parentheses is expected, found {first!r}")
    return first


def _facts(expressions: Sequence[Expression], where: str, blocks: Sequence[str]) -> Facts:
    facts: set[Fact] = set()
    for expression in expressions:
        name, *named = (str(word) for word in expression) if isinstance(expression, list) else ("",)
        if ARITY.get(name) != len(named) or not set(named) <= set(blocks):
            raise PDDLError(f"{where}: {expression!r} is no fact about the problem's blocks")
        facts.add((name, *named))
    return frozenset(facts)
