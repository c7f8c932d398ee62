"""Each shipped YAML passes the dry run of the command in its first line, and each block is shared."""

import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from specexp.__main__ import main
from specexp.config import ConfigError, arms_of, load_config

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "experiments").rglob("*.yaml")
    if path.name != "rows.yaml"  # declarations of the papers' rows
)
BLOCKS = sorted(path.relative_to(ROOT) for top in ("configs", "sweeps") for path in (ROOT / top).rglob("*.yaml"))
CONTENT = {path: yaml.load((ROOT / path).read_text(), yaml.CSafeLoader) for path in [*FILES, *BLOCKS]}
# profiles of devices that were not measured, which an experiment names by path
NAMED = {Path(name) for content in CONTENT.values() for name in (content.get("what_if") or {}).get("files", [])}
EXPERIMENTS = [path for path in FILES if path not in NAMED]
# replaces the profiles of this device's own measurement, which a fresh machine does not have
UNMEASURED = {"specexp.what_if": ["--what_if.profiles", "[{name: made, target_ms: {1: 2.0}, draft_ms: {1: 1.0}}]"]}


def command_of(path: Path) -> str:
    """Return the module that the first line of a file runs on the file."""
    first, _, _ = (ROOT / path).read_text().partition("\n")
    found = re.fullmatch(rf"# python -m (specexp\.\w+|experiments\.passes\.contest) {re.escape(str(path))}", first)
    assert found, f"{path}: the first line is {first!r}; # python -m specexp.COMMAND {path} is expected"
    return found[1]


# Errors of a fresh machine without a network: it has no model of the hub, no file of prompts, and no results of other
# experiments, such as a recording, a profile or trained weights. A key that does not exist is a fault of the file.
LACKING = re.compile(
    r"nor in the cache|pip cannot download|(Name or service not known|Temporary failure)"
    r"|engine: \w+ (is not installed here|needs models/\S+, which does not exist)"
    r"|\b(data|models|recordings|runs|artifacts)/[^\s':]+'?:? (does not exist|there is no such|holds no recording)"
)


@pytest.mark.parametrize("wrong", [{"data.max_promts": 8}, {"data.prompts.init_args.pth": "data/x.jsonl"}], ids=str)
def test_a_misspelt_key_is_not_taken_for_a_lacking_file(wrong):
    with pytest.raises(ConfigError) as raised:
        load_config(ROOT / "experiments/tree_shape.yaml", [f"--{key}={value}" for key, value in wrong.items()])
    assert not LACKING.search(str(raised.value))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=str)
@pytest.mark.variants(6)
def test_the_first_line_of_an_experiment_is_its_command(path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    command = command_of(path)
    arguments = [str(path), "--dry-run", *UNMEASURED.get(command, [])]
    if command.startswith("specexp."):
        code = main([command.removeprefix("specexp."), *arguments])
    else:
        code = import_module(command).main(arguments)
    shown = capsys.readouterr().err
    assert code == 0 or (code == 2 and LACKING.search(shown)), shown


TRAININGS = [path for path in EXPERIMENTS if path.parent.name == "pair" or "model" in CONTENT[path]]


@pytest.mark.parametrize("path", [path for path in EXPERIMENTS if path not in TRAININGS], ids=str)
def test_an_experiment_has_a_question_and_arms(path):
    assert CONTENT[path].get("question") or load_config(ROOT / path).get("question")
    try:
        assert arms_of(load_config(ROOT / path))
    except ConfigError as error:
        if not LACKING.search(str(error)):
            raise


def test_no_two_experiments_share_a_name():
    """Runs, recordings and W&B groups go by it."""
    names = Counter(CONTENT[path].get("name", path.stem) for path in EXPERIMENTS)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_block_is_composed_or_named_by_an_experiment():
    """Pairs and presets are laid on top of any experiment: ``--compose configs/pair/NAME.yaml``."""
    text = " ".join((ROOT / path).read_text() for path in FILES)
    users: Counter[Path] = Counter()
    for path, content in CONTENT.items():
        composed = content.get("compose") or []
        for name in [composed] if isinstance(composed, str) else composed:
            users[((ROOT / path).parent / name).resolve().relative_to(ROOT)] += 1
    pairs = [block for block in BLOCKS if block.parent.name == "pair"]
    assert [pair.name for pair in pairs if pair.stem not in text] == []
    others = [block for block in BLOCKS if block not in pairs]
    assert [str(block) for block in others if not users[block] and str(block) not in text] == []
    assert users.keys() <= CONTENT.keys()
