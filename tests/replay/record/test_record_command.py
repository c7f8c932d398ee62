"""``python -m specexp.record``: from a file to a recording that replays as the models decode."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from specexp.builders import DySpecGreedy, ParametricTree, StaticTree
from specexp.config import ConfigError, load_config
from specexp.replay.format.recording import Recording, RecordingManifest
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import fidelity_note
from specexp.replay.record import command
from specexp.replay.record.command import main, run
from specexp.replay.record.live_sample import to_table, trees_between
from specexp.replay.record.plan import plan_recording
from specexp.report.publish import sole_writer

DRAFT = {"class_path": "DraftModel"}
SPACE = {"builder.init_args.length": {"type": "int", "low": 1, "high": 4}}
SMALL = {"data.max_prompts": 2, "generation.max_new_tokens": 6, "record.live_sample": 0}


def arguments(keys):
    return [word for key, value in keys.items() for word in (f"--{key}", str(value))]


def small(path, changed=None, *words):
    """Record a few prompts; returns the exit code."""
    return main([path, *words, *arguments({**SMALL, **(changed or {})})])


def part(name, **given):
    return {"class_path": name, "init_args": given}


@pytest.fixture
def file(experiment, tmp_path):
    """Writes an experiment with a draft model to be recorded."""

    def write(**sections):
        record = {"to": str(tmp_path / "recorded"), "turns_per_file": 2, **sections.pop("record", {})}
        record.setdefault("coverage", [part("Chain", length=5)])
        return experiment(**{"drafter": DRAFT, "record": record, **sections})

    return write


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "recorded"


def same(one, other):
    """Whether two recordings hold the same answers, in files of any order."""
    np.testing.assert_equal(
        *(
            {(key, turn.turn): turn.to_row() for key, turns in recording.turns.items() for turn in turns}
            for recording in (one, other)
        )
    )


def test_a_recording_replays_as_the_models_decode(file, folder, capsys):
    path = file(
        data={**yaml.safe_load(Path(file()).read_text())["data"], "max_prompts": 2},
        builder=part("KConfig", widths=[2, 1]),
        record={"coverage": [part("DySpecGreedy", budget=6, candidates="top-k")], "live_sample": 2},
        generation={"max_new_tokens": 6},
    )

    assert main([path]) == 0

    recording = Recording(folder)
    assert [len(turns) for turns in recording.turns.values()] == [2, 2]
    sample = recording.manifest.live_sample
    assert [row["composition"].partition("(")[0] for row in sample] == ["KConfig", "DySpecGreedy"]
    for row in sample:
        assert (row["fidelity"], row["equal_prompts"], row["prompts"]) == ("exact", 2, 2)
        assert row["steps_replayed"] == row["steps_live"] > 0
        assert row["relative_error"] == 0
    shown = capsys.readouterr().out
    assert "tokens a step live" in shown
    # two conversations of two turns; a small file is mostly its header
    number, unit = re.search(r"4 answers of up to 6 tokens will take up to ([\d.]+) (MB|kB)\.", shown).groups()
    assert 0 < float(number) * {"MB": 1e6, "kB": 1e3}[unit] < 1e5


def test_a_drafter_that_learns_is_recorded_with_the_experiments_builder(file, folder):
    path = file(drafter=part("TokenRecycling", k=4, update="accepted"), record={"coverage": None})

    assert small(path, {"record.live_sample": 2}) == 0

    made_of = Recording(folder).manifest.made_of
    assert made_of["coverage"] == [part("Chain", length=3, candidates="top-k")]
    assert (made_of["target_top_k"], made_of["scoring"]) == (4, None)
    own, between = Recording(folder).manifest.live_sample
    assert between["composition"] == "2 of the 3 nodes, not recorded"
    assert own["fidelity"] == between["fidelity"] == "exact"
    assert own["equal_prompts"] == between["equal_prompts"] == 2


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"builder": part("DySpecGreedy", budget=6, candidates="top-k")}, "record with a coverage that drafts them"),
        ({"controller": part("Bandit", over="depths", values=[1, 3])}, "set latency to a profile to replay it"),
    ],
)
def test_a_composition_that_cannot_be_replayed_is_noted(file, folder, parts, reason):
    assert small(file(**parts), {"record.live_sample": 1}) == 0

    own, chain = Recording(folder).manifest.live_sample
    assert reason in own["refused"]
    assert chain["equal_prompts"] == 1
    table = to_table([own, chain])
    assert len(table.rows) == 1
    assert table.notes == [f"{own['composition']}: {own['refused']}"]


def test_without_a_drafter_the_pairs_draft_is_recorded_and_without_a_draft_the_target_alone(
    file, folder, model_folder, capsys
):
    plain = {"drafter": None, "builder": None}
    assert main([file(**plain), "--dry-run"]) == 0
    assert "DraftModel (the file has none, and the pair has a draft)" in capsys.readouterr().out

    alone = file(**plain, pair={"target": model_folder, "target_dtype": "float32"})
    assert small(alone) == 0
    turns = [turn for turns in Recording(folder).turns.values() for turn in turns]
    assert turns
    for turn in turns:
        assert len(turn.trie) == turn.answer.size + 1  # nothing beside the answer
        assert turn.trie.draft.counts.sum() == 0
        assert (turn.trie.target.counts > 0).all()


CARRYING = part("TokenRecycling", k=4, state="carry")


@pytest.mark.variants(1)
@pytest.mark.parametrize("drafter", [DRAFT, CARRYING], ids=["draft model", "a drafter that carries its state"])
def test_a_recording_that_is_cut_off_goes_on_where_it_stopped(file, folder, monkeypatch, capsys, drafter):
    path = file(drafter=drafter)
    few = arguments({**SMALL, "data.max_prompts": 3})
    assert main([path, *few, "--record.to", str(folder) + "_whole"]) == 0
    write, written = command.write_turns, []

    def killed_at_the_second(path, turns):
        if written:
            path.write_bytes(b"half a fi")
            raise KeyboardInterrupt
        written.append(path)
        return write(path, turns)

    monkeypatch.setattr(command, "write_turns", killed_at_the_second)
    assert main([path, *few]) == 130
    assert "error: interrupted: run the same command again to continue where it stopped" in capsys.readouterr().err
    monkeypatch.undo()
    with pytest.raises(RecordingError, match=r"was interrupted after 2 turns; run the command that made it"):
        Recording(folder)

    capsys.readouterr()
    assert main([path, *few]) == 0

    assert "holds 1 of 3 answered prompts: resuming" in capsys.readouterr().out
    assert len(Recording(folder).turns) == 3
    same(Recording(folder), Recording(f"{folder}_whole"))


def test_two_processes_do_not_record_together(file, folder, capsys):
    folder.mkdir()
    with sole_writer(folder):
        assert small(file()) == 1
    assert "wait for it, or name another folder in record.to" in capsys.readouterr().err
    assert not (folder / "recording.json").exists()


@pytest.mark.slow
def test_a_finished_recording_is_left_alone_and_takes_more_prompts_and_samples(file, folder, capsys):
    path = file()
    assert small(path) == 0
    before = {item: item.stat().st_mtime_ns for item in folder.iterdir()}
    capsys.readouterr()

    assert small(path) == 0
    assert "holds 2 of 2 answered prompts: nothing is left to record" in capsys.readouterr().out
    assert small(path, {}, "--dry-run") == 0
    assert f"to {folder}, which holds 4 answers already" in capsys.readouterr().out
    assert small(path, {"generation.max_new_tokens": 7}, "--dry-run") == 2
    assert "made with generation.max_new_tokens 6, and the configured one is 7" in capsys.readouterr().err
    assert {item: item.stat().st_mtime_ns for item in folder.iterdir()} == before

    assert small(path, {"data.max_prompts": 3, "generation.samples": 2}) == 0
    recording = Recording(folder)
    assert len(recording.turns) == 6
    assert recording.manifest.made_of["generation"]["samples"] == 2
    assert len(recording.manifest.made_of["prompts"]) == 3


@pytest.mark.slow
def test_a_larger_live_sample_and_other_arms_leave_the_recording_alone(file, folder):
    assert small(file(), {"record.live_sample": 1}) == 0
    assert {row["prompts"] for row in Recording(folder).manifest.live_sample} == {1}
    written = (folder / "turns-00000.parquet").stat().st_mtime_ns

    arms = {
        "own": {},
        "short": {"builder": part("Chain", length=2)},
        "drawn": {"drafter": part("DraftModel", top_k=3)},
        "lookup": {"reference": "hf-prompt-lookup"},
    }
    assert small(file(arms=arms), {"record.live_sample": 2}) == 0

    rows = {row["composition"]: row for row in Recording(folder).manifest.live_sample}
    assert {name for name in rows if name.startswith("arm ")} == {"arm short", "arm drawn"}
    assert rows["arm short"]["equal_prompts"] == rows["arm short"]["prompts"] == 2
    assert "top_k" in rows["arm drawn"]["refused"]
    assert (folder / "turns-00000.parquet").stat().st_mtime_ns == written


@pytest.mark.variants(1)
@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:-40]), Path.unlink])
def test_a_damaged_file_is_refused_and_recorded_again(file, folder, damage):
    path = file()
    assert small(path) == 0
    whole = Recording(folder)
    assert len(whole.turns) == 2
    damage(folder / "turns-00000.parquet")

    with pytest.raises(RecordingError, match=r"turns-00000\.parquet .*record it with"):
        _ = Recording(folder).turns
    assert small(path) == 0
    same(Recording(folder), whole)


def test_a_sweep_is_recorded_with_the_prompts_of_all_its_stages_each_once(file, folder):
    sweep = {
        "space": SPACE,
        "confirm": {"data": {"max_prompts": 2}},
        "learn": {"data": {"max_prompts": 2, "offset": 0}},  # one of the search's, one of the confirmation's
    }
    questions = yaml.safe_load(Path(file()).read_text())["data"]["prompts"]
    path = file(sweep=sweep, data={"prompts": questions, "max_prompts": 1}, generation={"max_new_tokens": 4})

    assert list(plan_recording(load_config(path)).prompts) == ["data", "sweep.confirm", "sweep.learn"]
    assert main([path, "--record.live_sample", "0"]) == 0
    assert sorted(Recording(folder).turns) == [("0", 0), ("1", 0), ("2", 0)]


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"verifier": "helpers.lossy.Lossy"}, r"verifier: the output of Lossy .*record with Greedy"),
        ({"record": {"coverage": ["DySpecGreedy"]}}, r"coverage\.0 is a DySpecGreedy that draws its candidates"),
        ({"record": {"coverage": []}}, r"record\.coverage must have at least one builder"),
        ({"drafter": "TokenRecycling", "record": {"target_top_k": 3}}, r"target_top_k must be at least 8, since"),
        (
            {"drafter": "TokenRecycling", "record": {"coverage": ["BeamRerank"]}},
            r"record\.coverage\.0 cannot be combined with the drafter: .*gives none",
        ),
        (
            {"record": {"coverage": [part("Chain", length=200)]}},
            r"coverage\.0 makes trees of up to 200 nodes, but the target's context holds 192",
        ),
        ({"execution": "SerialSpeculative"}, "decodes several sequences for a prompt, which cannot be recorded"),
    ],
)
def test_an_experiment_that_cannot_be_recorded_is_refused(file, folder, capsys, sections, sentence):
    assert small(file(**sections)) == 2

    error = capsys.readouterr().err
    assert re.search(sentence, error)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not folder.exists()


@pytest.mark.slow
def test_another_recording_is_never_added_to(file, folder, tmp_path, capsys):
    path = file()
    assert small(path) == 0
    before = (folder / "recording.json").read_bytes()
    temperature = "verifier.init_args.temperature"
    for key, value, sentence in [
        ("generation.seed", 3, r"generation\.seed 0, and the configured one is 3"),
        (temperature, 0.2, r"verifier\.temperature 0\.7, and the configured one is 0\.2"),
        ("drafter.init_args.coupled", "true", r"drafter\.init_args .*coupled"),
        ("record.candidates", 7, r"candidates 32, and the configured one is 7"),
        ("pair.draft_dtype", "float16", r"another draft \(dtype float32, and the configured one has float16"),
        ("data.max_prompts", 2, "another text or other tokens for prompt '1'"),
    ]:
        if key == "data.max_prompts":
            questions = tmp_path / "question.jsonl"
            questions.write_text(questions.read_text().replace("ab1 ab1", "ba1 ba1"))
        capsys.readouterr()
        assert small(path, {key: value}) == 2
        error = capsys.readouterr().err
        assert re.search(sentence, error)
        assert "remove it, or name another folder in record.to" in error
    assert (folder / "recording.json").read_bytes() == before


def test_two_prompts_of_one_name_cannot_be_recorded_together(file, tmp_path, model_folder):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"question_id": 0, "category": "math", "turns": ["else"]}) + "\n")
    confirm = {"data": {"prompts": {"class_path": "MTBench", "init_args": {"path": str(other)}}}}
    path = file(sweep={"space": SPACE, "confirm": confirm})

    with pytest.raises(ConfigError, match=r"two prompts are called '0'.*record their sets one by one"):
        run(load_config(path, arguments(SMALL)))


def test_the_tree_between_two_recorded_trees_has_nodes_of_the_larger():
    trees = [ParametricTree(nodes=36, depth=5), DySpecGreedy(8, candidates="top-k"), ParametricTree(nodes=4)]

    (small, _), (large, name) = trees_between(trees)

    assert (len(small), len(large), name) == (2, 12, "12 of the 36 nodes, not recorded")
    assert all(path in trees[0].rank_paths for path in StaticTree(large).rank_paths)


def test_a_live_sample_counts_only_for_compositions_of_its_fidelity():
    row = {"composition": "Chain", "fidelity": "exact", "relative_error": -0.03}
    manifest = RecordingManifest({}, {"pair": {"target_dtype": "bfloat16"}}, 7, {}, live_sample=[row])

    assert fidelity_note("exact", manifest).endswith("was -3.00 % tokens per step")
    assert fidelity_note("approximate (it learns)", manifest).endswith("has no such composition")
