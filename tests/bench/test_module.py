"""Lightning drives the comparison: interleaved, rotated, every prompt recorded at once, failures included.

Records survive a round trip through JSONL, and a kill.
"""

import dataclasses

import pytest
from helpers.made_records import record as made
from lightning import Trainer
from torch.utils.data import DataLoader

from specexp import Decoder
from specexp.bench.arm import Arm, Generation
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.bench.module import EvaluationModule
from specexp.bench.record import Difference, RecordError, Role, SequenceGroup, read_records, write_records
from specexp.bench.statistics import paired_speedup
from specexp.builders import Chain
from specexp.drafters import TokenRecycling

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
        DecoderArm("engine", Decoder(target), tokenizer, GENERATION),
        DecoderArm("chain", recycling, tokenizer, GENERATION),
        HuggingFaceArm("hf-eager", "hf-eager", target, tokenizer, GENERATION),
    ]


def test_every_arm_decodes_every_prompt_in_rotated_order(arms, prompts, tmp_path):
    steps = []
    module = EvaluationModule(arms, records_path=tmp_path / "r.jsonl", on_records=steps.append)
    (logged,) = test(module, prompts[:4])
    names = ["engine", "chain", "hf-eager"]
    rotated = [names[shift:] + names[:shift] for shift in (0, 1, 2, 0)]
    assert [[record.arm for record in step] for step in steps] == rotated
    assert [record.turn_in_rotation for record in steps[1]] == [0, 1, 2]
    expected = {(name, prompt.prompt_id, 0) for name in names for prompt in prompts[:4]}
    assert {(one.arm, *one.key) for one in module.records} == expected
    assert read_records(tmp_path / "r.jsonl") == module.records
    assert all(record.difference is None for record in module.records)
    assert not module.state_dict(), "models stay out of it"
    speedup = paired_speedup(module.records, "chain", "engine")
    assert logged["log_speedup/chain"] == pytest.approx(speedup.mean_log_ratio, rel=1e-3)


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
    steps = []
    module = EvaluationModule(arms, orders={"chain": prompts[2::-1]}, on_records=steps.append)
    test(module, prompts[:3])
    own = [record.prompt_id for step in steps for record in step if record.arm == "chain"]
    assert own == ["p2", "p1", "p0"]
    assert paired_speedup(module.records, "chain", "engine").n == 3


def test_names_and_baseline_are_checked(arms):
    with pytest.raises(ValueError, match="two arms are named 'chain'"):
        EvaluationModule([*arms, arms[1]])
    with pytest.raises(
        ValueError, match="baseline 'plain' is not an arm of the engine; arms are engine, chain"
    ):
        EvaluationModule(arms, baseline="plain")


def test_a_measurement_without_baseline_stops_when_told_and_decodes_some_arms_seldom(arms, prompts):
    steps = []

    def enough(records):
        steps.append([record.arm for record in records])
        return len(steps) == 3

    module = EvaluationModule(arms[:2], baseline=None, every={"engine": 2}, on_records=enough)
    test(module, prompts[:4])
    assert [sorted(step) for step in steps] == [["chain", "engine"], ["chain"], ["chain", "engine"]]
    assert all(record.difference is None for record in module.records)
    test(module, prompts[:1])
    assert [record.prompt_id for record in module.records] == [prompts[0].prompt_id] * 2


def test_a_failure_ends_a_measurement_without_baseline(prompts):
    broken = Broken()
    with pytest.raises(ValueError, match="out of"):
        test(EvaluationModule([broken], baseline=None), prompts[:2])
    assert broken.decoded == [(prompts[0].prompt_id, 0, None)]  # nothing was decoded to warm up


def test_round_trip(tmp_path):
    records = [
        made("engine", 0, 0.1 + 0.2),
        made("tree", 0, difference=Difference(3, 0.0625, True), state="carry"),
        made("tree", 4, difference=Difference(3, float("inf"), False), drafted_at=(2, 1), accepted_at=(1,)),
        made("tree", 5, group=SequenceGroup(2, 1.0, 0.5, 0.0, {"generator": Role(tokens=3)}, True)),
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
