"""Blocksworld of PlanBench (Valmeekam et al. 2023), as split by RAP (Hao et al. 2023): one action at every step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from specexp.core.messages import did_you_mean
from specexp.data.prompt_set import PromptSetError
from specexp.data.tasks.blocks import (
    Action,
    IllegalActionError,
    PDDLError,
    describe,
    read_problem,
    run_plan,
    sentence,
    unmet,
)
from specexp.data.tasks.task import Check, Ending, Item, Task, read_json, read_prompt, read_text

GOOD, BAD = 10.0, 1.0
DONE = "done"
_EVALUATION = re.compile(r"Evaluation:\W*(good|bad)\b", re.IGNORECASE)


class Blocksworld(Task):
    """Blocks to be put on each other by picking up, putting down, stacking and unstacking.

    A thought is one action, and so is the last generation; ``done`` ends a plan. The evaluator calls the newest action
    good (value 10) or bad (value 1), in the range of the other tasks' scores. The plan is checked by simulating it.
    Depth 7 is that of the instances solved in 6 steps: six actions and ``done``. The paper measures on 145 items; the
    split holds 152.

    Args:
        path: The split, as ``split_v1_step_6_data.json``, a list of ``[instance, a valid plan, its length]``.
        instances: The instances, by the paths in the split: a JSON file of PDDL texts by path, or the folder that the
            paths start from.
        unparsable: The value of a state whose evaluation is neither good nor bad.
    """

    name: ClassVar[str] = "Blocksworld"
    depth: ClassVar[int] = 7
    paper_items: ClassVar[int] = 145
    value_ending = Ending(("\n\n", "\nStart:"), 64)

    def __init__(self, path: str, instances: str, unparsable: Annotated[float, Field(le=1)] = 0.0) -> None:
        self.path = path
        self.instances = instances
        self.unparsable = unparsable

    @override
    def load(self) -> list[Item]:
        # An instance's folder and name, as ``generated_basic/instance-3``, is its id; the reference is its PDDL and the
        # plan that the split gives, which no prompt and no check uses.
        rows = read_json(self.path)
        if not isinstance(rows, list) or not rows:
            raise PromptSetError(f"{self.path}: a list of at least one [instance, plan, length] is needed")
        texts = read_json(self.instances) if not Path(self.instances).expanduser().is_dir() else None
        if texts is not None and not isinstance(texts, dict):
            raise PromptSetError(f"{self.instances}: PDDL texts by path are needed")
        items = [self._item(index, row, texts) for index, row in enumerate(rows)]
        first: dict[str, int] = {}
        for item in items:
            if first.setdefault(item.item_id, item.index) != item.index:
                raise PromptSetError(
                    f"{self.path}, row {item.index + 1}: {rows[item.index][0]!r} is given twice"
                )
        return items

    @override
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        # The last generation is an action like the others.
        actions = "".join(f"Action {number}: {action}\n" for number, action in enumerate(thoughts, start=1))
        return _THOUGHT.format(problem=item.problem, actions=actions, number=len(thoughts) + 1)

    @override
    def thought_ending(self, last: bool = False) -> Ending:
        return Ending(("\n",), 16)

    @override
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        *earlier, newest = thoughts
        actions = f"Earlier actions: {', '.join(earlier)}\n" if earlier else ""
        return _VALUE.format(problem=item.problem, actions=actions, newest=newest)

    @override
    def read_value(self, answer: str) -> float | None:
        found = _EVALUATION.search(answer)
        if found is None:
            return None
        return GOOD if found[1].lower() == "good" else BAD

    @override
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        # Actions up to the first ``done`` are simulated; all have to be possible, and lead to the goal.
        problem = read_problem(item.reference[0])
        plan: list[Action] = []
        for number, thought in enumerate(thoughts, start=1):
            if thought.strip().lower().startswith(DONE):
                break
            action = Action.parse(thought)
            if action is None:
                return Check(False, f"action {number}, {thought!r}: is none of the four actions")
            plan.append(action)
        try:
            missing = unmet(run_plan(problem.start, plan), problem.goal)
        except IllegalActionError as error:
            return Check(False, str(error))
        return Check(missing is None, missing or "")

    def _item(self, index: int, row: object, texts: Mapping[str, object] | None) -> Item:
        where = f"{self.path}, row {index + 1}"
        if not isinstance(row, list) or len(row) != 3 or not all(isinstance(text, str) for text in row[:2]):
            raise PromptSetError(f"{where}: [instance, plan, length] is needed")
        instance, plan, _ = row
        text = self._instance(where, instance, texts)
        try:
            problem = read_problem(text)
        except PDDLError as error:
            raise PromptSetError(f"{self.instances}, {instance}: {error}") from error
        goal = " ".join(sentence(fact) for fact in sorted(problem.goal))
        words = f"Start: {describe(problem.start)}\nGoal: {goal}"
        return Item("/".join(Path(instance).with_suffix("").parts[-2:]), index, words, (text, plan))

    def _instance(self, where: str, instance: str, texts: Mapping[str, object] | None) -> str:
        if texts is None:
            return read_text(str(Path(self.instances) / instance))
        text = texts.get(instance)
        if not isinstance(text, str):
            raise PromptSetError(
                f"{where}: {self.instances} has no text for {instance!r}{did_you_mean(instance, texts)}"
            )
        return text


_THOUGHT = read_prompt(__file__, "thought")
_VALUE = read_prompt(__file__, "value")
