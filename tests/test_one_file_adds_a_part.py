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
from specexp.core.parts import Candidates, Drafter


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
from specexp.core.parts import DeterministicVerifier


class SecondBest(DeterministicVerifier):
    def target_token(self, context, logits, position):
        return int(logits.topk(2).indices[1])
""",
    "controllers/every_other_step.py": """
from specexp.core.parts import Controller, Plan


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
        return Check(False, "nobody can spell")
""",
    "reasoning/first_thought.py": """
from specexp.reasoning.search import Search


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
from specexp.scheduling.serial import SerialSpeculative


class InTurns(SerialSpeculative):
    pass
""",
    "papers/step_count.py": """
from specexp.bench.analysis import Analysis
from specexp.bench.publish import Report


class StepCount(Analysis):
    name = "step_count"

    def begin(self, arms):
        self.steps = 0

    def observe(self, arm, outcome):
        self.steps += 1

    def report(self, records):
        return Report(files={"step_count.txt": str(self.steps)})
""",
    "artifacts/kinds/tree_size.py": """
from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS


class TreeSizeArtifact(Artifact):
    kind = "tree-size"
    required = ("size.json",)

    @classmethod
    def payloads_of(cls, parts, attributes):
        return {"size.json": len(attributes["rank_paths"]), PARTS: dict(parts)}

    def read(self, payloads):
        self.value = payloads["size.json"]
        if not isinstance(self.value, int):
            raise ArtifactError(f"{self.where('size.json')} is no number")
""",
    "artifacts/formats/node_flag.py": """
from specexp.artifacts.export_format import ExportedFile, ExportFormat


class NodeFlag(ExportFormat):
    kinds = ("tree-size",)

    def export(self, artifact):
        return ExportedFile({"nodes": artifact.value}, dropped="node-flag: dropped the tree's form")
""",
    "builders/sized.py": """
from typing import Annotated

from specexp.builders.static_tree import StaticTree
from specexp.core.references import Reference


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


def run(package: Path, model_folder: str, command: str = "run", **sections: object) -> Path:
    """Run an experiment with the copy; returns the folder of the run."""
    content = {
        "name": "added",
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
    file = package / f"{next(iter(sections))}.yaml"
    file.write_text(yaml.safe_dump(content))
    call(package, f"specexp.{command}", str(file))
    return package / "runs" / "added"


def call(package: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the copy."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_parts_prompts_and_an_analysis(package: Path, model_folder: str) -> None:
    folder = run(
        package,
        model_folder,
        verifier="SecondBest",
        controller="EveryOtherStep",
        data={"prompts": "Counting"},
        analyses=["StepCount"],
    )
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert {record["prompt_id"] for record in records} == {"0", "1", "2"}
    assert int((folder / "step_count.txt").read_text()) > 0


def test_a_task_a_search_and_an_execution_strategy(package: Path, model_folder: str) -> None:
    folder = run(
        package,
        model_folder,
        execution="InTurns",
        data={"prompts": {"class_path": "TaskItems", "init_args": {"tasks": [{"class_path": "Spelling"}]}}},
        reasoning={"search": "FirstThought"},
    )
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert {record["category"] for record in records} == {"Spelling"}


def test_an_artifact_kind_that_a_sweep_leaves_and_an_export_format(package: Path, model_folder: str) -> None:
    run(
        package,
        model_folder,
        "sweep",
        sweep={
            "n_trials": 1,
            "space": {"builder.init_args.size": {"type": "int", "low": 1, "high": 2}},
            "enqueue": [{"name": "two", "builder.init_args.size": 2}],
            "confirm": {"best": 1, "data": {"max_prompts": 1}},
            "export": {"to": "artifacts/size", "kind": "tree-size"},
        },
        builder="Sized",
        drafter={"class_path": "PromptLookup", "init_args": {"candidates": 2}},
        data={"prompts": "Counting", "max_prompts": 1},
    )
    done = call(package, "specexp.export", "artifacts/size/best-tree", "--to", "node-flag")
    assert json.loads(done.stdout) == {"nodes": 2}
    assert "dropped the tree's form" in done.stderr
    found = run(
        package,
        model_folder,
        data={"prompts": "Counting"},
        builder={"class_path": "Sized", "init_args": {"size": "artifacts/size/best-tree"}},
        drafter={"class_path": "PromptLookup", "init_args": {"candidates": 2}},
    )
    assert "size: artifacts/size/best-tree" in (found / "config.yaml").read_text()
