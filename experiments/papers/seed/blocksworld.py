"""Blocksworld of PlanBench (Valmeekam et al. 2023), in the split of RAP (Hao et al. 2023): each thought is an action.

An arm moves blocks on a table. A state is the set of facts that hold, as in PDDL: ``("on", "a", "b")``,
``("ontable", "b")``, ``("clear", "a")``, ``("holding", "c")``, ``("handempty",)``.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from experiments.papers.seed.task_files import Prompts, read_json, read_prompt, read_text
from specexp.base.messages import did_you_mean
from specexp.data.prompt_set import PromptSetError
from specexp.data.tasks import Check, Ending, Item, Task

Fact = tuple[str, ...]
Facts = frozenset[Fact]

ON, ON_TABLE, CLEAR, HOLDING, HAND_EMPTY = "on", "ontable", "clear", "holding", "handempty"
ARITY: Mapping[str, int] = {ON: 2, ON_TABLE: 1, CLEAR: 1, HOLDING: 1, HAND_EMPTY: 0}
"""Number of blocks that each predicate takes."""


@dataclass(frozen=True)
class Operator:
    """A STRIPS operator on ``blocks`` blocks: it requires and removes the facts ``needs``, and adds ``makes``."""

    blocks: int
    needs: Facts
    makes: Facts


_LYING = frozenset({(CLEAR, "?0"), (ON_TABLE, "?0"), (HAND_EMPTY,)})
_STACKED = frozenset({(ON, "?0", "?1"), (CLEAR, "?0"), (HAND_EMPTY,)})
_HELD = frozenset({(HOLDING, "?0")})
_HELD_ABOVE = frozenset({(HOLDING, "?0"), (CLEAR, "?1")})
OPERATORS: Mapping[str, Operator] = {
    "pick-up": Operator(1, _LYING, _HELD),
    "put-down": Operator(1, _HELD, _LYING),
    "stack": Operator(2, _HELD_ABOVE, _STACKED),
    "unstack": Operator(2, _STACKED, _HELD_ABOVE),
}
"""The operators by name; ``"?0"`` and ``"?1"`` are placeholders for an action's blocks."""

_SENTENCES = {
    ON: "{} lies on {}",
    ON_TABLE: "{} lies on the table",
    CLEAR: "{} is clear",
    HOLDING: "the arm holds {}",
    HAND_EMPTY: "the arm is empty",
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
    """The preconditions of an action do not hold. The message names the missing facts."""


@dataclass(frozen=True)
class Action:
    """An operator applied to blocks. Its string is in words, such as ``unstack c from d``."""

    operator: str
    blocks: tuple[str, ...]

    def __str__(self) -> str:
        return _WORDS[self.operator].format(*self.blocks)

    @classmethod
    def parse(cls, text: str) -> Action | None:
        """Return the action at the start of a line, in words or in PDDL; None if there is none."""
        found = _ACTION.match(text.strip().lower().lstrip("([-* "))
        if found is None:
            return None
        verb = found["operator"]
        name = {"pic": "pick-up", "put": "put-down"}.get(verb[:3], verb)
        blocks = (found["first"], found["second"])[: OPERATORS[name].blocks]
        return None if None in blocks else cls(name, blocks)

    def ground(self, facts: Facts) -> Facts:
        """Return facts of the operator with the action's blocks in place of ``"?0"`` and ``"?1"``."""
        blocks = {f"?{number}": block for number, block in enumerate(self.blocks)}
        return frozenset(tuple(blocks.get(word, word) for word in fact) for fact in facts)


@dataclass(frozen=True)
class BlocksProblem:
    """A problem: its blocks in the order of the file, the facts at the start, and the facts that a plan must reach."""

    blocks: tuple[str, ...]
    start: Facts
    goal: Facts


def apply(facts: Facts, action: Action) -> Facts:
    """Return the state after an action; raises IllegalActionError if its preconditions do not hold."""
    operator = OPERATORS[action.operator]
    needs = action.ground(operator.needs)
    if (reasons := unmet(facts, needs)) is not None:
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
    """Return a fact in words, such as ``The arm holds a.``"""
    return f"{_SENTENCES[fact[0]].format(*fact[1:])}.".replace("the arm", "The arm")


def describe(facts: Facts) -> str:
    """Describe the positions of the blocks and the arm in words. Clear blocks follow from them and are not named."""
    order = sorted(facts)
    sentences = [sentence(fact) for fact in order if fact[0] == ON]
    table = [block for name, *named in order if name == ON_TABLE for block in named]
    if table:
        *others, last = table
        listed = f"{', '.join(others)} and {last} lie" if others else f"{last} lies"
        sentences.append(f"{listed} on the table.")
    return " ".join(sentences + [sentence(fact) for fact in order if fact[0] in (HOLDING, HAND_EMPTY)])


def unmet(facts: Facts, goal: Facts) -> str | None:
    """Return a sentence that names the facts of a goal that do not hold; None if all hold."""
    missing = sorted(_SENTENCES[name].format(*named) for name, *named in goal - facts)
    return f"it is not true that {' and '.join(missing)}" if missing else None


Expression = str | list["Expression"]


class PDDLError(ValueError):
    """A text is not a valid PDDL problem of Blocksworld."""


def read_problem(text: str) -> BlocksProblem:
    """Parse a problem in PDDL: ``:objects``, ``:init`` and ``:goal``, which is one fact or a conjunction of facts.

    Raises:
        PDDLError: a section is missing, or a fact has an unknown predicate or unknown blocks.
    """
    expression = _parse(text)
    parts = [part for part in expression if isinstance(part, list) and part]
    sections = {part[0]: part[1:] for part in parts if isinstance(part[0], str)}
    if expression[:1] != ["define"] or "problem" not in sections:
        raise PDDLError("the text must define a problem: (define (problem ...) ...)")
    blocks = tuple(word for word in sections.get(":objects", []) if isinstance(word, str))
    (goal, *_) = sections.get(":goal") or [[]]
    wanted = goal[1:] if goal[:1] == ["and"] else [goal]
    if not blocks or not goal:
        raise PDDLError(f"the section {':goal' if blocks else ':objects'} is missing or empty")
    start = _facts(sections.get(":init", []), ":init", blocks)
    return BlocksProblem(blocks, start, _facts(wanted, ":goal", blocks))


def _parse(text: str) -> list[Expression]:
    """Return the first expression of a text as nested lists of words; words are in lower case, as PDDL ignores case."""
    tokens = re.findall(r"[()]|[^\s()]+", re.sub(r";.*", "", text).lower())
    # translate it to nested Python lists, in which a comma may follow the last item
    literal = "".join({"(": "[", ")": "],"}.get(token, f"{token!r},") for token in tokens)
    try:
        (first, *_) = literal_eval(f"[{literal}]") or [[]]
    except SyntaxError as error:
        raise PDDLError("the parentheses do not match") from error
    if not isinstance(first, list):
        raise PDDLError(f"the text must be an expression in parentheses, got {first!r}")
    return first


def _facts(expressions: Sequence[Expression], where: str, blocks: Sequence[str]) -> Facts:
    facts: set[Fact] = set()
    for expression in expressions:
        name, *named = (str(word) for word in expression) if isinstance(expression, list) else ("",)
        if ARITY.get(name) != len(named) or not set(named) <= set(blocks):
            raise PDDLError(
                f"{where}: a fact must be a known predicate ({', '.join(ARITY)}) with blocks of the problem, got "
                f"{expression!r}"
            )
        facts.add((name, *named))
    return frozenset(facts)


GOOD, BAD = 10.0, 1.0
DONE = "done"
_EVALUATION = re.compile(r"Evaluation:\W*(good|bad)\b", re.IGNORECASE)
_PUBLISHED_EVALUATION = re.compile(r"\W*(good|bad)\b", re.IGNORECASE)


class Blocksworld(Task):
    """Blocksworld: rearrange blocks by picking up, putting down, stacking and unstacking them.

    Each thought is one action, the last generation included; ``done`` ends a plan. The evaluator rates the newest
    action good (value 10) or bad (value 1), which matches the range of other tasks' scores. The plan is checked by
    simulation. Depth 7 is for instances that need six actions, followed by ``done``. The paper measures on 145 items;
    the split has 152.

    Args:
        path: JSON file of the split, such as ``split_v1_step_6_data.json``: a list of
            ``[path of the instance, a valid plan, length of the plan]``.
        instances: JSON file with the PDDL text of each instance by its path in the split, or the folder to which these
            paths are relative.
        unparsable: value of a state if its evaluation is neither good nor bad.
        prompts: ``published`` are SEED's (appendix C), with demonstrations of our own: the paper omits its own.
    """

    name: ClassVar[str] = "Blocksworld"
    depth: ClassVar[int] = 7
    value_ending = Ending(("\n\n", "\nStart:"), 64)

    def __init__(
        self, path: str, instances: str, unparsable: Annotated[float, Field(le=1)] = 0.0, prompts: Prompts = "own"
    ) -> None:
        self.prompts = prompts
        self.path = path
        self.instances = instances
        self.unparsable = unparsable

    @override
    def load(self) -> list[Item]:
        # An item's id is the instance's folder and name, as in generated_basic/instance-3. Its reference is the PDDL
        # text and the split's plan; the plan is not used by prompts or checks.
        rows = read_json(self.path)
        if not isinstance(rows, list) or not rows:
            raise PromptSetError(f"{self.path}: must be a JSON list of one or more [instance, plan, length]")
        texts = read_json(self.instances) if not Path(self.instances).expanduser().is_dir() else None
        if texts is not None and not isinstance(texts, dict):
            raise PromptSetError(f"{self.instances}: must be a JSON object of PDDL texts by path")
        items: dict[str, Item] = {}
        for index, row in enumerate(rows):
            item = self._item(index, row, texts)
            if items.setdefault(item.item_id, item) is not item:
                raise PromptSetError(f"{self.path}, row {index + 1}: instances must differ, got {row[0]!r} twice")
        return list(items.values())

    @override
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        # the last generation is an action too, so it has the same prompt
        if self.prompts == "published":
            return _PUBLISHED_THOUGHT.format(problem=item.problem, plan=", ".join(thoughts))
        actions = "".join(f"Action {number}: {action}\n" for number, action in enumerate(thoughts, start=1))
        return _THOUGHT.format(problem=item.problem, actions=actions, number=len(thoughts) + 1)

    @override
    def thought_ending(self, last: bool = False) -> Ending:
        return Ending(("\n",), 16)

    @override
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        if self.prompts == "published":
            return _PUBLISHED_VALUE.format(problem=item.problem, plan=", ".join(thoughts))
        *earlier, newest = thoughts
        actions = f"Earlier actions: {', '.join(earlier)}\n" if earlier else ""
        return _VALUE.format(problem=item.problem, actions=actions, newest=newest)

    @override
    def read_value(self, answer: str) -> float | None:
        published = self.prompts == "published"
        found = _PUBLISHED_EVALUATION.match(answer) if published else _EVALUATION.search(answer)
        return None if found is None else GOOD if found[1].lower() == "good" else BAD

    @override
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        # simulate the actions before the first "done": each must be legal, and the last state must satisfy the goal
        problem = read_problem(item.reference[0])
        plan: list[Action] = []
        for number, thought in enumerate(thoughts, start=1):
            if thought.strip().lower().startswith(DONE):
                break
            action = Action.parse(thought)
            if action is None:
                return Check(False, f"action {number} must be one of the four actions, got {thought!r}")
            plan.append(action)
        try:
            missing = unmet(run_plan(problem.start, plan), problem.goal)
        except IllegalActionError as error:
            return Check(False, str(error))
        return Check(missing is None, missing or "")

    def _item(self, index: int, row: object, texts: Mapping[str, object] | None) -> Item:
        where = f"{self.path}, row {index + 1}"
        if not isinstance(row, list) or len(row) != 3 or not all(isinstance(text, str) for text in row[:2]):
            raise PromptSetError(f"{where}: must be [instance, plan, length]")
        instance, plan, _ = row
        if texts is None:
            text: Any = read_text(str(Path(self.instances) / instance))
        elif not isinstance(text := texts.get(instance), str):
            near = did_you_mean(instance, texts)
            raise PromptSetError(f"{where}: {self.instances} has no entry for the instance {instance!r}{near}")
        try:
            problem = read_problem(text)
        except PDDLError as error:
            raise PromptSetError(f"{self.instances}, {instance}: {error}") from error
        goal = " ".join(sentence(fact) for fact in sorted(problem.goal))
        words = f"Start: {describe(problem.start)}\nGoal: {goal}"
        return Item("/".join(Path(instance).with_suffix("").parts[-2:]), index, words, (text, plan))


_THOUGHT = read_prompt(__file__, "thought")
_VALUE = read_prompt(__file__, "value")
_PUBLISHED_THOUGHT = read_prompt(__file__, "published_thought")
_PUBLISHED_VALUE = read_prompt(__file__, "published_value")
