"""Every `bash` and `python` block of the README and the pages is run, or is a line that CI itself runs.

`console` and `sh` blocks, which show output, other programs or other machines, are not.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import chdir, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from helpers.golden import command as call

import specexp

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

# What makes a command short; a README command that is not listed here fails the test that knows them all.
SHORT = {
    "specexp.sweep": [
        *("--n-trials", "3", "--data.max_prompts", "1", "--sweep.confirm.data.max_prompts", "2"),
        *("--generation.max_new_tokens", "8", "--generation.threads", "1"),
    ],
    "specexp.run": ["--data.max_prompts", "1", "--generation.max_new_tokens", "8"],
    "specexp.verify": [
        *("--verify.total_variation", "0.5", "--verify.toy_tokens", "900", "--verify.samples", "20"),
        *("--verify.first_tokens", "2", "--data.max_prompts", "1", "--generation.max_new_tokens", "8"),
        *("--verify.workers", "1"),
    ],
    "specexp.doctor": [],
    "specexp.init": [],
    "specexp.profile": [
        *("--profile.max_tokens", "4", "--profile.repeats", "2", "--profile.prompts", "1"),
        *("--profile.max_new_tokens", "8"),
    ],
    "specexp.record": [
        *("--data.max_prompts", "2", "--generation.max_new_tokens", "12", "--record.live_sample", "1"),
    ],
    "specexp.what_if": ["--generation.max_new_tokens", "12", "--what_if.max_nodes", "16"],
    "specexp.fit": ["--data.max_prompts", "1", "--generation.max_new_tokens", "16"],
    "specexp.export": [],
    "specexp.dashboard": [],
    "experiments.reproduce": [],
}
FETCHES = [f"experiments/{name}.yaml" for name in ("tree_shape", "workloads", "fastest")]
"""Experiments on a model that is fetched. The tests replace it by the embedded one with a chat template."""
FEW_COUNTED = ["--sweep.count_acceptances.data.max_prompts", "2"]
SHORT_TOO = {
    ("specexp.verify", "experiments/lossless/sampling.yaml"): ["--arms", "dyspec_greedy,keyed"],
    ("specexp.run", "experiments/papers/seed/utilisation.yaml"): [
        *("--arms", "serial,batched,seed", "--generation.samples", "2"),
    ],
    ("specexp.sweep", "experiments/replay/tree_shape.yaml"): FEW_COUNTED,
    ("specexp.record", "experiments/replay/tree_shape.yaml"): [
        *FEW_COUNTED,
        *("--sweep.confirm.data.max_prompts", "2"),
    ],
}


# Sections that use what others leave: an artifact, a recording, a profile. Each is run by the worker that asks first.
NEEDS = {
    "README: Deploy the result": ["README: The main job"],
    "deploy: In Python, and in Hugging Face": ["README: The main job"],
    "deploy: The text of a record": ["README: The main job"],
    "deploy: As a model folder, and in other engines": ["README: The main job"],
    "replay: Sweeps without models": ["replay: What does a step cost here?"],
    "replay: One recording, many devices": [
        "replay: What does a step cost here?",
        "replay: Record once, then replay",
    ],
}
FIRST_BLOCK = "README: Deploy the result"
"""The section whose first Python block loads the pair that all later ones use."""


def sections() -> dict[str, str]:
    """The text of every section, without those inside it, by page and heading."""
    found: dict[str, str] = {}
    for page in PAGES:
        name, in_code = page.stem, False
        for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
            in_code ^= line.startswith("```")
            if line.startswith("#") and not in_code:
                name = f"{page.stem}: {line.lstrip('# ').strip()}"
            found[name] = found.get(name, "") + line
    return found


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", sections()[section], re.DOTALL)


def commands(section: str) -> list[str]:
    lines = [line for block in blocks(section, "bash") for line in block.splitlines()]
    return [part.strip() for line in lines for part in line.split("&&")]


RUN = [name for name in sections() if any(line.startswith("python -m") for line in commands(name))]
PYTHON = [name for name in sections() if blocks(name, "python")]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: one folder for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "readme"
    shared.mkdir(exist_ok=True)
    for name in ("experiments", "sweeps", "configs"):
        with suppress(FileExistsError):
            (shared / name).symlink_to(ROOT / name)
    return shared


@pytest.fixture(scope="session")
def stand_ins(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Replacements of words in commands that need a gated model, a GPU or a network."""
    llama = tmp_path_factory.mktemp("llama") / "model"
    shutil.copytree(model_folder, llama)
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 131072}))
    (llama / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    questions = llama / "question.jsonl"
    asked = [{"question_id": n, "category": "writing", "turns": [f"Who was {n}?", "And why?"]} for n in range(80)]
    questions.write_text("".join(f"{json.dumps(one)}\n" for one in asked))
    embedded = specexp.load_pair("stdlib")  # with a template, in the place of a model that is fetched
    chats = tmp_path_factory.mktemp("chats") / "model"
    embedded.target.save_pretrained(chats)
    embedded.tokenizer.save_pretrained(chats)
    shutil.copy(llama / "chat_template.jinja", chats)
    return {
        "smollm2:tree": ["artifacts/tree_shape/best-tree"],  # the one shipped is of the fetched model alone
        "smollm2": [str(chats)],
        "meta-llama/Llama-3.1-8B-Instruct": [str(llama)],
        "cuda": ["cpu"],
        "my.jsonl": [str(questions)],
        "SpecBench": ["SpecBench", "--data.prompts.init_args.path", str(questions)],
    }


def run(section: str, folder: Path, stand_ins: Mapping[str, list[str]]) -> None:
    """Run the commands of a section and of the sections it needs, each once in all workers."""
    for needed in NEEDS.get(section, []):
        run(needed, folder, stand_ins)
    for command in commands(section):
        if command.startswith("python -m"):
            once(command, folder, stand_ins)


def once(command: str, folder: Path, stand_ins: Mapping[str, list[str]]) -> None:
    """Run a command, unless it was run."""
    mark = folder / f"{sha256(command.encode()).hexdigest()[:16]}.done"
    with mark.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            words = [there for word in shlex.split(command) for there in stand_ins.get(word, [word])]
            run_command(words, folder, stand_ins)
            mark.touch()


def run_command(words: list[str], folder: Path, stand_ins: Mapping[str, list[str]]) -> None:
    """In this process, so that thirty commands do not import torch and Lightning thirty times."""
    module, *given = words[2:]
    extra = [] if "--dry-run" in given else SHORT[module] + SHORT_TOO.get((module, *given[:1]), [])
    if given and given[0] in FETCHES and "--pair.target" not in given and not {"--help", "--print-config"} & {*given}:
        extra = [*extra, "--pair.target", *stand_ins["smollm2"]]
    with chdir(folder):
        answer = call(module.rpartition(".")[2], *given, *extra)
    assert answer.code == 0, f"{shlex.join(words)}\n{answer.out[-3000:]}\n{answer.err[-3000:]}"


def test_ci_runs_the_install_commands_of_the_pages() -> None:
    lines = {line for section in sections() for block in blocks(section, "bash") for line in block.splitlines()}
    others = {line for line in lines if not all(part.startswith("python -m") for part in line.split(" && "))}
    assert others
    assert others <= {line[1:-1] for line in CI.splitlines() if line.startswith("(")}
    installs = [line[1:-1] for line in CI.splitlines() if line.startswith("(pip install")]
    assert installs == [
        *blocks("README: The main job", "bash")[0].splitlines(),
        *blocks("README: Read on", "bash")[0].splitlines(),
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("section", RUN)
def test_the_commands_of_a_section_work(section: str, folder: Path, stand_ins: dict[str, list[str]]) -> None:
    run(section, folder, stand_ins)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("section", PYTHON)
def test_the_python_of_a_section_works(
    section: str, folder: Path, stand_ins: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(FIRST_BLOCK, folder, stand_ins)
    run(section, folder, stand_ins)
    monkeypatch.chdir(folder)
    scope: dict[str, object] = {}
    for block in dict.fromkeys([blocks(FIRST_BLOCK, "python")[0], *blocks(section, "python")]):
        for name in ("smollm2:tree", "smollm2"):
            block = block.replace(name, *stand_ins[name])
        exec(compile(block, section, "exec"), scope)
