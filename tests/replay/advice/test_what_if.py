"""``python -m specexp.what_if``: every device has its own best tree, and each is weighed on all of them."""

import csv
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.examples import examples
from helpers.fake_turns import LIMIT, recorded_turn, save_recording
from hypothesis import given, strategies as st

from specexp.builders import StaticTree
from specexp.commands.run import main as run_main
from specexp.config import load_config
from specexp.controllers import Fixed
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.drafters import DraftModel
from specexp.replay.advice.what_if import compare_devices, main
from specexp.replay.advice.what_if_report import compare
from specexp.replay.backend import source_for
from specexp.replay.format.recording import Recording
from specexp.replay.play.player import Player
from specexp.replay.play.ranks import MISSED, RankTable
from specexp.sweep.command import main as sweep_main
from specexp.verifiers import KeyedSampling

TOKENS = 24
# A pass costs the same whatever it feeds.
WIDE = {"name": "wide", "target_ms": {1: 20.0}, "draft_ms": {1: 1.0}}
NARROW = {
    "name": "narrow",
    "source": "measured",
    "target_ms": {1: 4.0, 2: 4.5, 16: 30.0},
    "draft_ms": {1: 0.4},
    "overheads": {"plain": {"token_ms": 0.5}, "DraftModel + StaticTree": {"step_ms": 0.1}},
}


@pytest.fixture
def recording(tmp_path):
    generator = np.random.default_rng(3)
    ranks = generator.choice([MISSED, 0, 1, 2, 3], (6, TOKENS), p=[0.15, 0.5, 0.2, 0.1, 0.05]).tolist()
    turns = [recorded_turn(one, prompt_id=f"p{number}") for number, one in enumerate(ranks)]
    return save_recording(turns, tmp_path / "recording", TOKENS)


@pytest.fixture
def file(experiment, recording):
    def write(**sections):
        path = experiment(
            **{
                "drafter": {"class_path": "DraftModel"},
                "recording": str(recording.folder),
                "generation": {"max_new_tokens": TOKENS, "stop_at_repetition": False},
                "what_if": {"profiles": [WIDE, NARROW], "max_nodes": 12, "max_depth": 4},
                **sections,
            }
        )
        pair = yaml.safe_load(Path(path).read_text())["pair"]
        same = {"target": pair["target"], "draft": pair.get("draft"), "draft_dtype": "float32"}
        folder = Path(sections.get("recording") or recording.folder)
        if folder.is_dir():
            manifest = Recording(folder).manifest
            manifest.made_of["pair"] |= same
            manifest.made_of["generation"]["stop_at_repetition"] = False
            manifest.save(folder)
        return path

    return write


def test_goodput_and_speedup_are_those_of_stepping_through_the_recording(file, recording):
    found, _ = compare_devices(load_config(file()))
    device = found.devices[1]
    drafter, source = DraftModel(), source_for(recording)
    drafter.use_draft_model(source)
    tree = StaticTree([list(path) for path in device.best.shape.rank_paths[1:]])
    strategy = Parts(drafter, tree, KeyedSampling(0.7), Fixed())
    source.missing = "unknown"
    seconds = []

    def clock(outcome):
        seconds[-1] += sum(device.profile.outcome_parts(outcome))
        return {}

    for (turn,) in recording.turns.values():
        seconds.append(0.0)
        Player(strategy, source, 64, 0).play([turn], TOKENS, "s", clock)
    assert device.counts.tokens_per_second == pytest.approx(6 * TOKENS / sum(seconds))
    assert device.plain_goodput == pytest.approx(1e3 / 4.5)  # 4 ms a pass, 0.5 beside it
    ratios = np.array([TOKENS * 4.5e-3 / spent for spent in seconds])
    assert device.speedup.ratio == pytest.approx(np.exp(np.log(ratios).mean()))
    speedup = device.speedup
    assert ratios.min() <= speedup.low <= speedup.ratio <= speedup.high <= ratios.max()


@pytest.mark.slow
def test_it_leaves_tables_trees_and_pictures(file, tmp_path, capsys):
    device = tmp_path / "device.yaml"
    device.write_text(yaml.safe_dump({"latency": {"name": "from a file", "target_ms": {1: 9.0}, "draft_ms": {1: 3.0}}}))
    what_if = {"profiles": [WIDE, NARROW], "files": [str(device)], "max_nodes": 8, "max_depth": 3}
    assert main([file(what_if=what_if)]) == 0
    shown = capsys.readouterr().out
    for part in ("A: wide (assumed)", "B: narrow (measured)", "C: from a file", "does not fit all", "same prompts",
                 "only the costs are the device's", "configured, Chain"):  # fmt: skip
        assert part in " ".join(shown.split()), part
    folder = tmp_path / "runs" / "tiny"
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "environment.json", "what_if.md", "what_if.csv", "cross.csv", "trees.json", "trees.png",
        "report.html",
    }  # fmt: skip
    rows = list(csv.DictReader((folder / "what_if.csv").read_text().splitlines()))
    trees = json.loads((folder / "trees.json").read_text())
    assert [int(row["nodes"]) for row in rows] == [len(paths) for paths in trees.values()]
    assert float(rows[0]["speedup (modelled) low"]) <= float(rows[0]["speedup (modelled)"])
    cross = list(csv.DictReader((folder / "cross.csv").read_text().splitlines()))
    assert [float(cross[place][f"on {letter}"]) for place, letter in enumerate("ABC")] == [1, 1, 1]
    assert cross[-1]["tree"] == "plain decoding"
    assert (folder / "trees.png").read_bytes().startswith(b"\x89PNG")


BARE = {"name": "bare", "target_ms": {1: 2.0}}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"what_if": None, "recording": None}, "no devices to compare; run it with python -m specexp.run"),
        (
            {"what_if": {"max_nodes": 4}},
            "what_if must have a device, got none: set what_if.profiles, what_if.files, or both",
        ),
        ({"what_if": {"profiles": [WIDE, BARE]}}, "profiles.1: latency profile 'bare' must have draft_ms, since trees"),
        ({"what_if": {"profiles": [WIDE, WIDE]}}, "what_if.profiles.1 is a second profile named 'wide'"),
        (
            {"what_if": {"profiles": [{"artifact": "nowhere"}]}},
            "nowhere: there is no such artifact folder; python -m specexp.profile FILE writes artifacts/profile/best",
        ),
        ({"recording": "nowhere"}, "recording: nowhere holds no recording.json; record it with"),
        (
            {"drafter": {"class_path": "TokenRecycling"}},
            "drafter must be DraftModel with a builder such as Chain, got TokenRecycling",
        ),
        ({"drafter": None, "builder": None}, "drafter must be DraftModel with a builder such as Chain, got null"),
        (
            {"generation": {"max_new_tokens": 99, "stop_at_repetition": False}},
            "record again with it, or set at most 24",
        ),
        (
            {"builder": {"class_path": "KConfig", "init_args": {"widths": [7]}}},
            "has 7 candidates a node, but 4 were recorded",
        ),
    ],
)
def test_a_mistake_is_one_sentence(file, sections, sentence, capsys, tmp_path):
    assert main([file(**sections)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_other_commands_name_this_one(file, capsys):
    path = file()
    assert run_main([path]) == 2
    assert f"use python -m specexp.what_if {path}" in capsys.readouterr().err
    assert sweep_main([path]) == 2
    assert f"run it with python -m specexp.what_if {path}" in capsys.readouterr().err


@cache
def all_trees(nodes, width=3, depth=3):
    """Every tree of so many nodes, each as a sorted tuple of rank paths."""
    if nodes == 0:
        return {()}
    return {
        tuple(sorted((*tree, (*parent, rank))))
        for tree in all_trees(nodes - 1, width, depth)
        for parent in ((), *tree)
        for rank in range(width)
        if len(parent) < depth and (*parent, rank) not in tree
    }


RANKS = st.lists(st.sampled_from([MISSED, 0, 0, 1, 1, 2]), min_size=4, max_size=20)


@given(RANKS)
@examples(20)
def test_a_candidate_of_every_size_is_hit_as_often_as_any_tree(ranks):
    cheap = LatencyProfile("cheap", {1: 10.0, 32: 12.0}, {1: 0.5})
    table = RankTable([recorded_turn(ranks)], len(ranks), LIMIT)
    hits = table.hits(3)
    for place, rank in enumerate(ranks[:-1]):  # nothing is drafted for the last token
        assert rank == MISSED or hits[(rank,)] == ranks[:-1].count(rank), place
    found = compare(table, [cheap], composition="DraftModel + StaticTree", max_nodes=4, max_depth=3)
    for nodes in range(1, min(4, len(hits)) + 1):
        worth = [
            sum(hits[path] for path in tree.shape.rank_paths[1:])
            for tree in found.trees
            if tree.shape.num_nodes == nodes
        ]
        assert max(worth) == max(sum(hits[path] for path in tree) for tree in all_trees(nodes))
