"""Forty wrong inputs: each is answered by its exit code and one sentence that names the key and the value.

The rest of the sentence may change, and so may capitals.
"""

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.golden import GOLDEN, command

FILE = """\
drafter: TokenRecycling
builder: {class_path: Chain, init_args: {length: 3}}
verifier: {class_path: KeyedSampling, init_args: {temperature: 0.7}}
data: {prompts: {class_path: OwnPrompts, init_args: {path: prompts.jsonl}}, max_prompts: 2}
generation: {max_new_tokens: 8}
tracking: {mode: disabled}
"""
LENGTH = "builder.init_args.length"
RIGHT = {
    "mine.yaml": FILE,
    "sweep.yaml": f"{FILE}sweep: {{space: {{{LENGTH}: {{type: int, low: 1, high: 4}}}}, n_trials: 3, confirm: null}}\n",
    "prompts.jsonl": '{"id": "a", "prompt": "one two three"}\n{"id": "b", "prompt": "two three four"}\n',
}
Wrong = tuple[str, tuple[str, ...], Mapping[str, str]]
"""The arguments of ``python -m specexp.``, the parts of its error sentence, and other files."""


def typed(options: str, *holds: str) -> Wrong:
    """A wrong option."""
    return (f"run mine.yaml {options} --dry-run", holds, {})


def file(text: str, *holds: str, name: str = "mine.yaml") -> Wrong:
    """A wrong file."""
    return ("run mine.yaml --dry-run", (name, *holds), {name: text})


def yaml(line: str, *holds: str) -> Wrong:
    """A wrong line at the end of an experiment's file."""
    return file(f"{FILE}{line}\n", *holds)


def space(ranges: str, *holds: str) -> Wrong:
    """A wrong space of a sweep."""
    text = f"{FILE}sweep: {{space: {{{ranges}}}}}\n"
    return ("sweep sweep.yaml --dry-run", ("sweep.yaml", *holds), {"sweep.yaml": text})


WRONG: dict[str, Wrong] = {
    # keys
    "a misspelt section": yaml("bulder: Chain", "bulder", "builder"),
    "a misspelt key": typed("--generation.max_tokens 3", "generation.max_tokens", "max_new_tokens"),
    "a misspelt argument": typed("--builder.init_args.lenght 3", "builder.init_args.lenght", "length"),
    "a key given twice": yaml("name: a\nname: b", "line 9", "name"),
    "a folder for a file": ("run . --dry-run", (".", "must be a YAML file, but it is a folder"), {}),
    "a misspelt option": ("run mine.yaml --dryrun", ("--dryrun", "--dry-run"), {}),
    "an option of another command": typed("--require-gain", "require-gain"),
    # types and bounds
    "a word for a number": yaml("float32_prompts: many", "float32_prompts", "many"),
    "an argument that is too large": typed("--drafter.init_args.k 65", "drafter.init_args.k", "65", "64"),
    "a temperature below zero": typed("--verifier.init_args.temperature=-1", "init_args.temperature", "-1"),
    "no value where one must be": typed("--generation.seed null", "generation.seed", "null"),
    "a truth for a number": typed("--generation.samples true", "generation.samples", "True"),
    "a value that is no choice": typed("--pair.target_dtype bfloat", "target_dtype", "bfloat", "bfloat16"),
    # classes
    "an unknown class": typed("--drafter TokenRecycler", "drafter", "TokenRecycler", "TokenRecycling"),
    "a class of another family": typed("--drafter specexp.builders.Chain", "builders.Chain", "Drafter"),
    "a missing argument": typed("--data.prompts RawText", "data.prompts.init_args.path"),
    # parts that do not go together
    "a drafter without a builder": file("drafter: TokenRecycling\n", "drafter", "builder"),
    "a tree wider than its drafter": typed(
        "--builder TokenRecyclingTree --drafter PromptLookup", "builder", "8"
    ),
    "a draft model where there is none": typed("--drafter DraftModel --pair.draft null", "drafter", "draft"),
    "an arm that has other data": yaml("arms: {a: {data: {max_prompts: 1}}}", "arms.a", "data"),
    # files
    "a file that is not there": ("run min.yaml", ("min.yaml", "mine.yaml"), {}),
    "a file that is no YAML": file("a: [1\nb: 2", "line 2"),
    "a composed file that is not there": yaml("compose: other.yaml", "other.yaml"),
    "prompts that are not there": typed("--data.prompts no.jsonl", "no.jsonl"),
    "prompts that are no JSON": file('{"prompt": "a"}\n{"prompt":\n', "2", name="prompts.jsonl"),
    "prompts without a field of prompts": file(
        '{"colour": "red"}\n', "colour", "field", name="prompts.jsonl"
    ),
    "a model that is not there": typed("--pair.target ./nowhere", "pair.target", "nowhere"),
    "a prompt that does not fit": typed("--generation.max_new_tokens 100000", "max_new_tokens", "100000"),
    "an output below a file": ("run mine.yaml --output prompts.jsonl", ("output", "prompts.jsonl"), {}),
    # searches
    "a space of an unknown key": space(
        "builder.init_args.node: {type: int, low: 1, high: 3}", "init_args.node"
    ),
    "a range upside down": space(f"{LENGTH}: {{type: int, low: 9, high: 3}}", LENGTH, "9", "3"),
    "a study without a sweep": ("sweep mine.yaml --dry-run", ("mine.yaml", "sweep"), {}),
    "a storage that is none": ("sweep sweep.yaml --storage ftp://x --dry-run", ("sweep.storage", "ftp"), {}),
    # engines, replays and devices
    "an unknown engine": typed("--engine.class_path LlamaCpp9", "engine", "LlamaCpp9"),
    "a recording that is not there": typed(
        "--backend replay --recording nowhere --latency.name a --latency.target_ms '{1: 2.0}'",
        "recording",
        "nowhere",
    ),
    "a device that is none": typed("--pair.device tpu", "pair.device", "tpu"),
    "a profile without one token": typed(
        "--latency.name a --latency.target_ms '{2: 1}'", "latency", "target_ms"
    ),
    # artifacts
    "an artifact that is not there": typed("--artifact nowhere", "artifact", "nowhere"),
    "a damaged artifact": typed("--artifact damaged", "damaged", "tree.json", "sha256"),
    "a changed manifest": ("export changed --to vllm", ("changed", "artifact.json", "sha256"), {}),
    "an export of another kind": ("export q-table --to vllm", ("vllm", "q-table"), {}),
}


@pytest.fixture
def folder(tmp_path: Path, golden_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """A working directory with artifacts, two of which are damaged; the line that names the model."""
    monkeypatch.chdir(tmp_path)
    for name, kind in {"damaged": "static-tree", "changed": "static-tree", "q-table": "q-table"}.items():
        shutil.copytree(GOLDEN / "artifacts" / kind, name)
    Path("damaged/tree.json").write_bytes(b"[[0],[2],[0,0]] ")
    manifest = json.loads(Path("changed/artifact.json").read_text())
    Path("changed/artifact.json").write_text(json.dumps({**manifest, "kind": "static-three"}))
    return f"pair: {{target: {golden_pair[0]}, target_dtype: float32, mode: eager}}\n"


@pytest.mark.parametrize(("line", "holds", "files"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_answered_in_one_sentence(
    line: str, holds: tuple[str, ...], files: Mapping[str, str], folder: str
) -> None:
    for name, text in {**RIGHT, **files}.items():
        Path(name).write_text(folder + text if text.startswith(FILE[:20]) else text)
    before = sorted(Path.cwd().rglob("*"))

    answer = command(*shlex.split(line))

    assert answer.code == 2, answer
    assert "Traceback" not in answer.out + answer.err
    sentence = answer.err.splitlines()[-1]
    assert answer.err.count("error: ") == 1, answer.err
    assert "error: " in sentence, answer.err
    for fragment in holds:
        assert fragment.lower() in sentence.lower(), sentence
    assert sorted(Path.cwd().rglob("*")) == before
