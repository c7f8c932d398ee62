"""The simulator: properties on random arrangements, and the PDDL it is read from."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import specexp.data.tasks
from specexp.data.tasks.blocksworld import (
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

NAMES = "abcde"


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
    order = draw(st.permutations(NAMES[: draw(st.integers(1, 5))]))
    held = order.pop() if draw(st.booleans()) else None
    stacks = []
    for block in order:
        if stacks and draw(st.booleans()):
            stacks[draw(st.integers(0, len(stacks) - 1))].append(block)
        else:
            stacks.append([block])
    return facts_of(stacks, held)


def legal_actions(facts):
    """Every action that is possible, sorted by operator and blocks."""
    blocks = sorted({block for _, *named in facts for block in named})
    candidates = [Action(name, (first,)) for name in ("pick-up", "put-down") for first in blocks] + [
        Action(name, (first, second))
        for name in ("stack", "unstack")
        for first in blocks
        for second in blocks
        if first != second
    ]
    return [action for action in candidates if action.ground(OPERATORS[action.operator].needs) <= facts]


def blocks_of(facts):
    return {block for _, *named in facts for block in named}


def all_actions(blocks):
    return [
        Action(name, (first, second) if operator.blocks == 2 else (first,))
        for name, operator in OPERATORS.items()
        for first in blocks
        for second in (blocks if operator.blocks == 2 else [first])
    ]


@given(arrangements())
def test_an_action_and_its_inverse_are_the_identity(facts):
    inverse = {"pick-up": "put-down", "put-down": "pick-up", "stack": "unstack", "unstack": "stack"}
    for action in legal_actions(facts):
        assert apply(apply(facts, action), Action(inverse[action.operator], action.blocks)) == facts


@given(arrangements())
def test_any_other_action_is_refused_with_a_reason(facts):
    legal = legal_actions(facts)
    for action in all_actions([*sorted(blocks_of(facts)), "z"]):
        if action in legal:
            continue
        with pytest.raises(IllegalActionError, match=re.escape(f"{action}: ")) as error:
            apply(facts, action)
        assert str(error.value).removeprefix(f"{action}: ")


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


def test_a_problem_in_pddl():
    problem = read_problem(PROBLEM.format(init=INIT, goal="(and (on a b))"))
    assert problem.blocks == ("a", "b")
    assert problem.start == facts_of(["a", "b"])
    assert problem.goal == {("on", "a", "b")}
    assert read_problem(PROBLEM.format(init=INIT, goal="(on a b)")) == problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines no problem"),
        ("(define (domain d))", "defines no problem"),
        ("(define (problem p)))", "closed that was not opened"),
        ("word", "in parentheses is expected"),
        ("(define (problem p))", "no :objects"),
        (
            PROBLEM.format(init="(ontable c)", goal="(on a b)"),
            ":init: .* is not a fact about the problem's blocks",
        ),
        (PROBLEM.format(init="(a (b))", goal="(on a b)"), "is not a fact"),
        (PROBLEM.format(init=INIT, goal=""), "no :goal"),
        (PROBLEM.format(init=INIT, goal="()"), "no :goal"),
        (PROBLEM.format(init=INIT, goal="(on a z)"), r"'z'\] is not a fact about the problem's blocks"),
        (PROBLEM.format(init=INIT, goal="(not (on a b))"), "is not a fact"),
    ],
)
def test_what_is_no_problem(text, message):
    with pytest.raises(PDDLError, match=message):
        read_problem(text)


PROMPTS = Path(specexp.data.tasks.__file__).parent / "prompts" / "blocksworld"


def test_the_example_plans_in_the_prompt_are_valid():
    """Read back from the words of the prompt itself."""
    *examples, _ = (PROMPTS / "thought.txt").read_text().split("\n\n")[1:]
    assert len(examples) == 2
    for example in examples:
        start, goal = facts_in_words(example)
        actions = [Action.parse(text) for text in re.findall(r"Action \d+: (.*)", example)]
        assert actions.pop() is None  # done
        assert unmet(run_plan(start, actions), goal) is None


def test_the_evaluations_in_the_prompt_are_right():
    """Good ones shorten the way to the goal, bad ones are impossible or lengthen it."""
    *examples, _ = (PROMPTS / "value.txt").read_text().split("\n\n")[1:]
    for example in examples:
        state, goal = facts_in_words(example)
        earlier = re.findall(r"Earlier actions: (.*)", example)
        state = run_plan(state, [Action.parse(text) for text in ", ".join(earlier).split(", ") if text])
        (newest,) = re.findall(r"Newest action: (.*)", example)
        (evaluation,) = re.findall(r"Evaluation: (.*)", example)
        action = Action.parse(newest)
        good = action in legal_actions(state) and distance(apply(state, action), goal) < distance(state, goal)
        assert evaluation == ("good" if good else "bad")


def distance(state, goal):
    """Fewest actions to the goal."""
    seen, level, steps = {state}, [state], 0
    while not any(goal <= facts for facts in level):
        level = [new for facts in level for action in legal_actions(facts) for new in [apply(facts, action)]]
        level = [new for new in dict.fromkeys(level) if new not in seen]
        seen |= set(level)
        steps += 1
    return steps


def facts_in_words(example):
    """Start and goal of an example in a prompt."""
    start, goal = (re.search(rf"{label}: (.*)", example)[1] for label in ("Start", "Goal"))
    on = re.findall(r"(\w) lies on (\w)\.", start)
    table = re.search(r"(\w)(?: and (\w))? lies? on the table", start).groups()
    stacks = []
    for block in filter(None, table):
        stack = [block]
        while above := [upper for upper, lower in on if lower == stack[-1]]:
            stack += above
        stacks.append(stack)
    return facts_of(stacks), {("on", *pair) for pair in re.findall(r"(\w) lies on (\w)\.", goal)}
