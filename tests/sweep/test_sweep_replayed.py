"""Sweeps, fits and runs on a recording."""

import csv
import json
import re
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specexp.bench.metrics import figures_of
from specexp.commands.run import run
from specexp.config import load_config
from specexp.fit.learn import learn
from specexp.replay.format.recording import MANIFEST
from specexp.replay.record.command import main as record
from specexp.sweep.command import main

pytestmark = pytest.mark.slow

LATENCY = {
    "name": "toy",
    "target_ms": {1: 10.0, 8: 11.0, 64: 30.0},
    "draft_ms": {1: 1.0, 64: 3.0},
    "step_ms": 0.2,
    "target_prefix_ms": 1.0,
}
TREE: dict[str, Any] = {
    "name": "tree",
    "question": "Which tree?",
    "pair": {"target_dtype": "float32"},
    "data": {
        "prompts": {"class_path": "StdlibFunctions", "init_args": {"split": "validation"}},
        "max_prompts": 3,
    },
    "drafter": {"class_path": "DraftModel"},
    "builder": {"class_path": "Chain", "init_args": {"length": 4}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "generation": {"max_new_tokens": 20, "threads": 1},
    "latency": LATENCY,
    "backend": "replay",
    "recording": "recorded",
    "record": {
        "to": "recorded",
        "coverage": [{"class_path": "Chain", "init_args": {"length": 6}}],
        "candidates": 8,
        "live_sample": 0,
    },
    "sweep": {
        "n_trials": 8,
        "sampler": {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": 0}},
        "space": {
            "builder": {
                "type": "categorical",
                "choices": [
                    {"name": "parametric", "class_path": "ParametricTree"},
                    {"name": "fitted", "class_path": "FittedTree"},
                ],
            },
            "builder.init_args.nodes": {"type": "int", "low": 1, "high": 24},
            "builder.init_args.depth": {"type": "int", "low": 1, "high": 6},
            "builder.init_args.width": {"type": "int", "low": 1, "high": 8},
        },
        "enqueue": [
            {"name": "chain of 3", "builder": {"class_path": "Chain", "init_args": {"length": 3}}},
            {"name": "too wide", "builder": {"class_path": "KConfig", "init_args": {"widths": [12]}}},
            {
                "name": "not recorded",
                "builder": {"class_path": "DySpecGreedy", "init_args": {"budget": 24, "candidates": "top-k"}},
            },
        ],
        "count_acceptances": {
            "builder": {"class_path": "ParametricTree", "init_args": {"nodes": 30, "width": 8}},
            "data": {"max_prompts": 2},
        },
        "confirm": {"best": 2, "data": {"max_prompts": 2}},
        "export": {"kind": "static-tree", "to": "exported"},
    },
}
LEARNING = {
    "builder": {"class_path": "Chain", "init_args": {"length": 6}},
    "controller": {"class_path": "QLearning", "init_args": {"warm_up": 5, "max_depth": 6}},
    "trainer": {"logger": False},
    "fit": {"export": {"kind": "q-table", "to": "table"}},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of the embedded pair's answers to the prompts of ``TREE``, all its stages."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "tree.yaml").write_text(yaml.safe_dump(TREE))
    assert record([str(folder / "tree.yaml"), "--record.to", str(folder / "recorded"), "--recording", "null",
                   "--backend", "live"]) == 0  # fmt: skip
    return folder / "recorded"


@pytest.fixture
def here(tmp_path, recorded, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (tmp_path / "recorded").symlink_to(recorded)
    return tmp_path


def write(**sections):
    """The experiment with other sections; None leaves one out."""
    whole = {**deepcopy(TREE), **sections}
    Path("tree.yaml").write_text(yaml.safe_dump({key: value for key, value in whole.items() if value is not None}))
    return "tree.yaml"


def trials():
    with Path("runs/tree/trials.csv").open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def exported():
    found: dict[str, Any] = json.loads(Path("exported/v1/artifact.json").read_text())
    return found


def test_a_study_on_a_recording_is_confirmed_live(here, capsys):
    assert main([write()]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    rows = trials()
    assert rows["chain of 3"]["clock"] == "modelled: toy (assumed)"
    assert "12 candidates a node, but 8 were recorded" in rows["too wide"]["reason"]
    assert "were not recorded; record with" in rows["not recorded"]["reason"]
    assert sum(row["state"] == "complete" for row in rows.values()) == 8  # the failed ones did not stop it
    assert "Replayed speedups are off" not in printed
    assert "are exact." in printed
    header = Path("runs/tree/confirm.csv").read_text().splitlines()[0]
    assert "predicted speedup" in header
    manifest = exported()
    metrics, origin = manifest["provenance"]["metrics"], manifest["provenance"]["recording"]
    assert metrics["predicted_tokens_per_step"]["value"] == metrics["confirmed_tokens_per_step"]["value"] > 1
    assert origin["folder"] == "recorded"
    assert origin["profile"] == "modelled: toy (assumed)"
    assert origin["fidelity"] == "exact"


@pytest.mark.variants(1)
@pytest.mark.parametrize("offset", [None, 200])  # prompts that were recorded, and others
def test_a_study_by_a_wrong_profile_begins_with_both_speedups(here, capsys, offset):
    """Plain decoding priced far above its live time makes every tree look fast."""
    wrong = {**LATENCY, "source": "measured", "overheads": {"plain": {"token_ms": 1000.0}}}
    sweep = deepcopy(TREE["sweep"]) | {"n_trials": 3, "count_acceptances": None, "export": None}
    del sweep["space"]["builder"]["choices"][1]
    if offset is not None:
        sweep["confirm"]["data"]["offset"] = offset
    assert main([write(latency=wrong, sweep=sweep)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    first = r"Replayed speedups are off by more than 10 %: [^:]+ was predicted at \d{2,}\.\d+x \[[\d., >]+\]"
    assert re.search(first + r", but live it is [\d.]+x \[", printed)
    assert ("predictions are for the search's prompts, because" in printed) == (offset is not None)
    assert "tokens/s of" not in printed


def test_without_the_models_nothing_is_confirmed_live(here, monkeypatch, capsys):
    """The winner is exported with its predictions only, and a sentence states it."""
    from specexp.models import pair as models
    from specexp.models.sources import PairError

    def away(*given, **also):
        raise PairError("target", "target 'stdlib' has no tokenizer that could be loaded: it is elsewhere")

    monkeypatch.setattr(models, "load_pair", away)
    monkeypatch.setattr(models, "load_tokenizer", away)
    assert main([write()]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Nothing was confirmed live, because the models cannot be loaded" in printed
    metrics = exported()["provenance"]["metrics"]
    assert metrics["predicted_tokens_per_step"]["value"] > 1
    assert not [name for name in metrics if not name.startswith("predicted_")]


def test_trials_of_different_recordings_are_of_different_studies(here, capsys):
    short = deepcopy(TREE["sweep"])
    del short["space"]["builder"]["choices"][1]
    short |= {"n_trials": 2, "confirm": None, "export": None, "count_acceptances": None}
    path = write(sweep=short)
    assert main([path]) == 0
    other = json.loads((here / "recorded" / MANIFEST).read_text())
    shutil.copytree(here / "recorded", here / "again")
    (here / "again" / MANIFEST).write_text(json.dumps({**other, "provenance": {"made": "anew"}}))
    assert main([path, "--recording", "again"]) == 1
    assert "exists already with another workload" in " ".join(capsys.readouterr().err.split())
    assert main([path, "--data.shuffle_seed", "5"]) == 1
    named = "another workload (models, prompts or shared settings) (data.shuffle_seed, command line): its trials"
    assert named in " ".join(capsys.readouterr().err.split())


def test_a_table_learned_on_a_recording_is_the_one_learned_live(here):
    path = write(**{**LEARNING, "sweep": None, "data": {**TREE["data"], "max_prompts": 3}})
    live = learn(load_config(path, ["--name", "live", "--backend", "live", "--recording", "null"]))
    replayed = learn(load_config(path, ["--name", "replayed"]))
    one, other = live.arm.parts.controller.state_dict(), replayed.arm.parts.controller.state_dict()
    assert one["steps"] == other["steps"] > 10
    assert torch.equal(one["visits"], other["visits"])
    assert torch.equal(one["q"], other["q"])


def test_candidates_learn_from_recorded_prompts(here):
    sweep = deepcopy(TREE["sweep"])
    sweep |= {
        "n_trials": 2,
        "space": {"controller.init_args.alpha": {"type": "float", "low": 0.01, "high": 0.3}},
        "enqueue": [],
        "count_acceptances": None,
        "learn": {"data": {"offset": 5, "max_prompts": 2}},
        "export": {"kind": "q-table", "to": "exported"},
    }
    controller = {"class_path": "QLearning", "init_args": {"warm_up": 5, "max_depth": 6, "alpha": 0.1}}
    assert main([write(sweep=sweep, builder=LEARNING["builder"], controller=controller)]) == 0
    assert exported()["kind"] == "q-table"


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--recording", "elsewhere"], "command line: recording: elsewhere holds no recording.json"),
        (["--generation.max_new_tokens", "21"], "max_new_tokens 20, and the configured one is 21"),
        (["--pair.target", "models/another"], "pair.target 'stdlib', and the configured one is 'models/another'"),
        (["--verifier.init_args.temperature", "0.5"], "temperature 0.7, and the configured one is 0.5"),
        (["--data.offset", "30"], "tree.yaml: data: "),
        (["--latency", "null"], "but latency is null: measure one with"),
        (["--backend", "live"], "tree.yaml: recording is 'recorded' and backend is live"),
        (["--execution", "Batched"], "leave execution and"),
    ],
)  # fmt: skip
def test_a_recording_of_something_else_is_refused(here, words, sentence, capsys):
    assert main([write(), *words]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()  # nothing is left behind


def test_our_arms_are_replayed_and_others_left_out(here, capsys):
    arms = {
        "chain": {"builder": {"class_path": "Chain", "init_args": {"length": 3}}},
        "assisted": {"reference": "hf-assisted"},
    }
    records = run(load_config(write(arms=arms, sweep=None)))
    assert {record.arm for record in records} == {"plain", "chain"}
    assert {record.clock for record in records} == {"modelled: toy (assumed)"}
    printed = " ".join(capsys.readouterr().out.split())
    assert "The recording has no outputs of hf-eager, assisted: left out" in printed
    assert "Which tree?, replayed" in printed
    assert "Replayed counts of chain are exact." in printed


def test_tables_and_steps_give_the_same_figures(here):
    """A fixed tree is read off the table of ranks, or stepped through; two ways to one number."""
    from specexp.sweep.replay_bench import ReplayBench
    from specexp.sweep.study_config import StudyConfig

    study_config = StudyConfig(load_config(write()))
    latency = study_config.latency
    assert latency is not None
    bench = ReplayBench(study_config, latency, confirms=True)
    bench.load_reference()
    tree = {"builder": {"class_path": "KConfig", "init_args": {"widths": [3, 2, 1]}}}
    read = bench.measure(bench.prepare(tree), lambda prompt, log_speedup: False, 0)
    arm = bench.compose("stepped", tree)
    stepped = figures_of([arm.decode(prompt) for prompt in bench.data().prompts])
    assert read.metrics["tokens_per_step"] == stepped["tokens_per_step"]
    assert read.metrics["modelled_tokens_per_second"] == pytest.approx(stepped["modelled_tokens_per_second"], rel=1e-12)
    assert len(read.log_speedups) == 3
    plain = bench.predict(None)
    assert plain is not None
    assert plain.tokens_per_step == 1.0
