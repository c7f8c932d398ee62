"""Forty wrong inputs: each is answered by its exit code and one sentence that names the key and the value.

The rest of the sentence may change, and so may capitals.
"""

import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

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
SPACE = "space: {builder.init_args.length: {type: int, low: 1, high: 4}}"
SWEEP = f"{FILE}sweep: {{{SPACE}, n_trials: 3, confirm: null}}\n"
DEVICE = "--latency.name a --latency.target_ms '{1: 2.0}'"
PROMPTS = '{"id": "a", "prompt": "one two three"}\n{"id": "b", "prompt": "two three four"}\n'


class Wrong(NamedTuple):
    """A wrong input.

    Args:
        typed: The command and its arguments, as after ``python -m specexp.``
        holds: The key, the value and where they were found.
        files: Files in place of, or beside, the right ones.
        code: The exit code.
    """

    typed: str
    holds: tuple[str, ...]
    files: Mapping[str, str] = MappingProxyType({})
    code: int = 2


def yaml(text: str, *holds: str) -> Wrong:
    """A wrong line at the end of an experiment's file."""
    return Wrong("run mine.yaml --dry-run", ("mine.yaml", *holds), {"mine.yaml": FILE + text + "\n"})


def sweep(section: str, *holds: str) -> Wrong:
    """A wrong ``sweep`` section."""
    text = f"{FILE}sweep: {section}\n"
    return Wrong("sweep sweep.yaml --dry-run", ("sweep.yaml", *holds), {"sweep.yaml": text})


def typed(options: str, *holds: str, name: str = "run mine.yaml") -> Wrong:
    """A wrong option."""
    return Wrong(f"{name} {options} --dry-run", holds)


def prompts(text: str, *holds: str) -> Wrong:
    """A wrong file of prompts."""
    return Wrong("run mine.yaml --dry-run", ("prompts.jsonl", *holds), {"prompts.jsonl": text})


WRONG = {
    # keys
    "a misspelt section": yaml("bulder: Chain", "bulder", "builder"),
    "a misspelt key": typed("--generation.max_tokens 3", "generation.max_tokens", "max_new_tokens"),
    "a misspelt argument": typed("--builder.init_args.lenght 3", "builder.init_args.lenght", "length"),
    "a key given twice": yaml("name: a\nname: b", "line 9", "name"),
    "a misspelt option": Wrong("run mine.yaml --dryrun", ("--dryrun", "--dry-run")),
    "an option of another command": typed("--confirm-again", "confirm-again"),
    # types and bounds
    "a word for a number": yaml("float32_prompts: many", "float32_prompts", "many"),
    "an argument that is too large": typed("--drafter.init_args.k 65", "drafter.init_args.k", "65", "64"),
    "a temperature below zero": typed(
        "--verifier.init_args.temperature=-1", "verifier.init_args.temperature", "-1"
    ),
    "no value where one must be": typed("--generation.seed null", "generation.seed", "null"),
    "a truth for a number": typed("--generation.samples true", "generation.samples", "True"),
    "a value that is no choice": typed(
        "--pair.target_dtype bfloat", "pair.target_dtype", "bfloat", "bfloat16"
    ),
    # classes
    "an unknown class": typed("--drafter TokenRecycler", "drafter", "TokenRecycler", "TokenRecycling"),
    "a class of another family": typed(
        "--drafter specexp.builders.Chain", "specexp.builders.Chain", "Drafter"
    ),
    "a missing argument": typed("--data.prompts RawText", "data.prompts.init_args.path"),
    # parts that do not go together
    "a drafter without a builder": Wrong(
        "run mine.yaml --dry-run",
        ("mine.yaml", "drafter", "builder"),
        {"mine.yaml": "drafter: TokenRecycling\n"},
    ),
    "a tree wider than its drafter": Wrong(
        "run mine.yaml --builder TokenRecyclingTree --drafter PromptLookup --dry-run", ("builder", "8")
    ),
    "a draft model where there is none": typed("--drafter DraftModel --pair.draft null", "drafter", "draft"),
    "an arm that has other data": yaml("arms: {a: {data: {max_prompts: 1}}}", "arms.a", "data"),
    # files
    "a file that is not there": Wrong("run min.yaml", ("min.yaml", "mine.yaml")),
    "a file that is no YAML": Wrong(
        "run mine.yaml --dry-run", ("mine.yaml", "line 2"), {"mine.yaml": "a: [1\nb: 2"}
    ),
    "a composed file that is not there": yaml("compose: other.yaml", "other.yaml"),
    "prompts that are not there": typed("--data.prompts no.jsonl", "no.jsonl"),
    "prompts that are no JSON": prompts('{"prompt": "a"}\n{"prompt":\n', "2"),
    "prompts without a field of prompts": prompts('{"colour": "red"}\n', "colour", "data.field"),
    "a model that is not there": typed("--pair.target ./nowhere", "pair.target", "nowhere"),
    "a prompt that does not fit": typed(
        "--generation.max_new_tokens 100000", "generation.max_new_tokens", "100000"
    ),
    "an output below a file": Wrong("run mine.yaml --output prompts.jsonl", ("output", "prompts.jsonl")),
    # searches
    "a space of an unknown key": sweep(
        "{space: {builder.init_args.node: {type: int, low: 1, high: 3}}}", "builder.init_args.node"
    ),
    "a range upside down": sweep(
        "{space: {builder.init_args.length: {type: int, low: 9, high: 3}}}",
        "builder.init_args.length",
        "9",
        "3",
    ),
    "a study without a sweep": Wrong("sweep mine.yaml --dry-run", ("mine.yaml", "sweep")),
    "a storage that is none": typed("--storage ftp://x", "sweep.storage", "ftp", name="sweep sweep.yaml"),
    # engines, replays and devices
    "an unknown engine": typed("--engine.class_path LlamaCpp9", "engine", "LlamaCpp9"),
    "a recording that is not there": typed(
        f"--backend replay --recording nowhere {DEVICE}", "recording", "nowhere"
    ),
    "a device that is none": typed("--pair.device tpu", "pair.device", "tpu"),
    "a profile without one token": typed(
        "--latency.name a --latency.target_ms '{2: 1.0}'", "latency", "target_ms", "1"
    ),
    # artifacts
    "an artifact that is not there": typed("--artifact nowhere", "artifact", "nowhere"),
    "a damaged artifact": Wrong(
        "run mine.yaml --artifact damaged --dry-run", ("damaged", "tree.json", "sha256")
    ),
    "a changed manifest": Wrong("export changed --to vllm", ("changed", "artifact.json", "sha256")),
    "an export of another kind": Wrong("export q-table --to vllm", ("vllm", "q-table")),
}


@pytest.fixture
def made(
    tmp_path: Path, golden_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Wrong], None]:
    """Writes the files of a wrong input into a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    target = f"pair: {{target: {golden_pair[0]}, target_dtype: float32, mode: eager}}\n"

    def make(wrong: Wrong) -> None:
        right = {"mine.yaml": FILE, "sweep.yaml": SWEEP, "prompts.jsonl": PROMPTS}
        for name, text in {**right, **wrong.files}.items():
            own = (name == "mine.yaml" and text.startswith("drafter")) or name == "sweep.yaml"
            Path(name).write_text(target + text if own else text)
        kinds = {
            "tree": "static-tree",
            "damaged": "static-tree",
            "changed": "static-tree",
            "q-table": "q-table",
        }
        for name, kind in kinds.items():
            shutil.copytree(GOLDEN / "artifacts" / kind, name)
        Path("damaged/tree.json").write_bytes(b"[[0],[2],[0,0]] ")
        manifest = json.loads(Path("changed/artifact.json").read_text())
        Path("changed/artifact.json").write_text(json.dumps({**manifest, "kind": "static-three"}))

    return make


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_answered_in_one_sentence(wrong: Wrong, made: Callable[[Wrong], None]) -> None:
    made(wrong)
    before = sorted(Path.cwd().rglob("*"))
    name, *arguments = shlex.split(wrong.typed)

    answer = command(name, *arguments)

    assert answer.code == wrong.code, answer
    assert "Traceback" not in answer.out + answer.err
    sentence = answer.err.splitlines()[-1]
    assert answer.err.count("error: ") == 1, answer.err
    assert "error: " in sentence, answer.err
    for fragment in wrong.holds:
        assert fragment.lower() in sentence.lower(), sentence
    assert sorted(Path.cwd().rglob("*")) == before
