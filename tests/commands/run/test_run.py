"""``python -m specexp.run``, from a file to a folder of results, on a small random model."""

import csv
import dataclasses
import json
import os
import re

import pytest
import yaml
from helpers import made_records

from specexp.bench.record import read_records
from specexp.bench.verdict import LEAST_GAIN
from specexp.commands.run import main
from specexp.commands.run_report import answer_of
from specexp.config.artifacts import load_artifact
from specexp.report.publish import sole_writer

TREE_SIZES = "experiments.papers.dyspec.trees.TreeSizes"
STEP_COUNT = """
from specexp.report.analysis import Analysis
from specexp.report.publish import Report

class StepCount(Analysis):
    name = "step_count"

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def begin(self, arms):
        self.steps = 0

    def observe(self, arm, outcome):
        self.steps += self.factor

    def report(self, records):
        return Report(files={"step_count.txt": str(self.steps)})
"""
FILES = {
    ".lock", "prompts.csv", "config.yaml", "environment.json", "records.jsonl", "table.md", "table.csv", "figure.png",
    "report.html",
}  # fmt: skip


def records_of(tmp_path):
    """Return the records of a run; outputs of all arms must equal those of plain decoding."""
    records = read_records(tmp_path / "runs" / "tiny" / "records.jsonl")
    tokens = {record.key: record.token_ids for record in records if record.arm == "plain"}
    assert tokens
    assert all(record.token_ids == tokens[record.key] for record in records)
    return records


def test_plain_decoding_is_compared_with_itself(experiment, tmp_path, capsys):
    path = experiment(arms={"chain": {"builder": {"class_path": "Chain"}}})
    assert main([path, "--a-a", "--verifier", "Greedy"]) == 0
    printed = capsys.readouterr().out
    records = read_records(tmp_path / "runs/tiny-a-a/records.jsonl")
    assert {record.arm for record in records} == {"plain", "plain decoding again"}
    assert {record.tokens_per_step for record in records} == {1}
    assert "Does plain decoding differ from itself here?" in printed
    assert "Next:" not in printed


def test_a_composition_is_run_next_to_plain_decoding(experiment, tmp_path, capsys):
    assert main([experiment()]) == 0
    folder = tmp_path / "runs" / "tiny"
    assert {path.name for path in folder.iterdir()} == FILES
    records = records_of(tmp_path)
    assert {record.arm for record in records} == {"plain", "hf-eager", "tiny"}
    assert len({record.prompt_id for record in records}) == 6
    assert all(record.turns == 2 and record.error is None for record in records)
    assert all(len(one.sources) == len(one.token_ids) for one in records if one.arm != "hf-eager")
    shown = capsys.readouterr().out
    assert "Which is fastest?" in shown
    assert "vs hf-eager" in shown
    assert str(folder) in shown.replace("\n", "")


@pytest.mark.slow
def test_named_arms_grids_references_and_orders(experiment, tmp_path):
    arms = {
        "chain": {"title": "a chain", "drafter": {"init_args": {"state": "carry"}}},
        "shuffled": {"drafter": {"init_args": {"state": "carry"}}, "data": {"shuffle_seed": 3}},
        "length": {"grid": {"builder.init_args.length": [1, 2, 4]}},
        "lookup": {"reference": "hf-prompt-lookup"},
        "assisted": {"reference": "hf-assisted", "num_assistant_tokens": 2},
    }
    published = [{"method": "Lookahead", "tokens_per_step": 1.64, "speedup": 1.27}]
    path = experiment(arms=arms, published=published, baselines=["plain"])
    assert main([path, "--data.max_prompts", "4", "--generation.samples", "2"]) == 0
    folder = tmp_path / "runs" / "tiny"
    records = records_of(tmp_path)
    names = {record.arm for record in records}
    assert names == {
        "plain", "a chain", "shuffled", "length, length=1", "length, length=2", "length, length=4", "lookup",
        "assisted",
    }  # fmt: skip
    assert len({record.key for record in records}) == 8
    orders = {name: [r.prompt_id for r in records if r.arm == name and not r.sample] for name in names}
    assert orders["shuffled"] != orders["a chain"] == orders["plain"]
    assert set(orders["shuffled"]) == set(orders["plain"])
    assert "Lookahead (not run here)" in (folder / "table.md").read_text()
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert all(row["speedup vs plain refused"] == "" for row in rows)


@pytest.mark.slow
def test_seconds_may_be_modelled_by_a_latency_profile(experiment, tmp_path, capsys):
    arms = {
        "chain": {"drafter": {"class_path": "DraftModel"}},
        "assisted": {"reference": "hf-assisted", "num_assistant_tokens": 2},
    }
    profile = tmp_path / "profile.yaml"
    profile.write_text("latency: {name: made up, target_ms: {1: 100, 3: 102}, draft_ms: {1: 10}}")
    path = experiment(arms=arms, verifier={"class_path": "Greedy"})
    assert main([path, "--compose", str(profile), "--data.max_prompts", "2"]) == 0
    folder = tmp_path / "runs" / "tiny"
    records = records_of(tmp_path)
    assert {record.clock for record in records} == {"modelled: made up (assumed)"}
    for record in records:
        if record.arm in ("plain", "hf-eager"):
            assert record.seconds_per_token == pytest.approx(0.1)
    text = (folder / "table.md").read_text()
    assert "modelled vs hf-eager" in text
    assert "Which is fastest? (modelled: made up (assumed))" in text
    assert "more tokens than the profile covers" in text  # chains of 3 and the root are 4 tokens
    assert "modelled" in capsys.readouterr().out
    assert main([str(folder / "config.yaml")]) == 0  # the resolved file models the same
    assert [one.decode_seconds for one in records_of(tmp_path)] == [one.decode_seconds for one in records]

    latency = {"name": "target only", "target_ms": {1: 100}}
    assert main([experiment(arms=arms, latency=latency)]) == 2
    assert "'target only' has no draft_ms, but arm 'assisted' runs a draft model" in capsys.readouterr().err


def test_an_arm_starts_from_the_state_that_other_prompts_taught(experiment, tmp_path, capsys):
    preload = {"preload": {"max_prompts": 2, "offset": 2}}
    cache = {"drafter": {"class_path": "DraftModel"}, "state": "carry", "phrase_length": 3}
    graft = {"builder": {"class_path": "Chain", "init_args": {"length": 2}}, "phrase_length": 3}
    learns = {"drafter": {"init_args": {"state": "carry"}}, **preload}
    arms = {
        "cold": {"drafter": {"init_args": {"state": "cold", "prefill_update": False}}},
        "learned": learns,
        "phrases": {
            "drafter": {"class_path": "PhraseCache", "init_args": cache},
            "builder": {"class_path": "Graft", "init_args": graft},
            **preload,
        },
    }
    assert main([experiment(arms=arms), "--data.max_prompts", "2"]) == 0
    folder = tmp_path / "runs" / "tiny"
    assert (folder / "preloaded" / "learned" / "v1" / "matrix.safetensors").is_file()
    learned = [record for record in records_of(tmp_path) if record.arm in ("learned", "phrases")]
    assert {record.state for record in learned} == {"preloaded"}
    parts = load_artifact(folder / "preloaded" / "phrases" / "best").parts
    assert (parts.drafter.state, parts.builder.phrase_length) == ("preloaded", 3)
    assert len(parts.drafter.store.state_dict()["keys"]) > 0

    lookup = {**learns, "drafter": {"class_path": "PromptLookup"}}
    assert main([experiment(name="other", arms={"learned": lookup}, builder={"class_path": "Chain"})]) == 2
    error = capsys.readouterr().err
    assert "arms.learned.preload needs a drafter that keeps its state (state 'carry')" in error


def test_a_controller_starts_from_the_state_that_other_prompts_taught_and_learns_on(experiment, tmp_path, monkeypatch):
    from specexp.controllers import Heuristic

    started = []
    begin = Heuristic.begin
    monkeypatch.setattr(Heuristic, "begin", lambda self, *given: (started.append(self.length), begin(self, *given)))
    learns = {
        "drafter": {"class_path": "PromptLookup"},
        "controller": {"class_path": "Heuristic", "init_args": {"initial": 9}},
        "preload": {"max_prompts": 2, "offset": 2},
    }
    given = experiment(arms={"learned": learns}, builder={"class_path": "Chain"})
    assert main([given, "--data.max_prompts", "2"]) == 0
    teaching, warm_up, run = started[:4], started[4:6], started[6:]  # two turns a prompt
    assert teaching[0] == 9
    assert warm_up[0] == run[0] < teaching[-1]
    assert len(run) == 4
    assert run[-1] < run[0] or run[-1] == 1


def test_an_analysis_of_another_package_is_one_file(experiment, tmp_path, monkeypatch):
    (tmp_path / "step_count.py").write_text(STEP_COUNT)
    monkeypatch.syspath_prepend(tmp_path)
    analysis = {"class_path": "step_count.StepCount", "init_args": {"factor": 10}}
    path = experiment(arms={"chain": {}}, analyses=[analysis])
    assert main([path, "--data.max_prompts", "1"]) == 0
    records = read_records(tmp_path / "runs" / "tiny" / "records.jsonl")
    steps = sum(record.steps for record in records if record.arm in ("plain", "chain"))
    assert int((tmp_path / "runs" / "tiny" / "step_count.txt").read_text()) == 10 * steps


@pytest.mark.slow
def test_a_run_repeats_from_its_own_config(experiment, tmp_path):
    assert main([experiment(), "--generation.seed", "5"]) == 0
    folder = tmp_path / "runs" / "tiny"
    first = [record.token_ids for record in read_records(folder / "records.jsonl")]
    assert main([str(folder / "config.yaml"), "--name", "again"]) == 0
    again = [record.token_ids for record in read_records(tmp_path / "runs" / "again" / "records.jsonl")]
    assert first == again
    assert json.loads((folder / "environment.json").read_text())["packages"]["torch"]


def test_a_dry_run_lists_the_arms_and_writes_nothing(experiment, tmp_path, capsys):
    assert main([experiment(arms={"one": {}, "two": {"title": "second"}}), "--dry-run"]) == 0
    assert capsys.readouterr().out == "one\nsecond\nNext: the same command without --dry-run\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["speedup", "phases", "curves"])
def test_the_figure_is_chosen_by_the_file(experiment, tmp_path, kind):
    path = experiment(arms={"length": {"grid": {"builder.init_args.length": [1, 2]}}}, figure=kind)
    assert main([path, "--data.max_prompts", "1", "--generation.max_new_tokens", "2"]) == 0
    assert (tmp_path / "runs" / "tiny" / "figure.png").stat().st_size > 5000


def test_a_run_in_which_prompts_failed_ends_with_1_and_a_table_of_the_others(experiment, tmp_path, capsys, monkeypatch):
    from specexp.bench.live import DecoderArm

    decode = DecoderArm.decode

    def breaking(arm, prompt, *given):
        if (arm.name, prompt.prompt_id) == ("tiny", "1"):
            raise RuntimeError("the builder broke")
        return decode(arm, prompt, *given)

    monkeypatch.setattr(DecoderArm, "decode", breaking)
    assert main([experiment(), "--data.max_prompts", "2", "--generation.max_new_tokens", "4"]) == 1
    shown = capsys.readouterr()
    records = tmp_path / "runs" / "tiny" / "records.jsonl"
    assert [record.key for record in read_records(records) if record.error] == [("1", 0)]
    assert shown.err == (
        "error: 1 of 6 answers failed (tiny: 1), e.g. tiny on prompt '1': RuntimeError: the builder broke; the table "
        f"shows the other outputs, and {records} has the reason for each\n"
    )
    assert "The figures cover the other answers." in shown.out


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("dtype", "code", "message"),
    [
        ("bfloat16", 0, "In float32, where there are no near ties, 1/1 outputs equal plain decoding's (1 of 1 prompt"),
        (
            "float32",
            1,
            "error: 1 output of tiny DIFFER from plain decoding's in float32, where no near tie explains it, e.g. tiny "
            "on prompt '0' from new token 0 on: this is not lossless, so its speed does not count",
        ),
    ],
)
def test_outputs_that_differ_must_be_equal_in_float32(experiment, capsys, monkeypatch, dtype, code, message):
    from specexp.bench.live import DecoderArm

    decode = DecoderArm.decode

    def differing(arm, prompt, *given):
        record = decode(arm, prompt, *given)
        other = (record.token_ids[0] + 1, *record.token_ids[1:])
        wrong = (arm.name, arm.dtype) == ("tiny", dtype)
        return dataclasses.replace(record, token_ids=other) if wrong else record

    monkeypatch.setattr(DecoderArm, "decode", differing)
    overrides = f"--pair.target_dtype {dtype} --data.max_prompts 1 --generation.max_new_tokens 4"
    assert main([experiment(), *overrides.split()]) == code
    shown = capsys.readouterr()
    assert message in (" ".join(shown.out.split()) if code == 0 else shown.err)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_unless_there_are_records(
    experiment, tmp_path, capsys, monkeypatch
):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("specexp.config.config.atomic_write", full)
        assert main([experiment()]) == 2
    error = capsys.readouterr().err.strip()
    pattern = r"error: .*tiny\.yaml: output: .*tiny cannot be written \(No space left on device\)"
    assert re.fullmatch(pattern, error)
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr("specexp.report.publish.atomic_write", full)
    assert main([experiment(), "--data.max_prompts", "1"]) == 1
    shown = capsys.readouterr()
    assert re.fullmatch(r"error: .*table\.md cannot be written \(No space left on device\)", shown.err.strip())
    assert "Which is fastest?" in shown.out
    assert len(read_records(tmp_path / "runs" / "tiny" / "records.jsonl")) == 3


@pytest.mark.slow
def test_two_runs_in_one_folder_do_not_mix_their_records(experiment, tmp_path, capsys):
    folder = tmp_path / "runs" / "tiny"
    with sole_writer(folder):
        assert main([experiment()]) == 1
        error = capsys.readouterr().err
        assert f"is being written by process {os.getpid()}: wait for it, or give this one another name" in error
        assert {path.name for path in folder.iterdir()} == {".lock"}
    assert main([experiment()]) == 0


@pytest.mark.variants(1)
@pytest.mark.parametrize("latency", [None, {"name": "modelled", "target_ms": {1: 2}, "draft_ms": {1: 1}}])
def test_a_busy_machine_is_reported_before_times_are_measured(experiment, capsys, monkeypatch, latency):
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    assert main([experiment(latency=latency), "--data.max_prompts", "1"]) == 0
    assert ("the machine was busy in the last minute (load 99.0 on" in capsys.readouterr().err) is (latency is None)


@pytest.mark.slow
def test_a_run_names_the_other_results_that_it_replaces(experiment, tmp_path, capsys):
    folder = tmp_path / "runs" / "tiny"
    for _ in range(2):
        assert main([experiment()]) == 0
        assert "replaces" not in capsys.readouterr().err
    records = read_records(folder / "records.jsonl")
    assert len(records) == len({(record.arm, record.key) for record in records})
    assert main([experiment(), "--data.max_prompts", "2"]) == 0
    assert f"replaces the results of an earlier run (data.max_prompts differs) in {folder}" in capsys.readouterr().err
    (folder / "records.jsonl").unlink()  # as a profile leaves its folder
    assert main([experiment()]) == 0
    assert f"replaces the results of another command in {folder}" in capsys.readouterr().err


@pytest.mark.parametrize("files", [["journal.log"], ["trials.csv", "report.html"]])
def test_results_of_a_sweep_are_not_replaced(experiment, tmp_path, capsys, files):
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("")
    assert main([experiment()]) == 2
    assert "tiny already holds the results of a sweep; choose another name" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == set(files)


def test_the_answer_names_plain_decoding_and_a_busy_machine():
    def records(seconds):
        pairs = (("plain", 1.0), ("tree", seconds))
        return [made_records.record(arm, n, decode_seconds=one) for arm, one in pairs for n in range(4)]

    assert answer_of(records(2.0), "plain", LEAST_GAIN) == "tree is slower than plain decoding: 0.50x [0.50, 0.50]."
    busy = [*records(0.5), made_records.record("plain", 4, decode_seconds=9.0)]
    assert answer_of(busy, "plain", LEAST_GAIN) == (
        "tree decodes 2.00x [2.00, 2.00] as fast as plain decoding. Plain decoding's time per token varied 9-fold "
        "between prompts: the machine was busy, so read the intervals, not the ratios."
    )


@pytest.mark.slow
def test_analyses_watch_our_own_arms(experiment, tmp_path, capsys):
    vector = {"class_path": "experiments.papers.dyspec.trees.AcceptanceVector", "init_args": {"width": 1}}
    analyses = [TREE_SIZES, vector]
    path = experiment(arms={"chain": {}, "lookup": {"reference": "hf-prompt-lookup"}}, analyses=analyses)
    assert main([path, "--data.max_prompts", "2", "--analyses.0.init_args.most_steps", "5"]) == 0
    folder = tmp_path / "runs" / "tiny"
    written = {"tree_sizes.md", "tree_sizes.csv", "tree_sizes.png", "acceptance.md", "acceptance.csv"}
    assert {path.name for path in folder.iterdir()} == FILES | written | {"acceptance.json"}
    (row,) = csv.DictReader((folder / "tree_sizes.csv").open())
    records = [record for record in read_records(folder / "records.jsonl") if record.arm == "chain"]
    assert int(row["steps"]) == sum(record.steps for record in records)  # without the warming up
    assert float(row["mean nodes"]) * int(row["steps"]) == pytest.approx(sum(r.drafted_nodes for r in records))
    assert json.loads((folder / "acceptance.json").read_text())["arm"] == "chain"
    assert "Size of the trees" in capsys.readouterr().out
    resolved = yaml.safe_load((folder / "config.yaml").read_text())["analyses"]
    assert resolved[0] == {"class_path": TREE_SIZES, "init_args": {"most_steps": 5, "arms": None}}
    assert resolved[1]["init_args"] == {"width": 1}


@pytest.mark.slow
def test_prompts_that_end_inside_a_token_are_warned_of_before_they_are_decoded(experiment, tmp_path, capsys):
    prompts = tmp_path / "my.jsonl"
    prompts.write_text('{"prompt": "def f():\\n"}\n{"prompt": "Answer: "}\n')
    path = experiment(pair={"target": "stdlib"}, data={"prompts": str(prompts)}, generation={"max_new_tokens": 2})
    assert main([path]) == 0
    warning = (
        "1 of 2 prompts end in white space that is tokenized differently before a word (the first is '1'); "
        "remove it, since specexp does not support token healing."
    )
    shown = capsys.readouterr()
    assert f"warning: {warning}\n" in shown.err
    assert warning in (tmp_path / "runs" / "tiny" / "table.md").read_text()
