"""One new file adds a part of any kind, a prompt set, metric, runtime mode, artifact kind or export format.

A configuration names it, and it is found, checked and run.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import specexp

EXAMPLES = {
    "drafters/repeat_last.py": ("extending", "RepeatLast"),
    "builders/comb.py": ("families", "Comb"),
    "verifiers/never.py": ("families", "Never"),
    "controllers/every_second.py": ("families", "EverySecond"),
    "data/greetings.py": ("families", "Greetings"),
    "data/tasks/vowels.py": ("thoughts", "Vowels"),
    "data/searches/straight.py": ("families", "Straight"),
    "scheduling/pairs.py": ("families", "Pairs"),
}
"""Page and class of the examples that the documentation has."""
FILES = {
    "artifacts/kinds/tree_size.py": """
from specexp.artifacts.artifact import Artifact
from specexp.artifacts.parts import PARTS


class TreeSizeArtifact(Artifact):
    kind = "tree-size"
    required = {"size.json": int}

    @classmethod
    def payloads_of(cls, parts, attributes):
        return {"size.json": len(attributes["rank_paths"]), PARTS: dict(parts)}

    def read(self, payloads):
        self.value = payloads["size.json"]
""",
    "deploy/export/formats/node_flag.py": """
from specexp.deploy.export.export_format import ExportedFile, ExportFormat


class NodeFlag(ExportFormat):
    name = "node-flag"
    kinds = ("tree-size",)
    read_for = "an engine"

    def export(self, artifact):
        return ExportedFile({"nodes": artifact.value}, dropped="node-flag: dropped the tree's form")
""",
    "builders/sized.py": """
from typing import Annotated

from specexp.builders.static_tree import StaticTree
from specexp.base.checked import Reference


class Sized(StaticTree):
    def __init__(self, size: Annotated[int, Reference("tree-size")] = 1):
        super().__init__([[rank] for rank in range(size)])
""",
}
METRIC = '''

@metric("share", better="lower", counted=True)
def wasted_nodes(record: Any) -> Value:
    """Nodes fed to the target that were not accepted."""
    return Share(record.drafted_nodes - record.accepted_drafts, record.drafted_nodes)
'''
"""The end of ``bench/metrics.py``."""


def example(page: str, name: str) -> str:
    """Return the source of a page's class, with the imports that it uses."""
    text = (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    body = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))).body
    (made,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    used = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)}
    imports = [
        node
        for node in body
        if isinstance(node, ast.Import | ast.ImportFrom) and used & {one.asname or one.name for one in node.names}
    ]
    return "\n".join(ast.unparse(node) for node in [*imports, made])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with one more file in every family's folder."""
    root = tmp_path_factory.mktemp("copy")
    source = Path(specexp.__file__).parent.resolve()
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, root / "specexp", copy_function=os.symlink, ignore=skip)
    examples = {name: example(*found) for name, found in EXAMPLES.items()}
    for name, text in (FILES | examples).items():
        (root / "specexp" / name).write_text(text)
    metrics = root / "specexp" / "bench" / "metrics.py"
    known = metrics.read_text()
    metrics.unlink()  # a link to the project's own file
    metrics.write_text(known + METRIC)
    return root


# Runs commands of the copy in one process, so that torch is imported once, and returns their output.
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from specexp.__main__ import main

said = []
for command, *arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([command, *arguments])
    said.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
print(json.dumps(said))
"""


def call(package: Path, *commands: list[str]) -> list[dict[str, str]]:
    """Return the output of each command of the copy; none may fail."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    program = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(program, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert [one["code"] for one in said] == [0] * len(commands), said
    return said


def write(package: Path, model_folder: str, name: str, **sections: object) -> None:
    """Write the file of an experiment, which has its name."""
    content = {
        "name": name,
        "question": "Is it found?",
        "pair": {"target": model_folder, "target_dtype": "float32"},
        "drafter": "RepeatLast",
        "builder": "Chain",
        "generation": {"max_new_tokens": 6},
        "baselines": ["plain"],
        "trainer": {"enable_progress_bar": False},
        "output": str(package / "runs"),
        "tracking": {"mode": "disabled"},
        **sections,
    }
    (package / f"{name}.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.slow
def test_one_file_adds_a_part_of_any_kind(package: Path, model_folder: str) -> None:
    lookup = {"class_path": "PromptLookup", "init_args": {"candidates": 2}}
    sized = {"class_path": "Sized", "init_args": {"size": "artifacts/size/best-tree"}}
    task = {"class_path": "TaskItems", "init_args": {"tasks": [{"class_path": "Vowels"}]}}
    study = {
        "n_trials": 1,
        "space": {"builder.init_args.size": {"type": "int", "low": 1, "high": 2}},
        "enqueue": [{"name": "two", "builder.init_args.size": 2}],
        "confirm": {"best": 1, "data": {"max_prompts": 1}},
        "export": {"to": "artifacts/size", "kind": "tree-size"},
    }
    greetings = {"prompts": "Greetings"}
    sections = {
        "parts": {
            "pair": {"target": model_folder, "target_dtype": "float32"},
            "verifier": "Never",
            "controller": "EverySecond",
            "data": greetings,
        },
        "thoughts": {
            "execution": "Pairs",
            "builder": "Comb",
            "drafter": lookup,
            "data": {"prompts": task},
            "reasoning": {"search": "Straight"},
        },
        "sweep": {"sweep": study, "builder": "Sized", "drafter": lookup, "data": {**greetings, "max_prompts": 1}},
        "taken": {"data": greetings, "builder": sized, "drafter": lookup},
    }
    for name, content in sections.items():
        write(package, model_folder, name, **content)
    *_, exported, _ = call(
        package,
        ["run", "parts.yaml"],
        ["run", "thoughts.yaml"],
        ["sweep", "sweep.yaml"],
        ["export", "artifacts/size/best-tree", "--to", "node-flag"],
        ["run", "taken.yaml"],
    )
    runs = package / "runs"

    def read(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (runs / name / "records.jsonl").read_text().splitlines()]

    assert {record["prompt_id"] for record in read("parts")} == {"0", "1"}
    assert any("wasted_nodes" in file.read_text() for file in (runs / "parts").glob("*.csv"))
    assert {record["category"] for record in read("thoughts")} == {"Vowels"}
    assert json.loads(exported["out"]) == {"nodes": 2}
    assert "dropped the tree's form" in exported["err"]
    assert "size: artifacts/size/best-tree" in (runs / "taken" / "config.yaml").read_text()
