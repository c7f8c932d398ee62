"""A sweep over whole methods: the best of each is confirmed, the winner exported whole; those that need a draft model
are left out where the pair has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweep.test_sweep import experiment, refused, target, write  # noqa: F401

import specexp
from specexp.sweep.command import main, read_sweep
from specexp.sweep.study_config import StudyConfig

DRAFT = {"class_path": "DraftModel", "init_args": {"coupled": True}}
CHAIN = {"class_path": "Chain"}


@pytest.fixture
def methods(experiment: dict[str, Any]) -> dict[str, Any]:  # noqa: F811
    del experiment["drafter"], experiment["builder"]
    experiment["pair"]["draft"] = experiment["pair"]["target"]
    experiment["data"]["max_prompts"] = 3
    experiment["sweep"] = {
        "n_trials": 4,
        "sampler": {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": 0}},
        "space": {
            "method": {
                "type": "categorical",
                "choices": [
                    {"name": "lookup", "drafter": {"class_path": "PromptLookup"}, "builder": CHAIN},
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
    return experiment


def test_the_best_of_each_method_is_confirmed_and_the_winner_exported_whole(
    methods: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([write(methods)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "confirming 2 candidates" in printed
    assert "against the best of" in printed

    artifact = specexp.load_artifact("artifacts/small/best-tree")
    assert artifact.kind == "composition"
    resolved = artifact.provenance["config"]
    assert artifact.recorded["drafter"] == resolved["drafter"]
    pair = specexp.load_pair(resolved["pair"]["target"], resolved["pair"]["target"], target_dtype="float32")
    result = artifact.decoder(pair.target, pair.draft).generate([5, 6, 7], max_new_tokens=16, seed=0)
    plain = specexp.Decoder(pair.target, None, None, artifact.verifier).generate(
        [5, 6, 7], max_new_tokens=16, seed=0
    )
    assert result.token_ids == plain.token_ids


def test_without_a_draft_model_its_methods_are_left_out_and_named(
    methods: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    del methods["pair"]["draft"]
    config = specexp.config.load_config(write(methods))
    study_config, settings, left_out = read_sweep(config)
    assert isinstance(study_config, StudyConfig)
    assert list(settings.methods) == ["lookup"]
    assert left_out == ("chain",)
    assert [known.name for known in settings.known] == ["looks up 2"]
    assert main(["small.yaml", "--dry-run"]) == 0
    assert "Left out, because the pair has no draft model: chain." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"name": "chain", "drafter": DRAFT, "builder": CHAIN}, "every method needs a draft model"),
        (
            {"name": "lookup", "drafter": {"class_path": "PromptLookup"}, "builder": {"class_path": "Chian"}},
            "did you mean 'Chain'",
        ),
        (
            {"name": "lookup", "drafter": {"class_path": "PromptLookup"}, "bilder": CHAIN},
            "did you mean 'builder'",
        ),
        (
            {
                "name": "lookup",
                "drafter": {"class_path": "PromptLookup"},
                "builder": {"class_path": "DySpecThreshold"},
            },
            "sweep.space.method: lookup",
        ),
        ({"drafter": {"class_path": "PromptLookup"}, "builder": CHAIN}, "needs a name"),
    ],
)
def test_a_method_that_cannot_be_is_one_sentence_before_anything_is_loaded(
    methods: dict[str, Any], capsys: pytest.CaptureFixture[str], method: dict[str, Any], words: str
) -> None:
    del methods["pair"]["draft"]
    methods["sweep"]["space"]["method"]["choices"] = [method]
    methods["sweep"]["enqueue"] = []
    sentence = refused(capsys, write(methods))
    assert words in sentence
    assert "small.yaml" in sentence
    assert not Path("runs").exists()


def test_an_unknown_method_is_named_with_the_nearest(
    methods: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    methods["sweep"]["enqueue"] = [{"method": "lokup"}]
    assert "method is 'lokup', which sweep.space does not have; did you mean 'lookup'" in refused(
        capsys, write(methods)
    )
