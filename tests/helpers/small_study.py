"""A small study of trees, to be changed and written to a file."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from specexp.sweep.command import main

NODES = "builder.init_args.nodes"
CHAIN_OF_2 = {"name": "chain of 2", "builder": {"class_path": "Chain", "init_args": {"length": 2}}}
WIDE = {"class_path": "ParametricTree", "init_args": {"nodes": 12, "depth": 2}}
RANDOM = {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": 0}}
SWEEP = {
    "n_trials": 5,
    "sampler": RANDOM,
    "space": {
        "builder": {
            "type": "categorical",
            "choices": [
                {"name": "parametric", "class_path": "ParametricTree"},
                {"name": "fitted", "class_path": "FittedTree"},
            ],
        },
        NODES: {"type": "int", "low": 2, "high": 12},
        "builder.init_args.rank_decay": {"type": "float", "low": 0.5, "high": 3.0},
    },
    "enqueue": [
        CHAIN_OF_2,
        {"name": "80-node tree", "builder": {"class_path": "TokenRecyclingTree"}},
        {"name": "too wide", "builder": WIDE},
    ],
    "count_acceptances": {
        "builder": {"class_path": "ParametricTree", "init_args": {"nodes": 30}},
        "data": {"max_prompts": 2},
    },
    "confirm": {"best": 1, "data": {"max_prompts": 3}},
}
ONE_CHAIN = {"n_trials": 1, "enqueue": [CHAIN_OF_2]}


FREE = {"name": "free drafts", "target_ms": {1: 100, 8: 100}}
DEAR = {"name": "dear drafts", "target_ms": {1: 100, 4: 130}}


def small_experiment(target):
    """The experiment, and its questions in the working directory."""
    questions = [{"question": f"What is {n} plus {n + 3}?", "answer": "#### 1"} for n in range(12)]
    Path("questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    return {
        "name": "small",
        "question": "Which tree?",
        "pair": {"target": str(target), "target_dtype": "float32"},
        "data": {
            "prompts": {"class_path": "GSM8K", "init_args": {"path": "questions.jsonl"}},
            "max_prompts": 3,
            "shuffle_seed": 0,
        },
        "drafter": {"class_path": "TokenRecycling"},
        "builder": {"class_path": "ParametricTree", "init_args": {"nodes": 4}},
        "verifier": {"class_path": "KeyedSampling"},
        "generation": {"max_new_tokens": 8, "threads": 1},
        "sweep": {**SWEEP, "export": {"kind": "static-tree", "to": "artifacts/small"}},
    }


def write(experiment):
    Path("small.yaml").write_text(yaml.safe_dump(experiment))
    return "small.yaml"


def study(target, latency):
    """A study of one tree for a drafter that learns from prompt to prompt."""
    found = small_experiment(target)
    found["latency"] = latency
    found["drafter"] = {"class_path": "TokenRecycling", "init_args": {"k": 4, "state": "carry"}}
    found["verifier"] = {"class_path": "Greedy"}
    found["generation"] = {"max_new_tokens": 24, "threads": 1}
    found["sweep"] |= {
        "n_trials": 1,
        "space": {"builder.init_args.nodes": {"type": "int", "low": 5, "high": 5}},
        "enqueue": [],
        "count_acceptances": None,
        "confirm": {"best": 1, "data": {"max_prompts": 4}},
    }
    return found


def refused(capsys, *arguments):
    """The one sentence with which the command refuses its arguments."""
    assert main(list(arguments)) != 0
    captured = capsys.readouterr()
    sentence = captured.err.strip()
    assert sentence.startswith("error: "), captured
    assert "\n" not in sentence
    return sentence.removeprefix("error: ")
