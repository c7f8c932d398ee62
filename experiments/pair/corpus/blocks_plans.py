"""Blocksworld as training text: shortest plans of random problems, and judgements of steps, in the task's prompts."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache, partial
from itertools import permutations
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field
from typing_extensions import override

from experiments.pair.corpus.text_source import Probe, Text, TextSource, split_of_name
from experiments.pair.corpus.word_problems import WITH_HEAD, Example, document, example, head_of, judged
from experiments.papers.seed.blocksworld import (
    CLEAR,
    DONE,
    HAND_EMPTY,
    ON,
    ON_TABLE,
    OPERATORS,
    Action,
    BlocksProblem,
    Blocksworld,
    Facts,
    IllegalActionError,
    apply,
    describe,
    read_problem,
    run_plan,
    sentence,
    unmet,
)
from specexp.data.tasks.task import Ending, Item, read_json
from specexp.data.training_text import Split

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TASK = Blocksworld("", "")

SHORT = 4  # most actions of a short plan


@cache
def moves(blocks: tuple[str, ...]) -> Mapping[Facts, Mapping[Action, Facts]]:
    """Return the possible actions in each arrangement of some blocks, and the resulting arrangements."""
    lying = [(state, one) for one in blocks for state in (ON_TABLE, CLEAR)]
    start = frozenset({(HAND_EMPTY,), *lying})
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
    """Return the number of actions from each arrangement to a goal, by breadth-first search.

    The search starts at the goal, since every action can be undone.
    """
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


@cache
def actions(blocks: tuple[str, ...]) -> tuple[Action, ...]:
    """Return every action on some blocks, whether or not it is possible in a given arrangement."""
    return tuple(
        Action(name, named)
        for name, operator in OPERATORS.items()
        for named in permutations(blocks, operator.blocks)
    )


class Planned(NamedTuple):
    """A problem with blocks named by the first letters, one of its shortest plans, and the task's names of blocks."""

    problem: BlocksProblem
    plan: tuple[Action, ...]
    names: dict[str, str]

    @property
    def item(self) -> Item:
        """The problem in the task's words, with its names of blocks."""
        start, goal = (_renamed(facts, self.names) for facts in (self.problem.start, self.problem.goal))
        wanted = " ".join(sentence(fact) for fact in sorted(goal))
        return Item("", 0, f"Start: {describe(start)}\nGoal: {wanted}", ())

    def words(self, action: Action) -> str:
        """Return an action with the task's names of blocks."""
        return str(_named(action, self.names))

    @property
    def thoughts(self) -> list[str]:
        """The plan as the task's thoughts, including the one that ends it."""
        return [*map(self.words, self.plan), DONE]

    def is_solved(self, text: str) -> bool | None:
        """Return whether a continuation of the thought prompt reaches the goal; None if it is not a plan."""
        first, *others = text.strip().split("\n")
        lines = [line.strip() for line in (first, *(line.partition(":")[2] for line in others))]
        blocks = {name: block for block, name in self.names.items()}
        facts = self.problem.start
        for line in lines:
            if not line or line.startswith(DONE):
                continue
            action = Action.parse(line)
            if action is None:
                return None
            named = tuple(blocks.get(name, name) for name in action.blocks)
            try:
                facts = apply(facts, Action(action.operator, named))
            except IllegalActionError:
                return False
        return self.problem.goal <= facts


class BlocksPlans(TextSource):
    """Random problems of three to five blocks that take two to eight actions, half of them more than `SHORT`.

    A problem is in one split only; problems that differ only in the names of blocks count as the same.

    Args:
        problems: number of training problems.
        held_out: file of the instances of :class:`experiments.papers.seed.blocksworld.Blocksworld`, which are left out.
    """

    licence: ClassVar[str] = "MIT (generated by this project's simulator)"
    written: ClassVar[bool] = False

    def __init__(self, problems: Annotated[int, Field(ge=1)] = 12_000, held_out: str | None = None) -> None:
        self.count = problems
        self.held_out = held_out

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        rng = random.Random(f"blocks/{split}/documents")
        waiting, number = list(self.problems(split)), 0
        while waiting:
            some = [waiting.pop() for _ in range(min(len(waiting), rng.randint(1, 5)))]
            judging = rng.random() < 0.5
            item = some[0].item
            prompt = _TASK.value_prompt(item, [DONE]) if judging else _TASK.thought_prompt(item, [])
            head = head_of(prompt, item.problem) if rng.random() < WITH_HEAD else None
            examples = [judgement(one, rng) if judging else solution(one) for one in some]
            yield document(f"blocks/{split}/{number}", examples, head)
            number += 1

    @override
    def probes(self, split: Split) -> Iterator[Probe]:
        rng = random.Random("probes")
        for planned in self.problems(split):
            item, short = planned.item, len(planned.plan) <= SHORT
            kind = f"plans of 2 to {SHORT} actions" if short else f"plans of {SHORT + 1} to 8 actions"
            ending = Ending((f"{DONE}\n", "\n\n"), 128)
            yield Probe(kind, _TASK.thought_prompt(item, []), planned.is_solved, ending)
            head = head_of(_TASK.value_prompt(item, [DONE]), item.problem)
            text, given = judgement(planned, rng)
            agrees = partial(_agrees, _TASK.read_value(text))
            yield Probe("judged", f"{head}\n\n{given}", agrees, _TASK.value_ending)

    def problems(self, split: Split) -> Iterator[Planned]:
        """Yield the problems of a split."""
        texts = {} if self.held_out is None else read_json(self.held_out)
        known = {shape(read_problem(text)) for text in texts.values()}
        rng = random.Random(f"blocks/{split}")
        count = self.count if split == "train" else min(self.count, 150)
        while count:
            planned = random_problem(rng)
            mark = shape(planned.problem)
            if split_of_name(mark) == split and mark not in known:
                count -= 1
                yield planned


def random_problem(rng: random.Random) -> Planned:
    """Return a problem that takes two to eight actions, with one of its shortest plans."""
    fewest, most = rng.choice([(2, SHORT), (SHORT + 1, 8)])
    while True:
        blocks = tuple(_LETTERS[: rng.choice([3, 4, 4, 4, 5])])  # mostly four, as in the task
        states = _resting(blocks)
        start, end = rng.choice(states), rng.choice(states)
        wanted = sorted(fact for fact in end if fact[0] == ON)
        goal = frozenset(rng.sample(wanted, rng.randint(1, len(wanted))) if wanted else ())
        if goal and fewest <= distances(blocks, goal)[start] <= most:
            problem = BlocksProblem(blocks, start, goal)
            names = dict(zip(blocks, _names(len(blocks), rng), strict=True))
            return Planned(problem, _plan(problem, rng), names)


def shape(problem: BlocksProblem) -> str:
    """Return a canonical form of a problem, which does not depend on the names of its blocks."""
    letters = _LETTERS[: len(problem.blocks)]
    ways = (dict(zip(order, letters, strict=True)) for order in permutations(problem.blocks))
    # the least of all renamings is the same for problems that differ only in names
    return min(
        repr((sorted(_renamed(problem.start, way)), sorted(_renamed(problem.goal, way)))) for way in ways
    )


def judgement(planned: Planned, rng: random.Random) -> Example:
    """Return a document: some first actions of the plan, then a good or bad action, with a remark and its judgement.

    Half of the bad actions are possible and lead away from the goal. The others are impossible, or stop too early.
    """
    problem, thoughts, item = planned.problem, planned.thoughts, planned.item
    done = rng.randrange(len(thoughts))
    steps, far = moves(problem.blocks), distances(problem.blocks, problem.goal)
    facts = run_plan(problem.start, planned.plan[:done])
    newest: Action | None = planned.plan[done] if done < len(planned.plan) else None
    word = "good"
    if rng.random() < 0.5:
        word = "bad"
        away = [one for one, after in steps[facts].items() if far[after] >= far[facts]]  # possible
        impossible = [one for one in actions(problem.blocks) if one not in steps[facts]]
        if away and rng.random() < 0.5:
            newest = rng.choice(away)
        else:
            newest = rng.choice([rng.choice(impossible), *([] if newest is None else [None])])
    words = DONE if newest is None else planned.words(newest)
    prompt = _TASK.value_prompt(item, [*thoughts[:done], words])
    return judged(prompt, f"{remark(planned, facts, newest)}\nEvaluation: {word}", item.problem)


def remark(planned: Planned, facts: Facts, action: Action | None) -> str:
    """Return why an action, or ``done`` if None, is good or bad in a state."""
    problem, far = planned.problem, distances(planned.problem.blocks, planned.problem.goal)
    if action is None:
        missing = unmet(*(_renamed(some, planned.names) for some in (facts, problem.goal)))
        return f"It is too early: {missing}." if missing else "The goal is reached."
    try:
        apply(_renamed(facts, planned.names), _named(action, planned.names))
    except IllegalActionError as error:
        return f"It is impossible: {str(error).partition(': ')[2]}."
    before, after = far[facts], far[apply(facts, action)]
    way = "and the goal comes" if after < before else "but the goal goes"
    return f"It is possible, {way} from {before} actions away to {after}."


def solution(planned: Planned) -> Example:
    """Return a problem with its plan, as in the thought prompt."""
    item, (*earlier, last) = planned.item, planned.thoughts
    return Example(example(_TASK.thought_prompt(item, earlier), f" {last}", item.problem), item.problem)


def _agrees(value: float | None, text: str) -> bool | None:
    read = _TASK.read_value(text)
    return None if read is None else read == value


def _plan(problem: BlocksProblem, rng: random.Random) -> tuple[Action, ...]:
    steps, far = moves(problem.blocks), distances(problem.blocks, problem.goal)
    facts, plan = problem.start, []
    while far[facts]:
        # a plan is a shortest one if every step reduces the distance to the goal
        nearer = [(one, after) for one, after in steps[facts].items() if far[after] < far[facts]]
        action, facts = rng.choice(nearer)
        plan.append(action)
    return tuple(plan)


def _names(count: int, rng: random.Random) -> list[str]:
    """Return names of blocks: mostly the first letters of the alphabet, as in the task's problems."""
    return rng.sample(_LETTERS[:count] if rng.random() < 0.6 else _LETTERS, count)


@cache
def _resting(blocks: tuple[str, ...]) -> list[Facts]:
    """Return the arrangements in which the arm holds no block."""
    return sorted((facts for facts in moves(blocks) if (HAND_EMPTY,) in facts), key=sorted)


def _named(action: Action, names: Mapping[str, str]) -> Action:
    return Action(action.operator, tuple(names[block] for block in action.blocks))


def _renamed(facts: Facts, names: dict[str, str]) -> Facts:
    return frozenset((fact[0], *(names[block] for block in fact[1:])) for fact in facts)
