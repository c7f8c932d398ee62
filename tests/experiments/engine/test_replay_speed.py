"""How fast a recording answers: trees a second, and a trial live beside the same one replayed."""

import yaml

from experiments.engine import replay_speed
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


def test_both_tables_are_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replay_speed, "TREES", 3)
    (tmp_path / "timed.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    assert record.main(["timed.yaml"]) == 0
    assert replay_speed.main(["timed.yaml"]) == 0

    out = capsys.readouterr().out
    assert "2 answers, 16 tokens" in out
    assert "counts and seconds" in out
    assert "One trial: 2 prompts x 8 tokens" in out
    assert "ConfidenceThreshold(0.4)" in out


def test_random_trees_are_no_wider_than_what_was_recorded():
    trees = replay_speed.random_trees(20, width=3)

    assert max(int(tree.shape.ranks.max()) for tree in trees) == 2
    assert len({str(tree.rank_paths) for tree in trees}) > 10
