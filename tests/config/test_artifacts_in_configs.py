"""Artifacts in configurations: arguments by reference, and a composition that replaces a file's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers.made_artifacts import save

from specexp.config import ConfigError, build_parts, load_config
from specexp.config.artifacts import save_artifact
from specexp.config.load import with_artifact
from specexp.drafters import TokenRecycling

FOREIGN = """
from typing import Annotated

from specexp.base.checked import Reference
from specexp.builders import StaticTree


class Widened(StaticTree):
    def __init__(self, tree: Annotated[list[list[int]], Reference("static-tree")], extra: int = 1):
        super().__init__([*tree, *([rank] for rank in range(1, 1 + extra))])
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    save_artifact("tree", "static-tree", {"tree.json": [[0], [0, 0]]})
    return tmp_path


def written(**sections: object) -> Path:
    content = {"drafter": {"class_path": "TokenRecycling"}, **sections}
    Path("x.yaml").write_text(json.dumps(content))
    return Path("x.yaml")


@pytest.mark.parametrize("given", ["tree/best", [[0], [1]]])
def test_a_tree_is_named_by_its_path_or_by_its_value_and_the_file_keeps_it(given):
    config = load_config(written(builder={"class_path": "StaticTree", "init_args": {"rank_paths": given}}))
    assert config.get("builder.init_args.rank_paths") == given
    builder = build_parts(config).builder
    assert builder is not None
    assert builder.max_nodes == 2


def test_a_foreign_part_gets_the_value(here):
    (here / "widened.py").write_text(FOREIGN)
    try:
        spec = {"class_path": "widened.Widened", "init_args": {"tree": "tree", "extra": 2}}
        config = load_config(written(builder=spec))
        builder = build_parts(config).builder
        assert builder is not None
        assert builder.max_nodes == 4
        assert config.get("builder.init_args.tree") == "tree"
    finally:
        sys.modules.pop("widened", None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("nowhere", r"builder\.init_args\.rank_paths: nowhere: there is no such artifact folder"),
        ("matrix", r"rank_paths: matrix.*kind must be 'static-tree' here, got 'adjacency-matrix'"),
        (3, r"builder\.init_args\.rank_paths must be a list, got 3"),
        ([["x"]], r"builder\.init_args\.rank_paths"),
    ],
)
def test_a_wrong_reference_is_refused_with_its_key(given, sentence):
    teacher = TokenRecycling(k=2)
    teacher.check_vocabulary(5)
    save_artifact("matrix", "adjacency-matrix", {"matrix.safetensors": teacher.state_dict()})
    spec = {"class_path": "StaticTree", "init_args": {"rank_paths": given}}
    with pytest.raises(ConfigError, match=sentence):
        load_config(written(builder=spec))


def test_a_matrix_is_no_value_of_a_file():
    drafter = {"class_path": "TokenRecycling", "init_args": {"state": "preloaded", "matrix": [[1, 2]]}}
    with pytest.raises(
        ConfigError, match=r"drafter\.init_args\.matrix must be an instance of ndarray, got \[\[1, 2\]\]"
    ):
        load_config(written(drafter=drafter, builder={"class_path": "Chain"}))


FILE = Path(__file__).parents[2] / "experiments" / "fastest.yaml"
PARTS = {
    "drafter": {"class_path": "PromptLookup", "init_args": {"min_ngram": 2}},
    "builder": {"class_path": "Chain", "init_args": {"length": 5}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.3}},
    "controller": None,
}


def test_its_parts_replace_those_of_the_file_its_arms_and_its_search(tmp_path):
    save_artifact(tmp_path / "found", "composition", {"parts.json": PARTS})
    config = with_artifact(load_config(FILE, ["--artifact", str(tmp_path / "found"), "--arms.a", "{}"]))
    assert config.get("arms") == {}
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
        ("latency-profile", "must have a drafter and a builder, got kind 'latency-profile'"),
        ("engine-settings", "got kind 'engine-settings'; verify .* --for ENGINE, or --endpoint URL --plain URL, "),
        (None, "there is no such artifact folder"),
    ],
)
def test_an_artifact_without_a_composition_is_refused(tmp_path, kind, message):
    made = {None: tmp_path / "none", "engine-settings": Path(__file__).parents[1] / "golden/artifacts/engine-settings"}
    path = made.get(kind) or save(tmp_path, kind)
    with pytest.raises(ConfigError, match=f"artifact: .*{message}"):
        with_artifact(load_config(FILE, ["--artifact", str(path)]))


def test_a_typed_part_that_an_artifact_sets_otherwise_is_refused(tmp_path):
    save_artifact(tmp_path / "found", "composition", {"parts.json": PARTS})
    typed = ["--artifact", str(tmp_path / "found"), "--verifier.class_path", "KeyedSampling"]
    same = with_artifact(load_config(FILE, [*typed, "--verifier.init_args.temperature", "0.3"]))
    assert same.get("verifier.init_args.temperature") == 0.3
    with pytest.raises(ConfigError, match=r"--verifier\.init_args\.temperature must be left out, because"):
        with_artifact(load_config(FILE, [*typed, "--verifier.init_args.temperature", "0.8"]))
