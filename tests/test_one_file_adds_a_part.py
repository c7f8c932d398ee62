"""One new file in its family's folder is a part: a configuration names it, and it is found, checked and run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import specexp

FILES = {
    "drafters/repeat_last.py": """
import numpy as np
from specexp.core.dialogue import Candidates
from specexp.core.contracts import Drafter


class RepeatLast(Drafter):
    @property
    def max_candidates(self):
        return 1

    def propose(self, context, request):
        return Candidates(request.tokens[request.rows][:, np.newaxis])
""",
    "builders/two_in_a_row.py": """
from specexp.builders.static_tree import StaticTree


class TwoInARow(StaticTree):
    def __init__(self):
        super().__init__([[0], [0, 0]])
""",
    "verifiers/second_best.py": """
from specexp.core.contracts import DeterministicVerifier


class SecondBest(DeterministicVerifier):
    def target_token(self, context, logits, position):
        return int(logits.topk(2).indices[1])
""",
    "controllers/every_other_step.py": """
from specexp.core.dialogue import Plan
from specexp.core.contracts import Controller


class EveryOtherStep(Controller):
    uses_seconds = False

    def plan(self, context):
        return Plan(max_depth=context.steps % 2)
""",
    "data/counting.py": """
from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows


class Counting(PromptSet):
    def load(self):
        return prompt_rows([PromptRow(str(n), "numbers", [f"{n} {n + 1}"]) for n in range(3)], where="Counting")
""",
    "data/tasks/spelling.py": """
from specexp.data.tasks.task import Check, Ending, Item, Task


class Spelling(Task):
    name, depth, paper_items, unparsable, value_ending = "Spelling", 2, 1, 0.0, Ending(("\\n",), 2)

    def load(self):
        return [Item("0", 0, "cat", ())]

    def thought_prompt(self, item, thoughts, last=False):
        return f"{item.problem} {' '.join(thoughts)}"

    def thought_ending(self, last=False):
        return Ending(("\\n",), 3)

    def value_prompt(self, item, thoughts):
        return f"{thoughts[-1]} is "

    def read_value(self, answer):
        return None

    def check(self, item, thoughts):
        return Check(False, "no spelling is checked")
""",
    "data/searches/first_thought.py": """
from specexp.data.searches.search import Search


class FirstThought(Search):
    thoughts = 1

    def max_expansions(self, depth):
        return depth - 1

    def grow(self, tree, levels):
        states = (tree.root,)
        for _ in range(levels):
            states = yield from self.expand(tree, states)
""",
    "scheduling/in_turns.py": """
from specexp.scheduling.strategies import SerialSpeculative


class InTurns(SerialSpeculative):
    pass
""",
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
from specexp.core.checked import Reference


class Sized(StaticTree):
    def __init__(self, size: Annotated[int, Reference("tree-size")] = 1):
        super().__init__([[rank] for rank in range(size)])
""",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with one more file in every family's folder."""
    root = tmp_path_factory.mktemp("copy")
    source = Path(specexp.__file__).parent.resolve()
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, root / "specexp", copy_function=os.symlink, ignore=skip)
    for name, text in FILES.items():
        (root / "specexp" / name).write_text(text)
    return root


# Commands of the copy, each as a person types it but in one process: torch is imported once. What they say comes back.
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
    """What each command of the copy says; none may fail."""
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
        "builder": "TwoInARow",
        "generation": {"max_new_tokens": 6},
        "baselines": ["engine"],
        "trainer": {"enable_progress_bar": False},
        "output": str(package / "runs"),
        "tracking": {"mode": "disabled"},
        **sections,
    }
    (package / f"{name}.yaml").write_text(yaml.safe_dump(content))


def test_what_one_file_adds_is_named_found_checked_and_run(package: Path, model_folder: str) -> None:
    lookup = {"class_path": "PromptLookup", "init_args": {"candidates": 2}}
    sized = {"class_path": "Sized", "init_args": {"size": "artifacts/size/best-tree"}}
    task = {"class_path": "TaskItems", "init_args": {"tasks": [{"class_path": "Spelling"}]}}
    study = {
        "n_trials": 1,
        "space": {"builder.init_args.size": {"type": "int", "low": 1, "high": 2}},
        "enqueue": [{"name": "two", "builder.init_args.size": 2}],
        "confirm": {"best": 1, "data": {"max_prompts": 1}},
        "export": {"to": "artifacts/size", "kind": "tree-size"},
    }
    counting = {"prompts": "Counting"}
    sections = {
        "parts": {"verifier": "SecondBest", "controller": "EveryOtherStep", "data": counting},
        "thoughts": {
            "execution": "InTurns",
            "data": {"prompts": task},
            "reasoning": {"search": "FirstThought"},
        },
        "sweep": {
            "sweep": study,
            "builder": "Sized",
            "drafter": lookup,
            "data": {**counting, "max_prompts": 1},
        },
        "taken": {"data": counting, "builder": sized, "drafter": lookup},
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

    assert {record["prompt_id"] for record in read("parts")} == {"0", "1", "2"}
    assert {record["category"] for record in read("thoughts")} == {"Spelling"}
    assert json.loads(exported["out"]) == {"nodes": 2}
    assert "dropped the tree's form" in exported["err"]
    assert "size: artifacts/size/best-tree" in (runs / "taken" / "config.yaml").read_text()
