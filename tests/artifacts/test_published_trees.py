"""The file of a tree of Medusa, EAGLE, SAMD or Sequoia may be given in place of a static tree."""

import json

import pytest

from specexp.artifacts import ArtifactError, value_of
from specexp.builders import StaticTree
from specexp.config import load_config

PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
CHILDREN = [[1, 2], [3, 4], [5], [6], [], [], []]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("medusa_choices.py", f"medusa_choices = {PATHS}\n"),
        ("choices.json", json.dumps(PATHS)),
        ("samd.json", json.dumps({"tree_adj": {str(row): below for row, below in enumerate(CHILDREN)}})),
        ("growmap.json", json.dumps({"size": 7, "Successors": CHILDREN, "depth": [0, 1, 1, 2, 2, 2, 3]})),
    ],
)
def test_a_published_tree_is_read(name, content, tmp_path):
    file = tmp_path / name
    file.write_text(content)
    assert value_of("static-tree", file) == PATHS


def test_an_experiment_names_the_file(tmp_path, experiment):
    file = tmp_path / "choices.py"
    file.write_text(f"# of another project\nmc_sim = {PATHS}\n")
    config = load_config(experiment(builder={"class_path": "StaticTree", "init_args": {"rank_paths": str(file)}}))
    builder = config.builder
    assert isinstance(builder, StaticTree)
    assert builder.rank_paths == PATHS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tree.pt", "whatever", r"tree\.pt is a torch or pickle file, which is not loaded.*JSON"),
        ("a.py", "a = [[0]]\nb = [[1]]", "is not JSON"),
        ("a.py", "import os", "is not JSON"),
        ("a.py", "a = [[0], [os.remove('x')]]", "is not JSON"),
        ("a.json", "[[0], [-1]]", "1.0 must be >= 0, got -1"),
        ("a.json", "[[0], [0, 0, 0]]", "0, 0"),
        ("a.json", "[]", "must not be empty"),
        ("a.json", '{"tree": []}', "must be a list of rank paths, a growmap, or an object with tree_adj"),
        ("a.json", '{"tree_adj": {"0": [1], "1": [0]}}', "tree_adj.1 names row 0 a second time"),
        ("a.json", '{"tree_adj": {"0": [1], "5": [6], "7": []}}', "has 3 rows, but only 2 are connected to row 0"),
        ("a.json", '{"Successors": [[1], 2]}', r"Successors\.1 must be a list, got 2"),
        ("a.json", json.dumps([[rank] for rank in range(5000)]), "lists 5000 nodes; at most 4096"),
    ],
)
def test_any_other_file_is_refused_and_no_code_runs(name, content, message, tmp_path):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ArtifactError, match=message):
        value_of("static-tree", file)
