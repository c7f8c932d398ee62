"""Trees that other projects publish stand where a static tree does: Medusa, EAGLE, SAMD, growmaps; and back again."""

import json

import pytest

from specexp.artifacts import ArtifactError, value_of
from specexp.builders import StaticTree
from specexp.config import build_builder, load_config
from specexp.config.artifacts import save_artifact
from specexp.deploy.export.command import as_text, export

PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
NAMES = {"medusa": "choices.py", "rank-paths": "choices.json", "samd": "samd.json", "growmap": "growmap.json"}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_exported_is_read_again(name, tmp_path) -> None:
    artifact = save_artifact(tmp_path / "tree", "static-tree", {"tree.json": PATHS})
    file = tmp_path / NAMES[name]
    file.write_text(as_text(export(artifact.folder, name)[0]))
    assert value_of("static-tree", file) == PATHS
    assert value_of("static-tree", artifact.folder) == PATHS


def test_an_experiment_names_the_file(tmp_path, experiment) -> None:
    file = tmp_path / "choices.py"
    file.write_text(f"# of another project\nmc_sim = {PATHS}\n")
    config = load_config(
        experiment(builder={"class_path": "StaticTree", "init_args": {"rank_paths": str(file)}})
    )
    builder = build_builder(config)
    assert isinstance(builder, StaticTree)
    assert builder.rank_paths == PATHS


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.py", "a = [[0]]\nb = [[1]]", "gives lists to a, b; keep exactly one"),
        ("a.py", "import os", "gives lists to nothing"),
        ("a.py", "a = [[0], [os.remove('x')]]", r"is no Python file of plain lists \(ValueError\)"),
        ("a.py", "a = [[0]", r"is no Python file of plain lists \(SyntaxError\)"),
        ("a.json", "[[0], [-1]]", "1.0 is -1"),
        ("a.json", "[[0], [0, 0, 0]]", "0, 0"),
        ("a.json", "[]", "at least 1 item"),
        ("a.json", '{"tree": []}', "is no tree; a list of rank paths, a growmap, or an object with tree_adj"),
        (
            "a.json",
            json.dumps({"tree_adj": {"0": [1], "1": [0]}}),
            "tree_adj.1 names row 0, which is in the tree",
        ),
        (
            "a.json",
            json.dumps({"tree_adj": {"0": [1], "5": [6], "7": []}}),
            "has 3 rows, and 2 hang from row 0",
        ),
        ("a.json", json.dumps([[rank] for rank in range(5000)]), "lists 5000 nodes; at most 4096"),
    ],
)
def test_what_is_no_tree_is_refused_and_nothing_runs(name, content, said, tmp_path) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ArtifactError, match=said):
        value_of("static-tree", file)
