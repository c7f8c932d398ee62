"""How fast a recording answers: trees a second, and a trial live beside the same one replayed."""

import pytest
import yaml

from experiments.engine.replay_speed import main, random_trees
from specexp.replay.record import command as record

EXPERIMENT = {
    "name": "timed",
    "pair": {"target_dtype": "float32"},
    "data": {"prompts": {"class_path": "StdlibFunctions"}, "max_prompts": 2, "shuffle_seed": 0},
    "drafter": {"class_path": "DraftModel"},
    "builder": {"class_path": "Chain"},
    "verifier": {"class_path": "KeyedSampling"},
    "generation": {"max_new_tokens": 8, "threads": 1},
    "latency": {"name": "of a test", "target_ms": {1: 6.0, 64: 10.0}, "draft_ms": {1: 1.0, 64: 3.0}},
    "record": {"coverage": [{"class_path": "Chain", "init_args": {"length": 12}}], "live_sample": 0},
    "tracking": {"mode": "disabled"},
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "timed.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    return str(path)


def test_both_tables_are_printed(file, capsys):
    assert record.main([file]) == 0
    assert main([file, "--trees", "3", "--prompts", "1"]) == 0

    out = capsys.readouterr().out
    assert "2 answers, 16 tokens" in out
    assert "counts and seconds" in out
    assert "One trial: 1 prompt x 8 tokens" in out
    assert "DySpecGreedy(16) asks what was not recorded" in out


def test_random_trees_are_no_wider_than_what_was_recorded():
    trees = random_trees(20, width=3)

    assert max(int(tree.shape.ranks.max()) for tree in trees) == 2
    assert len({str(tree.rank_paths) for tree in trees}) > 10
