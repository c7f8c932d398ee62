"""Blocksworld's simulator: properties on random arrangements, and the PDDL and the prompts it reads."""

import re
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from experiments.papers import seed
from experiments.papers.seed.blocksworld import (
    OPERATORS,
    Action,
    IllegalActionError,
    PDDLError,
    apply,
    describe,
    read_problem,
    run_plan,
    unmet,
)

pytestmark = pytest.mark.unit

INVERSE = {"pick-up": "put-down", "put-down": "pick-up", "stack": "unstack", "unstack": "stack"}
PROMPTS = Path(seed.__file__).parent / "prompts" / "blocksworld"


def facts_of(stacks, held=None):
    """The facts of stacks of blocks, each from the table up."""
    facts = {("holding", held)} if held else {("handempty",)}
    for stack in stacks:
        facts |= {("ontable", stack[0]), ("clear", stack[-1])}
        facts |= {("on", upper, lower) for lower, upper in pairwise(stack)}
    return frozenset(facts)


@st.composite
def arrangements(draw):
    """Blocks in stacks, and perhaps one in the arm."""
    order = draw(st.permutations("abcde"[: draw(st.integers(1, 5))]))
    held = order.pop() if draw(st.booleans()) else None
    stacks = []
    for block in order:
        if stacks and draw(st.booleans()):
            stacks[draw(st.integers(0, len(stacks) - 1))].append(block)
        else:
            stacks.append([block])
    return facts_of(stacks, held)


def all_actions(blocks):
    return [Action(name, found) for name, one in OPERATORS.items() for found in product(blocks, repeat=one.blocks)]


def legal_actions(facts):
    blocks = sorted({block for _, *named in facts for block in named})
    return [one for one in all_actions(blocks) if one.ground(OPERATORS[one.operator].needs) <= facts]


@given(arrangements())
def test_legal_actions_have_inverses_and_others_are_refused_with_a_reason(facts):
    legal = legal_actions(facts)
    for action in all_actions([*sorted({block for _, *named in facts for block in named}), "z"]):
        if action in legal:
            assert apply(apply(facts, action), Action(INVERSE[action.operator], action.blocks)) == facts
        else:
            with pytest.raises(IllegalActionError, match=re.escape(f"{action}: ") + "."):
                apply(facts, action)


@given(st.sampled_from(all_actions("abz")))
def test_an_action_is_read_back_from_its_words_and_from_pddl(action):
    assert Action.parse(str(action)) == action
    assert Action.parse(f"({' '.join((action.operator, *action.blocks))})") == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Pick up the block a.", Action("pick-up", ("a",))),
        ("- unstack block c from on top of block d", Action("unstack", ("c", "d"))),
        ("stack the block b onto the block c", Action("stack", ("b", "c"))),
        ("putdown e", Action("put-down", ("e",))),
        ("unstack c", None),
        ("pick upward", None),
        ("I would pick up a", None),
    ],
)
def test_wordings_of_an_action(text, action):
    assert Action.parse(text) == action


def test_an_arrangement_in_words():
    assert describe(facts_of(["ab", "c"], "d")) == "b lies on a. a and c lie on the table. The arm holds d."
    assert describe(facts_of(["a"])) == "a lies on the table. The arm is empty."


PROBLEM = "(define (problem p) (:objects a b) (:init {init}) (:goal {goal}))"
INIT = "(handempty) (ontable a) (ontable b) (clear a) (clear b)"


@pytest.mark.parametrize("goal", ["(and (on a b))", "(on a b)"])
def test_a_problem_in_pddl(goal):
    problem = read_problem(PROBLEM.format(init=INIT, goal=goal))
    assert (problem.blocks, problem.start) == (("a", "b"), facts_of(["a", "b"]))
    assert problem.goal == {("on", "a", "b")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must define a problem"),
        ("(define (domain d))", "must define a problem"),
        ("(define (problem p)))", "parentheses do not match"),
        ("word", "must be an expression in parentheses"),
        ("(define (problem p))", ":objects is missing or empty"),
        (PROBLEM.format(init="(ontable c)", goal="(on a b)"), ":init: a fact must be a known predicate"),
        (PROBLEM.format(init="(a (b))", goal="(on a b)"), "a fact must be a known predicate"),
        (PROBLEM.format(init=INIT, goal=""), ":goal is missing or empty"),
        (PROBLEM.format(init=INIT, goal="()"), ":goal is missing or empty"),
        (PROBLEM.format(init=INIT, goal="(not (on a b))"), "a fact must be a known predicate"),
    ],
)  # fmt: skip
def test_other_texts_are_refused(text, message):
    with pytest.raises(PDDLError, match=message):
        read_problem(text)


def test_the_example_plans_in_the_prompt_are_valid():
    *examples, _ = (PROMPTS / "thought.txt").read_text().split("\n\n")[1:]
    assert len(examples) == 2
    for example in examples:
        start, goal = facts_in_words(example)
        actions = [Action.parse(text) for text in re.findall(r"Action \d+: (.*)", example)]
        assert actions.pop() is None  # done
        assert unmet(run_plan(start, actions), goal) is None


def facts_in_words(example):
    """Start and goal of an example in a prompt."""
    start, goal = (re.search(rf"{label}: (.*)", example)[1] for label in ("Start", "Goal"))
    above = {lower: upper for upper, lower in re.findall(r"(\w) lies on (\w)\.", start)}
    stacks = [[block] for block in re.search(r"(\w)(?: and (\w))? lies? on the table", start).groups() if block]
    for stack in stacks:
        while stack[-1] in above:
            stack.append(above[stack[-1]])
    return facts_of(stacks), {("on", *pair) for pair in re.findall(r"(\w) lies on (\w)\.", goal)}
