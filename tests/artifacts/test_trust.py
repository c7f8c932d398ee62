"""No foreign code runs: limits of the imports, paths and sizes of a stranger's artifact."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import made_artifacts as made
from helpers.made_artifacts import places, refuses, replaced

import specexp
from specexp.artifacts import ArtifactError, trust as trusted
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.deploy.export.command import main as export

PAYLOAD = "from pathlib import Path\nPath('ran').write_text('')\nfrom specexp.drafters import PromptLookup\n"
PACKAGE = "from specexp.drafters import PromptLookup\n\n\nclass Mine(PromptLookup):\n    pass\n"


def run(script: str, folder: Path) -> str:
    """Return the output of a script that runs in a user's folder, which ``-c`` puts on the path."""
    environment = {**os.environ, "PYTHONPATH": str(Path(specexp.__file__).parent.parent)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loading_imports_specexp_and_its_dependencies_alone(tmp_path):
    folders = {kind: str(made.save(tmp_path, kind)) for kind in made.KINDS}
    script = f"""
import sys, site, sysconfig
import specexp
for kind, folder in {folders!r}.items():
    artifact = specexp.load_artifact(folder)
    [getattr(artifact, name) for name in ("drafter", "builder", "verifier") if artifact.recorded.get(name)]
    known = (*site.getsitepackages(), sysconfig.get_path("stdlib"), sys.base_prefix, *specexp.__path__)
    foreign = [name for name, module in list(sys.modules.items())
               if getattr(module, "__file__", None) and not module.__file__.startswith(known)
               and name not in ("__main__", "torch.ops", "torch.classes")]
    print(kind, foreign)
"""
    assert run(script, tmp_path).splitlines() == [f"{kind} []" for kind in made.KINDS]


@pytest.mark.variants(1)
@pytest.mark.parametrize("beside", [True, False], ids=["beside the artifact", "in the working directory"])
def test_a_payload_within_reach_of_an_import_runs_no_line(tmp_path, beside):
    folder = made.save(tmp_path, "composition")
    made.rewrite(folder, "parts.json", {**made.PARTS, "drafter": {"class_path": "payload.D"}})
    place = folder if beside else tmp_path
    (place / "payload.py").write_text(PAYLOAD)
    script = f"""
import sys
import specexp
for trust in ((), ("payload",)):
    try:
        specexp.load_artifact({str(folder)!r}, trust=trust)
    except ValueError as error:
        print(type(error).__name__, "payload" in sys.modules, error)
"""
    lines = run(script, place).splitlines()
    assert [line.split()[:2] for line in lines] == [["ArtifactError", "False"]] * 2
    assert not (place / "ran").exists()


FOREIGN = {"class_path": "payload.D"}


WITH_PARTS = [kind for kind in made.KINDS if kind != "latency-profile"]
OTHERS = ["os.system", "builtins.eval", "specexp.commands.run.main"]


@pytest.mark.parametrize(
    ("kind", "foreign"), [*((kind, "payload.D") for kind in WITH_PARTS), *(("composition", one) for one in OTHERS)]
)
def test_a_foreign_class_is_refused_in_every_kind(tmp_path, kind, foreign):
    folder = made.save(tmp_path, kind)
    parts = json.loads((folder / "parts.json").read_text())
    made.rewrite(folder, "parts.json", {**parts, "verifier": {"class_path": foreign}})
    refuses(folder, f"parts.json: verifier.class_path: '{foreign}' is not a Verifier of specexp")


@pytest.mark.parametrize(
    ("family", "name", "arguments"),
    [
        ("drafter", "PhraseCache", {"drafter": FOREIGN}),
        ("drafter", "Union", {"drafters": ["PromptLookup", "payload.D"]}),
        ("builder", "Choice", {"builders": [FOREIGN]}),
        ("builder", "Graft", {"builder": "payload.D"}),
        ("controller", "RuleBandit", {"controllers": ["Fixed", FOREIGN]}),
        ("execution", "Scheduled", {"policy": FOREIGN}),
    ],
)
def test_a_foreign_class_inside_a_part_is_refused(tmp_path, family, name, arguments, monkeypatch):
    (tmp_path / "payload.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    part = {"class_path": name, "init_args": arguments}
    folder = made.save(tmp_path, "schedule")
    if family == "execution":
        made.rewrite(folder, "schedule.json", part)
    else:
        made.rewrite(folder, "parts.json", {**made.PARTS, family: part})
    refuses(folder, rf"{family}\.init_args\..*: 'payload\.D' is not a .* of specexp")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder on the path, with a package in it."""
    place = tmp_path / "site"
    (place / "my_parts").mkdir(parents=True)
    (place / "my_parts" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(place)
    yield place
    sys.modules.pop("my_parts", None)


def mine(tmp_path: Path) -> Path:
    folder = made.save(tmp_path, "composition")
    drafter = {"class_path": "my_parts.Mine", "init_args": {"max_ngram": 2}}
    made.rewrite(folder, "parts.json", {**made.PARTS, "drafter": drafter})
    return folder


def test_a_trusted_package_must_be_installed(tmp_path, package, monkeypatch, capsys):
    folder = mine(tmp_path)
    refuses(folder, r"load it with trust=\('my_parts',\) or --trust my_parts")
    with pytest.raises(ArtifactError, match="is trusted but not installed"):
        load_artifact(folder, trust=("my_parts",))
    assert export([str(folder), "--to", "hf-generation-config"]) == 2
    assert "--trust my_parts" in capsys.readouterr().err
    assert "my_parts" not in sys.modules

    monkeypatch.setattr(trusted, "site_folders", lambda: [package])
    with pytest.raises(ArtifactError, match="is not a Drafter of specexp"):
        load_artifact(folder, trust=("numpy",))
    assert type(load_artifact(folder, trust=("my_parts",)).drafter).__name__ == "Mine"
    refuses(folder, "is not a Drafter of specexp")  # trust lasts for one call, imported or not


@pytest.mark.parametrize("first", ["", "here"], ids=["the working directory", "another folder of the path"])
def test_a_package_that_hides_the_installed_one_of_its_name_is_not_installed(tmp_path, package, monkeypatch, first):
    folder = mine(tmp_path)
    monkeypatch.setattr(trusted, "site_folders", lambda: [package])
    shutil.copytree(package / "my_parts", tmp_path / "here" / "my_parts")
    if not first:  # as python -c and python -m do
        monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(first and tmp_path / first)
    with pytest.raises(ArtifactError, match="is trusted but not installed"):
        load_artifact(folder, trust=("my_parts",))
    assert "my_parts" not in sys.modules


def test_a_study_may_record_a_part_that_it_runs(tmp_path, package):
    import my_parts

    parts = {**made.PARTS, "drafter": {"class_path": "my_parts.Mine"}}
    artifact = save_artifact(tmp_path / "a", "composition", {"parts.json": parts})
    assert type(artifact.drafter) is my_parts.Mine
    refuses(artifact.folder, "is not a Drafter of specexp")


@pytest.mark.parametrize("wrong", ["package", ("a.b",), ("",)])
def test_trust_is_a_list_of_packages(tmp_path, wrong):
    with pytest.raises(ArtifactError, match="must be installed packages"):
        load_artifact(made.save(tmp_path, "composition"), trust=wrong)


@pytest.mark.parametrize("path", ["/etc", "../../x", "wandb:a/b/c:best", "~/x\0"])
def test_a_path_outside_the_artifact_is_refused(tmp_path, path):
    folder = made.save(tmp_path, "composition")
    drafter = {"class_path": "TokenRecycling", "init_args": {"state": "preloaded", "matrix": path}}
    nested = {"class_path": "PhraseCache", "init_args": {"drafter": drafter}}
    made.rewrite(folder, "parts.json", {**made.PARTS, "drafter": nested})
    refuses(folder, r"drafter\.init_args\.drafter\.init_args\.matrix must be a path in the artifact's folder")


def refer_to_itself(folder: Path) -> None:
    builder = {"class_path": "StaticTree", "init_args": {"rank_paths": str(folder)}}
    made.rewrite(folder, "parts.json", {**made.PARTS, "builder": builder})


def become_a_pipe(folder: Path) -> None:
    (folder / "tree.json").unlink()
    os.mkfifo(folder / "tree.json")


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("composition", refer_to_itself, "kind must be 'static-tree' here"),
        ("static-tree", lambda folder: (folder / "payload.py").touch(), r"payload\.py is not declared in"),
        ("static-tree", lambda folder: (folder / "__pycache__").mkdir(), "__pycache__ is not declared"),
        ("static-tree", become_a_pipe, "not a plain file"),
        ("static-tree", lambda folder: made.rewrite(folder, "tree.json", [[0], [0, 0]]), "builder is not the tree of"),
    ],
)  # fmt: skip
def test_a_changed_folder_is_refused(tmp_path, kind, change, sentence):
    folder = made.save(tmp_path, kind)
    change(folder)
    refuses(folder, sentence)


@pytest.mark.parametrize("file", ["tree.json", "artifact.json"])
def test_a_link_is_refused_even_to_the_same_content(tmp_path, file):
    folder = made.save(tmp_path, "static-tree")
    (folder / file).rename(tmp_path / file)
    (folder / file).symlink_to(tmp_path / file)
    refuses(folder, rf"{file} is a symbolic link")


def test_a_version_that_is_a_link_is_refused(tmp_path):
    folder = made.save(tmp_path, "static-tree")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="is a symbolic link"):
        load_artifact(folder.parent / "best")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["static-tree", "composition"])
def test_a_tree_of_too_many_nodes_is_refused_when_loaded(tmp_path, kind):
    folder = made.save(tmp_path, kind)
    paths = [[rank] for rank in range(100_000)]
    builder = {"class_path": "StaticTree", "init_args": {"rank_paths": paths}}
    made.rewrite(folder, "parts.json", {**made.PARTS, "builder": builder})
    if kind == "static-tree":
        made.rewrite(folder, "tree.json", paths)
    refuses(folder, "100000 nodes; at most 4096|at most 4096 rank paths, got 100000")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[" * 1_000_000, "is nested too deeply"),
        (b'"\\' + b'\\"' * 1_000_000, "is not JSON"),
        (b'{"a": 1, "a": 2}', "key 'a' is given twice"),
        (b"[NaN]", "is not JSON"),
        (b"[" + b"1" * 10_000 + b"]", "is not JSON"),
    ],
)
def test_json_that_would_explode_is_refused_at_once(tmp_path, content, sentence):
    folder = made.save(tmp_path, "static-tree")
    made.rewrite(folder, "tree.json", content)
    start = time.process_time()
    refuses(folder, sentence)
    assert time.process_time() - start < 10


def test_a_huge_payload_is_refused_before_it_is_read(tmp_path):
    folder = made.save(tmp_path, "adjacency-matrix")
    size = 3 * 2**30
    with (folder / "matrix.safetensors").open("wb") as file:
        file.truncate(size)  # a hole: it takes no room on the disk
    start = time.process_time()
    refuses(folder, f"{size} bytes")
    fields = json.loads((folder / "artifact.json").read_text())
    fields["payloads"]["matrix.safetensors"]["bytes"] = size
    (folder / "artifact.json").write_text(json.dumps(fields))
    refuses(folder, rf"bytes must be <= \d+, got {size}")
    (folder / "artifact.json").write_bytes(b" " * 2**24)
    refuses(folder, f"artifact.json has {2**24} bytes")
    assert time.process_time() - start < 10


def test_tensors_without_content_take_no_room(tmp_path):
    shapes = {"counts": [0], "keys": [0], "phrases": [0, 2**40], "uses": [0]}
    tensors = {name: {"dtype": "I32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps(tensors).encode()
    folder = made.save(tmp_path, "phrase-cache")
    made.rewrite(folder, "phrases.safetensors", len(header).to_bytes(8, "little") + header)
    refuses(folder, "at most 64 columns")
    made.rewrite(folder, "phrases.safetensors", (2**62).to_bytes(8, "little") + header)
    refuses(folder, "a header of")


# mutated artifacts

UNTOUCHED = ("payload", "antigravity", "turtle", "this", "turtledemo", "idlelib")
DEEP: Any = []
for _ in range(70):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, -1, 0, 3, 2**31, 2**70, 1e308, -0.5, "", "a\nb\x1b[2J", "x" * 10_000, [], {}, [[0], [1]], DEEP,
    "payload.D", "this.Zen", "../../x", "/etc/passwd", "wandb:a/b/c:best", FOREIGN, {"artifact": "/etc"},
    {"class_path": "antigravity.X"},
    {"class_path": "os.system", "init_args": {"command": "x"}},
    {"class_path": "Union", "init_args": {"drafters": [FOREIGN]}},
    {"class_path": "PhraseCache", "init_args": {"state": "preloaded", "phrases": "/etc"}},
    {"class_path": "StaticTree", "init_args": {"rank_paths": "../.."}},
    {"class_path": "KConfig", "init_args": {"widths": [9] * 5000}},
]  # fmt: skip
_opened: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


def change_bytes(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 20])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    file.write_bytes(data if chance.random() < 0.7 else data[: chance.randrange(len(data))])


def change_value(file: Path, chance: random.Random) -> None:
    """Replace a value of a JSON file, or drop a key."""
    content = json.loads(file.read_text())
    if isinstance(content, dict) and chance.random() < 0.3:
        content.pop(chance.choice(list(content)))
    else:
        content = replaced(content, chance.choice(places(content)), chance.choice(VALUES))
    file.write_text(json.dumps(content))


def change_file(file: Path, chance: random.Random) -> None:
    """Add a file, or put another kind of file, or a huge one, in its place."""
    kind = chance.choice(["extra", "link", "folder", "big", "pipe"])
    if kind == "extra":
        file.with_name("payload.py").write_text("raise SystemExit('ran')\n")
    elif kind == "big":
        with file.open("ab") as stream:
            stream.truncate(2**31)
    else:
        moved = file.rename(file.parents[1] / "moved")
        {"link": lambda: file.symlink_to(moved), "folder": file.mkdir, "pipe": lambda: os.mkfifo(file)}[kind]()


def mutate(folder: Path, chance: random.Random) -> str:
    """Change an artifact; three times of four its hashes are made right again, as far as it has any."""
    file = chance.choice(sorted(folder.iterdir()))
    change = chance.choice([change_bytes, change_value, change_value, change_file])
    if change is change_value:
        file = chance.choice(sorted(folder.glob("*.json")))
    change(file, chance)
    if change is change_file or chance.random() < 0.25:
        return change.__name__
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # a manifest that names no payloads
        made.rehash(folder)
    return f"forged {change.__name__}"


def test_mutated_artifacts_do_no_harm(tmp_path, monkeypatch):
    """Each is loaded or refused by an ArtifactError; no foreign module is imported and no file outside is opened."""
    global _opened
    sys.addaudithook(_watch)
    whole = {kind: made.save(tmp_path / "whole", kind) for kind in made.KINDS}
    loaded = {kind: load_artifact(folder) for kind, folder in whole.items()}
    sound = {kind: (artifact.provenance, artifact.recorded) for kind, artifact in loaded.items()}
    (working := tmp_path / "working").mkdir()
    (working / "payload.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(working)
    monkeypatch.syspath_prepend(working)
    assert not [name for name in UNTOUCHED if name in sys.modules]
    before = set(sys.modules)
    known = (sys.prefix, sys.base_prefix, str(Path(specexp.__file__).parent), "/dev/null", "/proc")
    refused = []
    for seed in range(200):
        chance = random.Random(seed)
        kind = chance.choice(made.KINDS)
        folder = tmp_path / f"m{seed}" / "v1"
        shutil.copytree(whole[kind], folder)
        way = mutate(folder, chance)
        _opened, start = [], time.process_time()
        try:
            artifact = load_artifact(folder)
            if kind != "latency-profile":
                _ = artifact.parts
            assert way != "change_bytes" or (artifact.provenance, artifact.recorded) == sound[kind]
        except ArtifactError as error:
            refused.append(str(error))
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {kind}, {way}: {type(error).__name__}: {error}") from error
        finally:
            opened, _opened = _opened, None
        assert time.process_time() - start < 10, (seed, kind, way)
        assert not [path for path in opened if not path.startswith((str(folder), *known))], (seed, kind, way)
        shutil.rmtree(folder.parent)
    assert len(refused) > 120
    assert all(map(str.isprintable, refused))
    assert sorted(path.name for path in working.iterdir()) == ["payload.py"]
    assert not [name for name in UNTOUCHED if name in sys.modules]
    files = {name: getattr(sys.modules[name], "__file__", None) for name in sys.modules.keys() - before}
    assert not {name: file for name, file in files.items() if file and not file.startswith(known)}
