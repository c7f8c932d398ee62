"""Wrong artifacts: whatever is wrong, loading says so in one sentence, and nothing foreign is imported or read.

A row is what is done to a whole artifact, hashes made right again where a forger would; the random changes of the same
kinds are in ``tests/artifacts/test_trust.py``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import made_artifacts as made
from helpers.small_models import FULL_ATTENTION, build

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import load_artifact

TREE, PARTS, MANIFEST = "tree.json", "parts.json", "artifact.json"


class Row(NamedTuple):
    """A wrong artifact: what is wrong, what was done to it, what must be said, and what kind it is."""

    name: str
    change: Callable[[Path], object]
    said: str
    kind: str = "static-tree"
    load: str = "{folder}"


def content(file: str, data: bytes, *, forged: bool = False) -> Callable[[Path], object]:
    """Other bytes; ``forged`` with hashes made right."""
    return lambda folder: made.rewrite(folder, file, data) if forged else (folder / file).write_bytes(data)


def fields(**changed: Any) -> Callable[[Path], object]:
    """Other fields of the manifest, its own hash made right."""

    def change(folder: Path) -> None:
        file = folder / MANIFEST
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))
        made.rehash(folder)

    return change


def parts(family: str, class_path: str, **init_args: Any) -> Callable[[Path], object]:
    """Another part in ``parts.json``."""

    def change(folder: Path) -> None:
        recorded = json.loads((folder / PARTS).read_text())
        made.rewrite(folder, PARTS, {**recorded, family: {"class_path": class_path, "init_args": init_args}})

    return change


def declared(name: str) -> Callable[[Path], object]:
    """One more payload in the manifest."""
    entry = {"sha256": "0" * 64, "bytes": 4}
    return lambda folder: fields(
        payloads={**json.loads((folder / MANIFEST).read_text())["payloads"], name: entry}
    )(folder)


def linked(name: str) -> Callable[[Path], object]:
    """A link to the same content elsewhere."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent.parent / "moved")
        (folder / name).symlink_to(folder.parent.parent / "moved")

    return change


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something that is no plain file."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def beside(name: str, text: str | None) -> Callable[[Path], object]:
    """Another alias file; None removes it."""
    return lambda folder: (
        (folder.parent / name).unlink() if text is None else (folder.parent / name).write_text(text)
    )


def sparse(folder: Path) -> None:
    with (folder / TREE).open("ab") as file:
        file.truncate(3 * 2**30)


def moved_version(folder: Path) -> None:
    folder.rename(folder.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent / "elsewhere")


def one_byte(file: str) -> Callable[[Path], object]:
    """One letter of a text changed."""
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes().replace(b"0", b"1", 1))


DEEP = b"[" * 70 + b"]" * 70
MANY = [
    list(map(int, f"{number:o}")) for length in range(1, 6) for number in range(8 ** (length - 1), 8**length)
]
FOREIGN = "an artifact imports nothing else, for its hashes do not tell who wrote it"
ROWS = [
    Row("a changed letter in the manifest", one_byte(MANIFEST), "artifact.json"),
    Row("half a manifest", lambda f: (f / MANIFEST).write_text('{"kind": "sta'), "artifact.json is not JSON"),
    Row("an empty manifest", content(MANIFEST, b""), "artifact.json is not JSON"),
    Row("a manifest of other bytes", content(MANIFEST, b"\xff\xfe\x00"), "artifact.json is not JSON"),
    Row("a list for a manifest", content(MANIFEST, b"[]"), "artifact.json must be an object, got []"),
    Row("a key given twice", content(MANIFEST, b'{"kind": "a", "kind": "b"}'), "key 'kind' is given twice"),
    Row("no number of JSON", content(TREE, b"[[NaN]]", forged=True), "NaN is no number of JSON"),
    Row("a changed letter in a payload", one_byte(TREE), "tree.json does not have the recorded sha256"),
    Row("half a payload", content(TREE, b"[[0],"), "it was changed or truncated"),
    Row("half a payload, forged", content(TREE, b"[[0],", forged=True), "tree.json is not JSON"),
    Row(
        "half a tensor, forged",
        content("matrix.safetensors", b"\x10\0\0\0\0\0\0\0{", forged=True),
        "matrix.safetensors is not a whole safetensors file",
        "adjacency-matrix",
    ),
    Row(
        "a header without end",
        content("matrix.safetensors", (2**62).to_bytes(8, "little") + b"{}", forged=True),
        "matrix.safetensors has a header of 4611686018427387904 bytes; at most",
        "adjacency-matrix",
    ),
    Row(
        "a manifest whose hash is another's", lambda f: one_name(f), "sha256 does not match the other fields"
    ),
    Row("a link to equal content", linked(TREE), "tree.json is a symbolic link; a plain file is expected"),
    Row("a linked manifest", linked(MANIFEST), "artifact.json is a symbolic link"),
    Row(
        "a linked version", moved_version, "is a symbolic link; a plain folder is expected", load="{folders}"
    ),
    Row("a pipe", instead(TREE, os.mkfifo), "tree.json cannot be read (no plain file)"),
    Row("a folder in place of a file", instead(TREE, Path.mkdir), "tree.json cannot be read"),
    Row("a missing payload", lambda f: (f / TREE).unlink(), "payload tree.json is missing"),
    Row("a missing manifest", lambda f: (f / MANIFEST).unlink(), "artifact.json is missing"),
    Row(
        "a module beside it",
        lambda f: (f / "payload.py").write_text("1"),
        "payload.py is not declared in artifact",
    ),
    Row(
        "a hidden file beside it", lambda f: (f / ".x").write_text("1"), ".x is not declared in artifact.json"
    ),
    Row("three gigabytes", sparse, "tree.json is 3221225472 bytes long"),
    Row("too deep", content(TREE, DEEP, forged=True), "nested deeper than 64 levels"),
    Row(
        "a tree of 5,000 nodes",
        content(TREE, json.dumps([[n] for n in range(5000)]).encode(), forged=True),
        "4096",
    ),
    Row(
        "a tree of 30,000 nodes in a composition",
        parts("builder", "StaticTree", rank_paths=MANY),
        "parts.json: builder: StaticTree was given 32767 nodes; at most 4096 are allowed",
        "composition",
    ),
    Row(
        "a payload above",
        declared("../../x.json"),
        "names '../../x.json'; a plain *.json or *.safetensors name",
    ),
    Row("a payload from the root", declared("/etc/passwd"), "names '/etc/passwd'"),
    Row("a pickle", declared("drafter.pkl"), "names 'drafter.pkl'; a plain *.json or *.safetensors name"),
    Row("a payload of another kind", declared("matrix.safetensors"), "which a static-tree does not hold"),
    Row(
        "no version of that name",
        beside("best.json", '{"version": "v9"}'),
        "version names v9",
        load="{folders}",
    ),
    Row("an alias that is no JSON", beside("best.json", "v1"), "best.json is not JSON", load="{folders}"),
    Row(
        "no best.json",
        beside("best.json", None),
        "best.json is missing; name one of latest, v1",
        load="{folders}",
    ),
    Row(
        "an alias that is not there",
        lambda f: None,
        "there is no such artifact folder",
        load="{folders}/beste",
    ),
    Row("a folder that is not there", lambda f: None, "there is no such artifact folder", load="nowhere"),
    Row(
        "a file in place of a folder",
        lambda f: None,
        "there is no such artifact folder",
        load="{folder}/tree.json",
    ),
    Row("an unknown kind", fields(kind="static-three"), "did you mean 'static-tree'"),
    Row("a later schema", fields(schema_version=2), "schema_version is 2; this specexp reads version 1"),
    Row(
        "another kind",
        fields(kind="thresholds"),
        "payloads has no 'thresholds.json', which a thresholds needs",
    ),
    Row(
        "two trees",
        content(TREE, b"[[0], [1]]", forged=True),
        "is not the tree of tree.json; both files must hold",
    ),
    Row(
        "another builder beside the tree",
        parts("builder", "Chain", length=2),
        "both files must hold the same one",
    ),
    Row(
        "a negative rank",
        content(TREE, b"[[-1]]", forged=True),
        "tree.json: 0.0 must be an integer >= 0, got -1",
    ),
    Row("a node without its parent", content(TREE, b"[[0, 1]]", forged=True), "[0] is missing"),
    Row("an unknown family", lambda f: made.rewrite(f, PARTS, {"draftr": None}), "did you mean 'drafter'"),
    Row(
        "thresholds given twice",
        parts("builder", "Chain"),
        "builder is recorded; its own payload",
        "thresholds",
    ),
    Row("another k than the matrix's", parts("drafter", "TokenRecycling", k=7), "k is 7", "adjacency-matrix"),
    Row("a foreign module", parts("drafter", "payload.D"), FOREIGN),
    Row("a function of the system", parts("drafter", "os.system", command="id"), FOREIGN),
    Row("a built-in function", parts("drafter", "builtins.eval"), FOREIGN),
    Row(
        "a foreign module inside a part",
        parts("drafter", "Union", drafters=[{"class_path": "payload.D"}]),
        FOREIGN,
    ),
    Row(
        "a file from the root",
        parts("drafter", "TokenRecycling", state="preloaded", matrix="/etc"),
        "a path in the artifact's folder or the working directory is allowed",
    ),
    Row("a reference to W&B without a name", lambda f: None, "wandb:", load="wandb:x"),
]


def one_name(folder: Path) -> None:
    file = folder / MANIFEST
    file.write_text(file.read_text().replace('"name": "static-tree"', '"name": "static-trea"'))


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_artifact(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.save(tmp_path, row.kind)
    row.change(folder)
    working = tmp_path / "working"
    working.mkdir()
    (working / "payload.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(working)
    monkeypatch.syspath_prepend(working)
    path = row.load.format(folder=folder, folders=folder.parent)
    with pytest.raises(ArtifactError) as caught:
        load_artifact(path)
    sentence = str(caught.value)
    assert row.said in sentence
    assert path in sentence
    assert "\n" not in sentence
    assert "payload" not in sys.modules


@pytest.mark.parametrize(
    ("given", "said"),
    [(("stdlib",), "'stdlib' is a str"), ((None,), "None is a NoneType"), (("model", "x"), "'x' is a str")],
    ids=["a name", "nothing", "a draft's name"],
)
def test_no_model(given: tuple[Any, ...], said: str, tmp_path: Path) -> None:
    model = build("Llama", {**FULL_ATTENTION["Llama"], "vocab_size": 40}).eval()
    artifact = load_artifact(made.save(tmp_path, "static-tree"))
    with pytest.raises(ValueError, match=f"a model was expected and {said}: load one with specexp.load_pair"):
        artifact.decoder(*(model if one == "model" else one for one in given))


@pytest.mark.parametrize("trust", [3, "my_package", [1], ["a b"]], ids=str)
def test_trust_in_nothing(trust: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"trust is .*; names of installed packages such as \('my_package',\)"
    ):
        load_artifact(made.save(tmp_path, "static-tree"), trust=trust)
