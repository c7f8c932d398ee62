"""Every prompt is decoded by every arm, with Lightning or without; groups decode the same however executed."""

import dataclasses
from itertools import chain, islice
from math import isfinite
from unittest.mock import Mock

import pytest
import torch
from helpers.countdown import SIGNS, Countdown, DigitTokenizer
from helpers.made_records import record as made
from helpers.small_models import LetterTokenizer
from lightning import Trainer
from torch.utils.data import DataLoader

from specexp import Decoder
from specexp.bench.arm import Arm, Generation
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.execution_arm import ExecutionArm, Solver
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.bench.live import DecoderArm
from specexp.bench.measuring import by_key, records_by_prompt
from specexp.bench.module import EvaluationModule
from specexp.bench.observers import Observer
from specexp.bench.record import Difference, RecordError, Role, SequenceGroup, read_records, write_records
from specexp.bench.statistics import paired_speedup
from specexp.builders import Chain, KConfig
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.data.searches import BreadthFirst
from specexp.data.task_items import Problem
from specexp.data.tasks import Ending
from specexp.drafters import DraftModel, TokenRecycling
from specexp.scheduling import Batched, Scheduled, Serial, SerialSpeculative
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

GENERATION = Generation(max_new_tokens=8)


class Broken(Arm):
    """Fails on every prompt, and notes them."""

    name, generation = "broken", GENERATION

    def __init__(self):
        self.decoded, self.resets = [], 0

    def decode(self, prompt, sample=0, max_new_tokens=None):
        self.decoded.append((prompt.prompt_id, sample, max_new_tokens))
        raise ValueError("out of\nluck")

    def reset(self):
        self.resets += 1


def test(module, prompts):
    off = ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar")
    loader = DataLoader(prompts, batch_size=1, collate_fn=lambda batch: batch[0])
    return Trainer(accelerator="cpu", **dict.fromkeys(off, False)).test(module, loader, verbose=False)


test.__test__ = False  # a helper


@pytest.fixture
def arms(target, tokenizer):
    recycling = Decoder(target, TokenRecycling(state="carry"), Chain(3))
    return [
        DecoderArm("plain", Decoder(target), tokenizer, GENERATION),
        DecoderArm("chain", recycling, tokenizer, GENERATION),
        HuggingFaceArm("hf-eager", "hf-eager", target, tokenizer, GENERATION),
    ]


def test_every_arm_decodes_every_prompt_in_rotated_order(arms, prompts, tmp_path):
    steps = list(records_by_prompt(arms, prompts[:4]))
    names = ["plain", "chain", "hf-eager"]
    rotated = [names[shift:] + names[:shift] for shift in (0, 1, 2, 0)]
    assert [[record.arm for record in step] for step in steps] == rotated
    assert [record.turn_in_rotation for record in steps[1]] == [0, 1, 2]
    expected = {(name, prompt.prompt_id, 0) for name in names for prompt in prompts[:4]}
    assert set(by_key(chain(*steps))) == expected


def test_lightning_writes_the_records_and_logs_the_speedup(arms, prompts, tmp_path):
    module = EvaluationModule(arms, records_path=tmp_path / "r.jsonl")
    (logged,) = test(module, prompts[:4])
    assert len(module.records) == 12
    assert read_records(tmp_path / "r.jsonl") == module.records
    assert all(record.difference is None for record in module.records)
    assert not module.state_dict(), "models stay out of it"
    assert isfinite(logged["log_speedup/chain"])  # before prompts with deviating times are decoded again


def test_warming_up_leaves_no_record_and_no_state(arms, prompts):
    module = EvaluationModule(arms)
    found = []
    for _ in range(2):  # from the stated initial state, though the policy is carry
        test(module, prompts[:1])
        found.append({record.arm: record.steps for record in module.records})
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_a_failure_is_recorded_with_its_reason(arms, prompts, tmp_path):
    broken = Broken()
    module = EvaluationModule([*arms, broken], records_path=tmp_path / "r.jsonl", samples=2)
    test(module, prompts[:2])
    failed = [record for record in read_records(tmp_path / "r.jsonl") if record.arm == "broken"]
    assert [record.error for record in failed] == ["ValueError: out of"] * 4
    samples = [(prompt, sample, None) for prompt in ("p0", "p1") for sample in (0, 1)]
    assert broken.decoded == [("p0", 0, 8), *samples]
    assert broken.resets == 2
    assert len(module.records) == 2 * 2 * 4


def test_an_arm_may_take_the_prompts_in_another_order(arms, prompts):
    records = list(chain(*records_by_prompt(arms, prompts[:3], orders={"chain": prompts[2::-1]})))
    own = [record.prompt_id for record in records if record.arm == "chain"]
    assert own == ["p2", "p1", "p0"]
    assert paired_speedup(records, "chain", "plain").measured == 3


def test_names_and_baseline_are_checked(arms):
    with pytest.raises(ValueError, match="two arms are named 'chain'"):
        EvaluationModule([*arms, arms[1]])
    with pytest.raises(
        ValueError, match="baseline must be an arm with parts of ours, got 'other'; arms are plain, chain"
    ):
        next(records_by_prompt(arms, [], baseline="other"))


def test_without_baseline_the_caller_stops_the_measurement_and_some_arms_skip_prompts(arms, prompts):
    rounds = records_by_prompt(arms[:2], prompts, baseline=None, every={"plain": 2})
    steps = list(islice(rounds, 3))
    names = [sorted(record.arm for record in step) for step in steps]
    assert names == [["chain", "plain"], ["chain"], ["chain", "plain"]]
    assert all(record.difference is None for record in chain(*steps))


def test_an_arm_can_decode_only_the_first_prompts(arms, prompts):
    rounds = records_by_prompt(arms[:2], prompts[:3], most={"chain": 2})
    assert [sorted(record.arm for record in step) for step in rounds] == [["chain", "plain"]] * 2 + [["plain"]]


def test_samples_have_numbers_of_their_own(arms, prompts):
    (records,) = records_by_prompt(arms[:2], prompts[:1], samples=2)
    assert sorted((record.arm, record.sample) for record in records) == [
        *(("chain", sample) for sample in (0, 1)),
        *(("plain", sample) for sample in (0, 1)),
    ]


def test_a_failure_ends_a_measurement_without_baseline(prompts):
    broken = Broken()
    with pytest.raises(ValueError, match="out of"):
        next(records_by_prompt([broken], prompts[:2], baseline=None))
    assert broken.decoded == [(prompts[0].prompt_id, 0, None)]  # nothing was decoded to warm up


def test_written_records_are_read_unchanged(tmp_path):
    records = [
        made("plain", 0, 0.1 + 0.2),
        made("tree", 0, difference=Difference(3, 0.0625, True), state="carry"),
        made("tree", 4, difference=Difference(3, float("inf"), False), drafted_at=(2, 1), accepted_at=(1,)),
        made("tree", 5, group=SequenceGroup(2, 1.0, 0.5, {"generator": Role(tokens=3)}, True)),
        made("tree", 1, token_ids=(), error="ValueError: too long"),
        made("tree", 2, turn_tokens=(1, 3), finish_reasons=("eos", "length")),
    ]
    path = tmp_path / "records.jsonl"
    write_records(path, records[:2])
    write_records(path, records[2:])
    assert read_records(path) == records


def test_the_later_of_two_records_counts(tmp_path):
    first = made("tree", 0)
    second = dataclasses.replace(first, difference=Difference(0, 0.01, True))
    write_records(tmp_path / "r.jsonl", [first, made("tree", 1), second])
    assert read_records(tmp_path / "r.jsonl") == [second, made("tree", 1)]


def test_older_records_of_plain_decoding_are_read_under_its_present_name(tmp_path):
    write_records(tmp_path / "r.jsonl", [made("engine", 0), made("tree", 0)])
    assert read_records(tmp_path / "r.jsonl") == [made("plain", 0), made("tree", 0)]


def test_a_line_cut_short_by_a_kill_is_left_out_and_another_broken_one_named(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(path, [made("tree", 0), made("tree", 1)])
    path.write_text(path.read_text()[:-40])
    assert read_records(path) == [made("tree", 0)]
    path.write_text('{"arm": "tree"}\n')
    with pytest.raises(RecordError, match=r"r\.jsonl, line 1: not a prompt record"):
        read_records(path)


def test_answers_are_split_by_turn_and_a_failure_has_no_time_per_token():
    assert made("tree", 0, turn_tokens=(1, 3)).answers() == [(5,), (6, 7, 8)]
    assert made("tree", 0, 2.0).seconds_per_token == 0.5
    for given in ({"decode_tokens": 0}, {"error": "ValueError"}):
        assert made("tree", 0, **given).seconds_per_token is None


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
        solver = Solver(BreadthFirst(1, 3), DigitTokenizer(), problems=problems)
        made.append(ExecutionArm(spec, model, DigitTokenizer(), solver))
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
    assert group.wall_seconds >= record.prefill_seconds + record.decode_seconds >= group.busy_seconds >= 0
    assert isinstance(group.correct, bool)
    assert group.draft_bytes == {"weights": 0, "caches": 0}  # recycled tokens need no model


@pytest.mark.slow
def test_all_arms_of_one_run_decode_the_same_and_show_their_time_lines(arm, items, tmp_path):
    executions = {"plain": Serial(), "serial": SerialSpeculative(), "in step": Batched(2), "SEED": SEED}
    arms = [arm(name, execution) for name, execution in executions.items()]
    watcher = Mock(spec=Observer)
    module = EvaluationModule(arms, records_path=tmp_path / "r.jsonl", analyses=[watcher])
    test(module, items)
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
    module = EvaluationModule([arm("plain", Serial()), wrong])
    test(module, items[:1])
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
    module = EvaluationModule([arm("plain", Serial(threads=2)), stumbling])
    test(module, items)
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
    for parts, reason in ((carried, "set state to cold"), (Parts(None, None, VERIFIER), "needs a drafter")):
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
    return [(one.result.tree.values, one.result.final, one.check, one.unparsable) for one in solutions]


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [VERIFIER, Greedy()], ids=["keyed", "greedy"])
def test_the_tree_of_thoughts_is_that_of_plain_decoding(model, verifier):
    plain = shown(solve(model, Serial(), BreadthFirst(2, 3), verifier))
    for name, execution in STRATEGIES.items():
        assert shown(solve(model, execution, BreadthFirst(2, 3), verifier)) == plain, name


def test_under_rejection_sampling_all_strategies_build_one_tree(model):
    verifier = RejectionSampling(1.0)
    first, *trees = [shown(solve(model, one, BreadthFirst(1, 3), verifier)) for one in STRATEGIES.values()]
    assert trees == [first] * (len(STRATEGIES) - 1)


def test_samples_differ_and_the_same_one_repeats(model):
    first, again, other = (shown(solve(model, Serial(), BreadthFirst(), sample=sample)) for sample in (0, 0, 1))
    assert first == again != other


def test_a_solution_has_a_run_for_every_request(model):
    for solution in solve(model, SEED, BreadthFirst(1, 3)):
        roles = [role for role, _ in solution.runs]
        assert roles == ["generator", "evaluator", "generator", "evaluator", "generator"]
        assert [len(run.results) for _, run in solution.runs] == [3, 3, 3, 3, 1]
        values = list(solution.result.tree.values.values())
        assert solution.unparsable == values.count(Countdown.unparsable)
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
