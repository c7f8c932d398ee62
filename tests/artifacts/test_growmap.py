"""Growmaps and SAMD trees: exported whole or with what is lost said, and read back or refused by field."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.artifacts import Artifact, ArtifactError
from specexp.artifacts.files.growmap import read as read_growmap
from specexp.artifacts.plugins import class_in
from specexp.builders import KConfig, Sequoia, TokenRecyclingTree
from specexp.config.artifacts import save_artifact
from specexp.deploy.export import formats
from specexp.deploy.export.command import export, main
from specexp.deploy.export.export_format import ExportFormat

PATHS = [[0], [1], [0, 0], [1, 0], [1, 1], [1, 1, 0]]
GROWMAP: dict[str, Any] = {
    "roots": [[0], [1, 2], [3, 4, 5], [6]],
    "branches": [[2], [1, 2], [0, 0, 1], [0]],
    "Successors": [[1, 2], [3], [4, 5], [], [], [6], []],
    "mask": [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 1, 1],
    ],
    "depth": [0, 1, 1, 2, 2, 2, 3],
    "size": 7,
}


def saved(folder: Path, paths: list[list[int]], drafter: str | None = None) -> Artifact:
    parts = {"parts.json": {"drafter": {"class_path": drafter}}} if drafter else {}
    return save_artifact(folder / "tree", "static-tree", {"tree.json": paths, **parts})


def written(folder: Path, content: Any) -> Path:
    file = folder / "growmap.json"
    file.write_text(json.dumps(content))
    return file


def test_a_growmap_has_all_six_fields(tmp_path: Path) -> None:
    content, dropped = export(saved(tmp_path, PATHS).folder, "growmap")
    assert content == GROWMAP
    assert dropped == ""
    assert read_growmap(written(tmp_path, content)) == PATHS


def test_samd_lists_the_children_of_every_row(tmp_path: Path) -> None:
    content, dropped = export(saved(tmp_path, PATHS).folder, "samd")
    assert content == {"tree_adj": {"0": [1, 2], "1": [3], "2": [4, 5], "3": [], "4": [], "5": [6], "6": []}}
    assert dropped == ""


@pytest.mark.parametrize(
    "tree",
    [TokenRecyclingTree(), KConfig([4, 2, 1]), Sequoia(128, [0.5, 0.2, 0.1, 0.2])],
    ids=["token-recycling", "k-config", "sequoia"],
)
def test_the_command_writes_what_the_builder_reads(tmp_path: Path, tree: Any) -> None:
    file = tmp_path / "growmap.json"
    artifact = saved(tmp_path, tree.rank_paths)
    assert main([str(artifact.folder), "--to", "growmap", "--output", str(file)]) == 0
    assert Sequoia(growmap=read_growmap(file)).rank_paths == tree.rank_paths


@examples(30)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=25))
def test_every_tree_without_gaps_comes_back(
    tmp_path_factory: pytest.TempPathFactory, choices: list[int]
) -> None:
    """Node by node below any earlier one, as its next child."""
    paths: list[tuple[int, ...]] = [()]
    for choice in choices:
        parent = paths[choice % len(paths)]
        paths.append((*parent, sum(path[:-1] == parent for path in paths if path)))
    ordered = [list(path) for path in sorted(paths[1:], key=lambda path: (len(path), path))]
    folder = tmp_path_factory.mktemp("tree")
    content, dropped = export(saved(folder, ordered).folder, "growmap")
    assert dropped == ""
    assert read_growmap(written(folder, content)) == ordered


@pytest.mark.parametrize("name", ["growmap", "samd"])
def test_what_the_format_cannot_say_is_dropped_and_named(tmp_path: Path, name: str) -> None:
    paths = [[0], [2], [3], [0, 0], [0, 2], [2, 0], [0, 0, 0]]
    content, dropped = export(saved(tmp_path, paths, "TokenRecycling").folder, name)
    assert f"{name}: dropped 4 of 7 nodes" in dropped
    assert "the TokenRecycling drafter" in dropped
    if name == "growmap":
        assert read_growmap(written(tmp_path, content)) == [[0], [0, 0], [0, 0, 0]]
    else:
        assert content == {"tree_adj": {"0": [1], "1": [2], "2": [3], "3": []}}


@pytest.mark.parametrize("name", ["growmap", "samd"])
def test_a_tree_without_the_best_candidate_cannot_be_said_at_all(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match=f"cannot be exported to {name}.*leaves out the root's best"):
        export(saved(tmp_path, [[1], [1, 0]]).folder, name)


def test_umbrellas_chains_are_read(tmp_path: Path) -> None:
    """Two chains, one beside the other, with a key of its writer's."""
    growmap = {
        "roots": [[0], [1, 2], [3, 4]],
        "branches": [[2], [1, 1], [0, 0]],
        "Successors": [[1, 2], [3], [4], [], []],
        "mask": [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]],
        "depth": [0, 1, 1, 2, 2],
        "size": 5,
        "writer": "somebody",
    }
    assert read_growmap(written(tmp_path, growmap)) == [[0], [1], [0, 0], [1, 0]]


MASK = GROWMAP["mask"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({field: None}, f"no field '{field}'") for field in GROWMAP),
        ({"size": "7"}, "size is '7'; an integer from 2"),
        ({"size": True}, "size is True"),
        ({"size": 1}, "size is 1; an integer from 2"),
        ({"size": 6}, r"Successors is 7 entries; a list of 6"),
        ({"Successors": {}}, r"Successors is {}; a list of 7"),
        ({"Successors": GROWMAP["Successors"][:-1]}, "Successors is 6 entries"),
        ({"Successors": [[1, 2], 3, [4, 5], [], [], [6], []]}, r"Successors\[1\] is 3; a list of rows"),
        (
            {"Successors": [[1, 2], [3], [5, 4], [], [], [6], []]},
            r"Successors\[2\]\[0\] is 5; .*row 4 is expected",
        ),
        ({"Successors": [[1, 2], [3], [4, 4], [], [], [6], []]}, r"Successors\[2\]\[1\] is 4; .*row 5"),
        ({"Successors": [[1, 2], [3], [4, 5], [], [], [], [6]]}, r"Successors\[6\]\[0\] is 6; .*no child"),
        ({"Successors": [[1, 2], [3], [4, 5], [], [], [6], [7]]}, r"Successors\[6\]\[0\] is 7; .*no child"),
        ({"Successors": [[1, 2], [3], [4, 5], [], [], ["6"], []]}, r"Successors\[5\]\[0\] is '6'"),
        (
            {"Successors": [[1, 2], [3], [4, 5], [], [], [], []]},
            "Successors names 5 children; 6 are expected",
        ),
        ({"roots": [[0], [1, 2], [3, 4], [5, 6]]}, r"roots\[2\] has 2 entries; Successors makes it 3"),
        ({"roots": [[0], [2, 1], [3, 4, 5], [6]]}, r"roots\[1\]\[0\] is 2; Successors makes it 1"),
        ({"roots": 4}, "roots is 4; Successors makes it a list of 4"),
        ({"branches": [[2], [2, 1], [0, 0, 1], [0]]}, r"branches\[1\]\[0\] is 2; Successors makes it 1"),
        ({"branches": [[2], [1, 2], [0, 0, 1]]}, "branches has 3 entries; Successors makes it 4"),
        ({"depth": [0, 1, 1, 2, 2, 2, 2]}, r"depth\[6\] is 2; Successors makes it 3"),
        ({"depth": [0, 1, 1, 2, 2, 2]}, "depth has 6 entries"),
        ({"mask": MASK[:-1]}, "mask has 6 entries; Successors makes it 7"),
        ({"mask": [*MASK[:-1], [1, 0, 1, 0, 0, 0, 1]]}, r"mask\[6\]\[5\] is 0; Successors makes it 1"),
        ({"mask": [*MASK[:-1], None]}, r"mask\[6\] is None; Successors makes it a list of 7"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    fields = {**GROWMAP, **change}
    if list(change.values()) == [None]:
        del fields[next(iter(change))]
    with pytest.raises(ArtifactError, match=rf"^growmap: .*growmap\.json:? .*{message}") as refused:
        read_growmap(written(tmp_path, fields))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is missing"):
        read_growmap(tmp_path / "none.json")
    whole = json.dumps(GROWMAP)
    file = tmp_path / "growmap.json"
    for cut in range(0, len(whole), 17):
        file.write_text(whole[:cut])
        with pytest.raises(ArtifactError, match="is not JSON"):
            read_growmap(file)
    with pytest.raises(ArtifactError, match="holds no object"):
        read_growmap(written(tmp_path, [1, 2]))


def test_a_torch_file_is_never_loaded(tmp_path: Path) -> None:
    file = tmp_path / "tree.pt"
    file.write_bytes(b"whatever")
    with pytest.raises(ArtifactError, match=r"tree\.pt is a torch or pickle file.*never loaded.*JSON"):
        read_growmap(file)


@pytest.mark.parametrize("name", ["growmap", "samd"])
def test_only_trees_are_exported(name: str, matrix: Artifact) -> None:
    assert class_in(formats, name, ExportFormat).kinds == ("static-tree", "composition")
    with pytest.raises(ArtifactError, match=f"'adjacency-matrix' cannot be exported to {name}"):
        export(matrix.folder, name)
