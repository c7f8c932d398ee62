"""Arguments that a configuration gives by reference, for specexp's parts and foreign ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specexp.config import ConfigError, build_parts, load_config
from specexp.config.artifacts import save_artifact
from specexp.drafters import TokenRecycling

FOREIGN = """
from typing import Annotated

from specexp.core.checked import Reference
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
