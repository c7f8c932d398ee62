"""A sweep over whole methods: the best of each is confirmed, the winner exported whole; those that need a draft model
are left out where the pair has none.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.small_study import refused, write

import specexp
from specexp.config import ConfigError, load_config
from specexp.sweep.command import main
from specexp.sweep.preparation import without_impossible
from specexp.sweep.study_config import StudyConfig

DRAFT = {"class_path": "DraftModel", "init_args": {"coupled": True}}
CHAIN = {"class_path": "Chain"}
LOOKUP = {"name": "lookup", "drafter": {"class_path": "PromptLookup"}}


@pytest.fixture
def methods(small):
    del small["drafter"], small["builder"]
    small["pair"]["draft"] = small["pair"]["target"]
    small["data"]["max_prompts"] = 3
    small["sweep"] = {
        "n_trials": 4,
        "sampler": {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": 0}},
        "space": {
            "method": {
                "type": "categorical",
                "choices": [
                    {**LOOKUP, "builder": CHAIN},
                    {"name": "chain", "drafter": DRAFT, "builder": CHAIN},
                ],
            },
            "builder.init_args.length": {"type": "int", "low": 1, "high": 4},
        },
        "enqueue": [
            {"name": "looks up 2", "method": "lookup", "builder.init_args.length": 2},
            {"name": "drafts 3", "method": "chain", "builder.init_args.length": 3},
        ],
        "confirm": {"best": 1, "of_each": "method", "data": {"max_prompts": 2}},
        "export": {"kind": "composition", "to": "artifacts/small"},
    }
    return small


@pytest.mark.slow
def test_the_best_of_each_method_is_confirmed_and_the_winner_exported_whole(methods, capsys):
    assert main([write(methods)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "confirming 2 candidates" in printed
    assert "the best confirmed of" in printed

    artifact = specexp.load_artifact("artifacts/small/best-tree")
    assert artifact.kind == "composition"
    resolved = artifact.provenance["config"]
    assert artifact.recorded["drafter"] == resolved["drafter"]
    pair = specexp.load_pair(resolved["pair"]["target"], resolved["pair"]["target"], target_dtype="float32")
    result = artifact.decoder(pair.target, pair.draft).generate([5, 6, 7], max_new_tokens=16, seed=0)
    plain = specexp.Decoder(pair.target, None, None, artifact.verifier).generate([5, 6, 7], max_new_tokens=16, seed=0)
    assert result.token_ids == plain.token_ids


def test_without_a_draft_model_its_methods_are_left_out_and_named(methods, capsys):
    del methods["pair"]["draft"]
    assert main([write(methods), "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Not measured: method 'chain', drafts 3, because DraftModel needs" in printed
    assert "measured first: looks up 2" in printed
    assert "measured first: drafts 3" not in printed


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"name": "chain", "drafter": DRAFT, "builder": CHAIN}, "sweep.space.method: no choice can be built"),
        ({**LOOKUP, "builder": {"class_path": "Chian"}}, "did you mean 'Chain'"),
        ({**LOOKUP, "builder": {"class_path": "DySpecThreshold"}}, "sweep.space.method: lookup"),
    ],
)
def test_a_method_that_cannot_be_is_one_sentence_before_anything_is_loaded(methods, capsys, method, words):
    del methods["pair"]["draft"]
    methods["sweep"]["space"]["method"]["choices"] = [method]
    methods["sweep"]["enqueue"] = []
    sentence = refused(capsys, write(methods))
    assert words in sentence
    assert "small.yaml" in sentence
    assert not Path("runs").exists()


def test_a_choice_is_left_out_if_both_ends_of_its_numbers_cannot_be_built_and_a_single_end_is_refused(methods):
    lengths = []

    def compose(name, overrides, longest=4):
        lengths.append(overrides.get("builder.init_args.length"))
        if overrides["drafter"]["class_path"] == "PromptLookup" or lengths[-1] > longest:
            raise ValueError("these do not go together")
        return SimpleNamespace(close=lambda: None)

    config = StudyConfig(load_config(write(methods)))
    with pytest.raises(ConfigError, match=r"space\.builder\.init_args\.length\.high: these do not go together"):
        without_impossible(SimpleNamespace(config=config, compose=partial(compose, longest=3)))
    possible, left_out = without_impossible(SimpleNamespace(config=config, compose=compose))
    assert {1, 4} <= set(lengths)
    assert left_out == dict.fromkeys(("method 'lookup'", "looks up 2"), "these do not go together")
    assert [choice["name"] for choice in possible.space["method"].choices] == ["chain"]
    assert [known["name"] for known in possible.enqueue] == ["drafts 3"]
