"""The composition of an artifact replaces a file's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.made_artifacts import save

from specexp.config import ConfigError, load_config
from specexp.config.artifacts import save_artifact
from specexp.config.load import with_artifact

FILE = Path(__file__).parents[2] / "experiments" / "fastest.yaml"
PARTS = {
    "drafter": {"class_path": "PromptLookup", "init_args": {"min_ngram": 2}},
    "builder": {"class_path": "Chain", "init_args": {"length": 5}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.3}},
    "controller": None,
}


def test_its_parts_replace_those_of_the_file_and_its_search(tmp_path):
    save_artifact(tmp_path / "found", "composition", {"parts.json": PARTS})
    config = with_artifact(load_config(FILE, ["--artifact", str(tmp_path / "found")]))
    assert config.get("drafter.init_args.min_ngram") == 2
    assert config.get("builder.init_args.length") == 5
    assert config.get("verifier.init_args.temperature") == 0.3
    assert config.get("sweep") is None
    assert config.get("artifact") is None, "the resolved file has the parts and does not need the artifact"
    assert config.source_of(("builder",)) == str(tmp_path / "found")


def test_a_file_without_one_stays_as_it_is():
    config = load_config(FILE)
    assert with_artifact(config) is config


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("plain-decoding", "means plain decoding, so there is nothing to compare"),
        ("latency-profile", "must have a drafter and a builder, and is of kind 'latency-profile'"),
        (None, "there is no such artifact folder"),
    ],
)
def test_an_artifact_without_a_composition_is_refused(tmp_path, kind, message):
    path = tmp_path / "none" if kind is None else save(tmp_path, kind)
    with pytest.raises(ConfigError, match=f"artifact: .*{message}"):
        with_artifact(load_config(FILE, ["--artifact", str(path)]))
