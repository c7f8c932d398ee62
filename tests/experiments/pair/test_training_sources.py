"""Generated training text is correct, has the form of the tasks' prompts, and no split shares text with another."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from experiments.pair.corpus import blocks_plans, python_source
from experiments.pair.corpus.blocks_plans import distances
from experiments.pair.corpus.documentation import descriptions, plain, sections
from experiments.pair.corpus.word_problems import (
    Arithmetic,
    Worked,
    WorkedStep,
    head_of,
    probes,
    problems,
    solution,
    word_problem,
)
from experiments.papers.seed.blocksworld import Blocksworld, run_plan
from specexp.data.tasks.gsm8k import GSM8K
from specexp.data.tasks.task import Item

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seed", range(40))
def test_every_calculation_of_a_word_problem_is_right(seed):
    worked = word_problem(random.Random(seed))
    for step in worked.steps:
        first, *others = re.findall(r"\d[\d +*/-]*", step.answer.replace("$", "").split(" is ")[-1])
        assert {eval(first)} == {eval(other) for other in others}
    assert worked.steps[-1].answer.rstrip(".").split("= ")[-1].split()[0].strip("$") == worked.answer
    assert worked.problem.endswith(worked.steps[-1].question)


def test_splits_share_no_problem():
    train, test = ({one.problem for one in islice(problems(split), 30)} for split in ("train", "test"))
    assert len(train) == len(test) == 30
    assert not train & test


def test_a_solution_continues_the_thought_prompt():
    worked = next(problems("test"))
    item = Item("", 0, worked.problem, (worked.answer,))
    prompt = GSM8K("").thought_prompt(item, [])
    assert f"{head_of(prompt, worked.problem)}\n\n{solution(worked).text}".startswith(prompt)
    assert GSM8K("").check(item, [solution(worked).text.rsplit("Answer:")[-1]]).correct


def test_plans_are_shortest_and_reach_the_goal():
    rng = random.Random(1)
    for _ in range(20):
        planned = blocks_plans.random_problem(rng)
        problem = planned.problem
        assert problem.goal <= run_plan(problem.start, planned.plan)
        assert len(planned.plan) == distances(problem.blocks, problem.goal)[problem.start]


def test_a_plan_continues_the_thought_prompt_and_judgements_are_readable():
    planned, task = blocks_plans.random_problem(random.Random(2)), Blocksworld("", "")
    prompt = task.thought_prompt(planned.item, [])
    assert f"{head_of(prompt, planned.item.problem)}\n\n{blocks_plans.solution(planned).text}".startswith(
        prompt
    )
    for seed in range(10):
        text, given = blocks_plans.judgement(planned, random.Random(seed))
        assert task.read_value(text.removeprefix(given)) is not None


PAGE = """\
Is it a page?
=============

.. index:: page

Yes, see :func:`heapq.heappush` and ``x``.  It has enough words to be kept, which takes more than a hundred characters.

.. function:: heappush(heap, item)

   Push the value *item* onto the *heap*, maintaining the heap invariant at all times.

   .. versionadded:: 3.1
"""


def test_pages_become_sections_and_descriptions():
    ((title, body),) = sections(PAGE)
    assert title == "Is it a page?"
    assert body.startswith("Yes, see heapq.heappush and `x`.")
    assert "versionadded" not in body
    ((name, meaning),) = descriptions(PAGE)
    assert name == "heappush(heap, item)"
    assert meaning == "Push the value *item* onto the *heap*, maintaining the heap invariant at all times."
    assert plain(".. note::\n\n   Text.") == "Text."


def test_probes_distinguish_right_wrong_and_unreadable_answers():
    worked = next(problems("test"))
    solved, judged = islice(Arithmetic(1).probes("test"), 2)
    whole = f"{head_of(solved.prompt, worked.problem)}\n\n{solution(worked).text}"
    assert solved.is_right(whole.removeprefix(solved.prompt)) is True
    assert solved.is_right(" What?\nAnswer: -5") is False
    assert solved.is_right(" What?") is None
    assert {judged.is_right(" So.\nScore: 9"), judged.is_right(" So.\nScore: 2")} == {True, False}
    assert judged.is_right(" high") is None
    thousands = Worked("How many?", (WorkedStep("How many?", "There are 1200."),), "1,200")
    assert next(probes([thousands])).is_right(" What?\nAnswer: 1200") is True


def test_probes_of_blocks_simulate_the_plan():
    planned = blocks_plans.random_problem(random.Random(4))
    first, *others = planned.thoughts
    plan = "\n".join([f" {first}", *(f"Action {n}: {action}" for n, action in enumerate(others, start=2))])
    assert planned.is_solved(plan) is True
    assert planned.is_solved(f" {first}\nAction 2: done") is False
    assert planned.is_solved(f" {first}\nAction 2: {first}") is False
    assert planned.is_solved(" wait") is None


def test_packages_are_training_text_only_and_missing_ones_are_left_out(monkeypatch):
    monkeypatch.setattr(
        python_source, "PACKAGES", {"click": ("BSD-3-Clause", 9_000), "missing": ("MIT", 9_000)}
    )
    texts = list(python_source.PythonPackages().texts("train"))
    assert texts
    assert all(text.name.startswith("click.") for text in texts)
    assert not list(python_source.PythonPackages().texts("test"))
