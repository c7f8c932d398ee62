"""Reads the PDDL of blocks-world domains and problems: as much of the language as these use (STRIPS)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

from specexp.data.planning.blocks import ARITY, BlocksProblem, Fact, Facts, Operator, inconsistency

Expression = str | list["Expression"]


class PDDLError(ValueError):
    """A text is not the PDDL that was expected; the message says what is missing or wrong."""


def read_problem(text: str) -> BlocksProblem:
    """A problem: ``:objects``, ``:init`` and a ``:goal`` that is a conjunction.

    Raises:
        PDDLError: a part is missing, or the start is no arrangement of the blocks, or the goal names others.
    """
    sections = _sections(text, "problem")
    blocks = tuple(word for word in sections.get(":objects", []) if isinstance(word, str))
    if not blocks:
        raise PDDLError("the problem has no :objects")
    start = _facts(sections.get(":init", []), ":init")
    if reason := inconsistency(start, blocks):
        raise PDDLError(f":init is no arrangement of the blocks: {reason}")
    (goal, *_) = sections.get(":goal") or [[]]
    facts = _facts(_conjuncts(goal), ":goal")
    if not facts:
        raise PDDLError("the problem has no :goal")
    for name, *named in sorted(facts):
        if ARITY.get(name) != len(named) or not set(named) <= set(blocks):
            raise PDDLError(f":goal: ({' '.join((name, *named))}) is no fact about the problem's blocks")
    return BlocksProblem(blocks, start, facts)


def read_domain(text: str) -> Mapping[str, Operator]:
    """The operators of a domain, by name.

    Raises:
        PDDLError: it is no domain, or an action has no parameters, precondition or effect.
    """
    _sections(text, "domain")
    operators: dict[str, Operator] = {}
    for part in _parse(text):
        if isinstance(part, list) and len(part) >= 2 and part[0] == ":action":
            name, *rest = part[1:]
            if not isinstance(name, str):
                raise PDDLError("an :action has no name")
            operators[name] = _operator(name, rest)
    return operators


def read_plan(text: str) -> list[tuple[str, ...]]:
    """The steps of a plan, each an operator and its blocks: ``(stack a b)`` a line.

    Raises:
        PDDLError: it is no list of steps.
    """
    steps = _parse(f"({text})")
    if not steps or not all(_is_words(step) for step in steps):
        raise PDDLError("a plan is steps in parentheses")
    return [tuple(word for word in step if isinstance(word, str)) for step in steps]


def _operator(name: str, rest: list[Expression]) -> Operator:
    fields = {key: value for key, value in zip(rest[::2], rest[1::2], strict=False) if isinstance(key, str)}
    parameters = fields.get(":parameters")
    if not _is_words(parameters):
        raise PDDLError(f"action {name} has no :parameters")
    places = {word: f"?{place}" for place, word in enumerate(parameters) if isinstance(word, str)}
    for key in (":precondition", ":effect"):
        if key not in fields:
            raise PDDLError(f"action {name} has no {key}")
    effects = _conjuncts(fields[":effect"])
    ends = [part[1] for part in effects if isinstance(part, list) and len(part) == 2 and part[0] == "not"]
    makes = [part for part in effects if not (isinstance(part, list) and part and part[0] == "not")]

    def placed(parts: list[Expression]) -> Facts:
        facts = _facts(parts, f"action {name}")
        return frozenset(tuple(places.get(word, word) for word in fact) for fact in facts)

    return Operator(len(places), placed(_conjuncts(fields[":precondition"])), placed(makes), placed(ends))


def _sections(text: str, kind: str) -> dict[str, list[Expression]]:
    """What stands after each keyword of a ``(define (KIND name) (:keyword ...) ...)``."""
    expression = _parse(text)
    heads = [part[0] for part in expression if isinstance(part, list) and part]
    if expression[:1] != ["define"] or kind not in heads:
        raise PDDLError(f"the text defines no {kind}")
    return {
        part[0]: part[1:]
        for part in expression
        if isinstance(part, list) and part and isinstance(part[0], str)
    }


def _parse(text: str) -> list[Expression]:
    """The first expression of a text, as nested lists; names are lower case, as PDDL ignores case."""
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


def _conjuncts(expression: Expression) -> list[Expression]:
    if isinstance(expression, list) and expression[:1] == ["and"]:
        return expression[1:]
    return [expression] if expression else []


def _facts(expressions: list[Expression], where: str) -> Facts:
    facts: set[Fact] = set()
    for expression in expressions:
        if not _is_words(expression) or not expression:
            raise PDDLError(f"{where}: {expression!r} is no fact")
        facts.add(tuple(expression))
    return frozenset(facts)


def _is_words(expression: object) -> TypeGuard[list[str]]:
    return isinstance(expression, list) and all(isinstance(word, str) for word in expression)
