"""A solver builds the same tree of thoughts however its sequences are decoded."""

import pytest
from helpers.countdown import SIGNS, Countdown, DigitTokenizer

from specexp.bench.execution_arm import Solver
from specexp.builders import Chain, KConfig
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.data.searches import BestFirst, BreadthFirst, MonteCarlo
from specexp.data.tasks import Ending
from specexp.drafters import DraftModel, TokenRecycling
from specexp.scheduling import Batched, Scheduled, Serial, SerialSpeculative
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

STRATEGIES = {
    "one by one": SerialSpeculative(),
    "in step": Batched(3),
    "SEED": Scheduled(3, workers="thread"),
    "two drafts a pass": Scheduled(4, verify_batch=2, workers="thread"),
}


@pytest.fixture(scope="module")
def model():
    return LanguageModel(hashed_model(len(SIGNS), seed=3))


def parts(verifier):
    if isinstance(verifier, RejectionSampling):
        draft = DraftModel(hashed_model(len(SIGNS), seed=3))
        return Parts(draft, KConfig([2, 1], candidates="drawn"), verifier)
    return Parts(TokenRecycling(k=4, state="carry"), Chain(3), verifier)


def solve(model, execution, verifier, search, **arguments):
    solver = Solver(search, DigitTokenizer(), seed=5)
    with execution.open(model, parts(verifier)) as executor:
        return [solver.solve(Countdown(), item, executor, **arguments) for item in Countdown().load()]


def shown(solutions):
    return [(one.result.tree._values, one.result.final, one.check, one.unparsable) for one in solutions]


@pytest.mark.parametrize(
    "search",
    [BreadthFirst(2, 3), BestFirst(4, 2), MonteCarlo(4, 2)],
    ids=lambda search: type(search).__name__,
)
@pytest.mark.parametrize(
    "verifier",
    [pytest.param(Greedy(), marks=pytest.mark.slow), KeyedSampling(1.0)],
    ids=["greedy", "keyed"],
)
def test_the_tree_of_thoughts_is_that_of_plain_decoding(model, search, verifier):
    plain = shown(solve(model, Serial(), verifier, search))
    for name, execution in STRATEGIES.items():
        assert shown(solve(model, execution, verifier, search)) == plain, name


def test_under_rejection_sampling_all_strategies_build_one_tree(model):
    trees = [
        shown(solve(model, execution, RejectionSampling(1.0), BreadthFirst(1, 3)))
        for execution in STRATEGIES.values()
    ]
    assert all(tree == trees[0] for tree in trees)


def test_samples_differ_and_the_same_one_repeats(model):
    first, again = (shown(solve(model, Serial(), KeyedSampling(1.0), BreadthFirst())) for _ in range(2))
    other = shown(solve(model, Serial(), KeyedSampling(1.0), BreadthFirst(), sample=1))
    assert first == again != other


def test_a_solution_says_what_was_asked_for_and_what_it_took(model):
    for solution in solve(model, STRATEGIES["SEED"], KeyedSampling(1.0), BreadthFirst(1, 3)):
        roles = [role for role, _ in solution.runs]
        assert roles == ["generator", "evaluator", "generator", "evaluator", "generator"]
        assert [len(run.results) for _, run in solution.runs] == [3, 3, 3, 3, 1]
        values = [solution.result.tree.value(state) for state in solution.result.tree.states]
        assert solution.unparsable == values.count(Countdown.unparsable)
        assert solution.wall_seconds >= sum(run.wall_seconds for _, run in solution.runs)
        assert solution.timeline().busy() == pytest.approx(
            sum(run.timeline.busy() for _, run in solution.runs)
        )
    assert any(solution.unparsable for solution in solve(model, Serial(), KeyedSampling(1.0), BreadthFirst()))


class TwoGenerations(Countdown):
    def completion_prompt(self, item, thoughts, begun):
        return f"{self.thought_prompt(item, thoughts)}{begun}:"

    def completion_ending(self):
        return Ending((";",), 2)

    def completed(self, begun, rest):
        return f"{begun}:{rest}"


def test_a_thought_of_two_generations_is_asked_for_twice_and_the_same_in_every_strategy(model):
    """A run begins the thoughts, another one completes them; the last generation is one."""
    task, found = TwoGenerations(), []
    for execution in (Serial(), STRATEGIES["SEED"]):
        solver = Solver(BreadthFirst(1, 3), DigitTokenizer(), seed=5)
        with execution.open(model, parts(KeyedSampling(1.0))) as executor:
            found.append(solver.solve(task, task.load()[0], executor))
    roles = [role for role, _ in found[0].runs]
    assert roles == [*["generator", "generator", "evaluator"] * 2, "generator"]
    assert all(thought.count(":") >= 1 for thought in found[0].result.best.thoughts)
    first, second = (
        [result for _, run in found[0].runs[at : at + 1] for result in run.results] for at in (0, 1)
    )
    assert (
        max(len(result.token_ids) for result in second) <= 2 < max(len(result.token_ids) for result in first)
    )
    assert shown(found[:1]) == shown(found[1:])


def test_generations_end_at_a_stop_text_and_at_the_limit(model):
    for solution in solve(model, Serial(), KeyedSampling(1.0), BreadthFirst(), max_new_tokens=4):
        for _, run in solution.runs:
            for result in run.results:
                text = DigitTokenizer().decode(result.token_ids)
                assert len(result.token_ids) <= 4
                assert result.finish_reason == ("stop" if Countdown.value_ending.reached(text) else "length")
                assert not Countdown.value_ending.reached(text[:-1])


def test_observers_see_every_token_in_the_order_of_the_results(model):
    seen = []
    (solution, *_) = solve(
        model,
        Serial(),
        KeyedSampling(1.0),
        BreadthFirst(),
        observers=[lambda outcome: seen.extend(outcome.new_token_ids)],
    )
    said = [token for _, run in solution.runs for result in run.results for token in result.token_ids]
    assert seen[: len(said)] == said
