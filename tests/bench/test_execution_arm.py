"""Groups of sequences: items of tasks as trees of thought, the same however they are decoded, or continuations."""

import dataclasses
from unittest.mock import Mock

import pytest
import torch
from bench.test_module import test as run_test
from helpers.countdown import SIGNS, Countdown, DigitTokenizer
from helpers.small_models import LetterTokenizer

from specexp.bench.analysis import Analysis
from specexp.bench.arm import Generation
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.execution_arm import ExecutionArm, Solver
from specexp.bench.module import EvaluationModule
from specexp.bench.record import read_records
from specexp.builders import Chain, KConfig
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.data.searches import BestFirst, BreadthFirst, MonteCarlo
from specexp.data.task_items import Problem
from specexp.data.tasks import Ending
from specexp.drafters import DraftModel, TokenRecycling
from specexp.scheduling import Batched, Scheduled, Serial, SerialSpeculative
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

VERIFIER = KeyedSampling(1.0)
SEED = Scheduled(3, workers="thread")
STRATEGIES = {
    "one by one": SerialSpeculative(),
    "in step": Batched(3),
    "SEED": SEED,
    "two drafts a pass": Scheduled(4, verify_batch=2, workers="thread"),
}
ITEMS = Countdown().load()


@pytest.fixture(scope="module")
def model():
    return LanguageModel(hashed_model(len(SIGNS), seed=3))


@pytest.fixture
def arm(model):
    """Makes an arm for the items of a task; closes what it started."""
    made = []
    problems = {f"Countdown/{item.item_id}": Problem(Countdown(), item) for item in ITEMS}

    def make(name, execution, parts=None):
        parts = parts or Parts(TokenRecycling(k=4), Chain(3), VERIFIER)
        spec = ArmSpec(name, Generation(), parts, execution=execution)
        solver = Solver(BreadthFirst(1, 3), DigitTokenizer())
        made.append(ExecutionArm(spec, model, DigitTokenizer(), problems, solver))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def items():
    return [Prompt(f"Countdown/{one.item_id}", "", (one.problem,), (1, 2), one.index) for one in ITEMS]


def test_the_record_of_an_item_holds_all_sequences(arm, items):
    record = arm("SEED", SEED).decode(items[0])
    group = record.group
    assert group.sequences == len(record.turn_tokens) == len(record.finish_reasons) == 3 + 3 + 3 + 3 + 1
    assert sum(record.turn_tokens) == record.new_tokens == record.decode_tokens
    assert record.accepted_drafts + record.bonus_tokens == record.new_tokens
    assert {name: role.sequences for name, role in group.roles.items()} == {"generator": 7, "evaluator": 6}
    for count in ("tokens", "steps", "accepted_drafts", "drafted_nodes", "decode_seconds"):
        total = {"tokens": record.new_tokens}.get(count, getattr(record, count, None))
        assert sum(getattr(role, count) for role in group.roles.values()) == pytest.approx(total)
    assert group.wall_seconds >= record.prefill_seconds + record.decode_seconds >= group.busy_seconds
    assert 0 <= group.overlap_seconds <= group.busy_seconds
    assert isinstance(group.correct, bool)
    assert group.draft_bytes == {"weights": 0, "caches": 0}  # recycled tokens need no model


def test_all_arms_of_one_run_decode_the_same_and_show_their_time_lines(arm, items, tmp_path):
    executions = {"engine": Serial(), "serial": SerialSpeculative(), "in step": Batched(2), "SEED": SEED}
    arms = [arm(name, execution) for name, execution in executions.items()]
    watcher = Mock(spec=Analysis)
    module = EvaluationModule(arms, records_path=tmp_path / "r.jsonl", analyses=[watcher])
    run_test(module, items)
    assert len(module.records) == 4 * len(items)
    assert read_records(tmp_path / "r.jsonl") == module.records
    for item in items:
        ours = [record for record in module.records if record.prompt_id == item.prompt_id]
        assert len({(record.token_ids, record.turn_tokens, record.group.correct) for record in ours}) == 1
        assert all(record.difference is None for record in ours)
    watched = [call.args[:2] for call in watcher.observe_run.call_args_list]
    assert sorted(watched) == sorted((one.name, item.prompt_id) for one in arms for item in items)
    watcher.observe.assert_not_called()  # groups have no single steps


def test_a_difference_from_plain_decoding_is_found_with_its_gap(arm, items):
    wrong = arm("wrong", SEED)
    decode = wrong.decode

    def changed(prompt, sample=0, max_new_tokens=None):
        record = decode(prompt, sample, max_new_tokens)
        tokens = list(record.token_ids)
        tokens[7] = (tokens[7] + 1) % len(SIGNS)
        return dataclasses.replace(record, token_ids=tuple(tokens))

    wrong.decode = changed
    module = EvaluationModule([arm("engine", Serial()), wrong])
    run_test(module, items[:1])
    (found,) = [record.difference for record in module.records if record.arm == "wrong"]
    assert (found.index, found.near_tie) == (7, False)
    assert found.gap > 0


def test_an_arm_that_failed_goes_on_with_the_next_item(arm, items):
    class Stumbles(TokenRecycling):
        def begin(self, context, prefill):
            super().begin(context, prefill)
            if context.token_ids[0] == SIGNS.index("6"):
                raise RuntimeError("stumbled over a six")

    before = torch.get_num_threads()
    stumbling = arm("stumbles", SEED, Parts(Stumbles(k=4), Chain(3), VERIFIER))
    module = EvaluationModule([arm("engine", Serial(threads=2)), stumbling])
    run_test(module, items)
    first, second, third = [record.error for record in module.records if record.arm == "stumbles"]
    assert "stumbled over a six" in second
    assert first is third is None
    assert torch.get_num_threads() == before, "as before every prompt"


def test_without_a_task_the_samples_of_a_prompt_are_one_group(target, draft, prompts):
    parts = Parts(DraftModel(draft, coupled=True), Chain(3), VERIFIER)
    found = []
    for execution in (Serial(), SEED):
        spec = ArmSpec("one", Generation(max_new_tokens=8, samples=4), parts, execution=execution)
        one = ExecutionArm(spec, LanguageModel(target), LetterTokenizer())
        found.append(one.decode(prompts[0]))
        one.close()
    plain, ours = found
    assert plain.group.sequences == ours.group.sequences == 4
    assert (plain.token_ids, plain.turn_tokens) == (ours.token_ids, ours.turn_tokens)
    assert set(ours.group.roles) == {"continuations"}
    assert ours.group.correct is None
    assert plain.drafted_nodes == 0 < ours.drafted_nodes
    assert ours.draft_passes > 0


def test_parts_that_cannot_be_scheduled_are_refused_when_composed(arm):
    carried = Parts(TokenRecycling(k=4, state="carry"), Chain(3), RejectionSampling(1.0))
    for parts, reason in ((carried, "set its state to cold"), (Parts(None, None, VERIFIER), "no drafter")):
        with pytest.raises(ValueError, match=reason):
            arm("refused", SEED, parts)


def solve(model, execution, search, verifier=VERIFIER, task=None, **arguments):
    """Solutions of all items."""
    parts = Parts(TokenRecycling(k=4, state="carry"), Chain(3), verifier)
    if isinstance(verifier, RejectionSampling):
        draft = DraftModel(hashed_model(len(SIGNS), seed=3))
        parts = Parts(draft, KConfig([2, 1], candidates="drawn"), verifier)
    solver = Solver(search, DigitTokenizer(), seed=5)
    with execution.open(model, parts) as executor:
        return [solver.solve(task or Countdown(), item, executor, **arguments) for item in ITEMS]


def shown(solutions):
    return [(one.result.tree._values, one.result.final, one.check, one.unparsable) for one in solutions]


@pytest.mark.parametrize(
    ("verifier", "search"),
    [
        (VERIFIER, BreadthFirst(2, 3)),
        (VERIFIER, BestFirst(4, 2)),
        (VERIFIER, MonteCarlo(4, 2)),
        pytest.param(Greedy(), BreadthFirst(2, 3), marks=pytest.mark.slow),
    ],
    ids=lambda part: type(part).__name__,
)
def test_the_tree_of_thoughts_is_that_of_plain_decoding(model, search, verifier):
    plain = shown(solve(model, Serial(), search, verifier))
    for name, execution in STRATEGIES.items():
        assert shown(solve(model, execution, search, verifier)) == plain, name


def test_under_rejection_sampling_all_strategies_build_one_tree(model):
    verifier = RejectionSampling(1.0)
    first, *trees = [shown(solve(model, one, BreadthFirst(1, 3), verifier)) for one in STRATEGIES.values()]
    assert trees == [first] * (len(STRATEGIES) - 1)


def test_samples_differ_and_the_same_one_repeats(model):
    first, again, other = (
        shown(solve(model, Serial(), BreadthFirst(), sample=sample)) for sample in (0, 0, 1)
    )
    assert first == again != other


def test_a_solution_has_a_run_for_every_request(model):
    for solution in solve(model, SEED, BreadthFirst(1, 3)):
        roles = [role for role, _ in solution.runs]
        assert roles == ["generator", "evaluator", "generator", "evaluator", "generator"]
        assert [len(run.results) for _, run in solution.runs] == [3, 3, 3, 3, 1]
        values = [solution.result.tree.value(state) for state in solution.result.tree.states]
        assert solution.unparsable == values.count(Countdown.unparsable)
        busy = sum(run.timeline.busy() for _, run in solution.runs)
        assert solution.timeline().busy() == pytest.approx(busy)
    assert any(solution.unparsable for solution in solve(model, Serial(), BreadthFirst()))


class TwoGenerations(Countdown):
    def completion_prompt(self, item, thoughts, begun):
        return f"{self.thought_prompt(item, thoughts)}{begun}:"

    def completion_ending(self):
        return Ending((";",), 2)

    def completed(self, begun, rest):
        return f"{begun}:{rest}"


def test_a_thought_of_two_generations_takes_two_runs_and_is_the_same_in_every_strategy(model):
    """A run begins the thoughts, another one completes them; the last generation is one."""
    plain, ours = (solve(model, one, BreadthFirst(1, 3), task=TwoGenerations()) for one in (Serial(), SEED))
    roles = [role for role, _ in plain[0].runs]
    assert roles == [*["generator", "generator", "evaluator"] * 2, "generator"]
    assert all(thought.count(":") >= 1 for thought in plain[0].result.best.thoughts)
    begun, rest = (max(len(one.token_ids) for one in run.results) for _, run in plain[0].runs[:2])
    assert rest <= 2 < begun
    assert shown(plain) == shown(ours)


def test_generations_end_at_a_stop_text_and_at_the_limit_and_observers_get_every_token(model):
    seen, ended = [], set()
    observers = [lambda outcome: seen.extend(outcome.new_token_ids)]
    solutions = solve(model, Serial(), BreadthFirst(), max_new_tokens=4, observers=observers)
    results = [result for solution in solutions for _, run in solution.runs for result in run.results]
    for result in results:
        text = DigitTokenizer().decode(result.token_ids)
        assert len(result.token_ids) <= 4
        assert result.finish_reason == ("stop" if Countdown.value_ending.reached(text) else "length")
        assert not Countdown.value_ending.reached(text[:-1])
        ended.add(result.finish_reason)
    assert ended == {"stop", "length"}
    assert seen == [token for result in results for token in result.token_ids]
