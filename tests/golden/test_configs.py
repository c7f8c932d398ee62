"""Every shipped YAML resolves, and ten of them to the same values."""

from pathlib import Path

import pytest
import yaml
from helpers.golden import EXPECTED, ROOT, check, command, flat

from specexp.config.layers import read_layers

FILES = sorted(
    str(path.relative_to(ROOT))
    for top in ("configs", "experiments", "sweeps")
    for path in (ROOT / top).rglob("*.yaml")
    if path.name != "rows.yaml"  # the papers' rows are declarations, not experiments
)
# Only a composing experiment gives these search spaces and arms their drafter.
SPACES = ("dyspec_threshold", "phrase_cache", "schedule", "tree_shape")
INCOMPLETE = {*(f"sweeps/{name}.yaml" for name in SPACES), "configs/seed/published.yaml"}
# In place of a corpus that another command makes.
WITHOUT = {
    "configs/token_recycling/rest.yaml": ["--arms.rest.drafter.init_args.corpus", "null"],
    "experiments/lossless/heads.yaml": [
        *("--arms.suffixes.drafter.init_args.corpus", "null"),
        *("--arms.suffixes_sampled.drafter.init_args.corpus", "null"),
    ],
}
RESOLVED = [file for file in FILES if file not in INCOMPLETE]
GOLDEN = [
    "configs/pair/llama_3_1_8b_70b.yaml",
    "experiments/engines/llama_cpp.yaml",
    "experiments/fastest.yaml",
    "experiments/lossless/equality.yaml",
    "experiments/papers/dyspec/main.yaml",
    "experiments/papers/post_use_pre_cut/main.yaml",
    "experiments/papers/seed/main.yaml",
    "experiments/papers/token_recycling/table1.yaml",
    "experiments/tree_shape.yaml",
    "experiments/workloads.yaml",
]
"""One of each kind, with their values in ``expected/configs/``."""


def _command_of(file: str) -> str:
    """The command of a file's first line; a block names none."""
    first, _, _ = (ROOT / file).read_text().partition("\n")
    return first.split()[3].removeprefix("specexp.") if first.startswith("# python -m specexp.") else "run"


@pytest.mark.parametrize("file", RESOLVED)
def test_a_shipped_file_resolves(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    resolved = dict(read_layers(file, ()).values) if _command_of(file) == "fit" else {}
    if "model" not in resolved:
        answer = command(_command_of(file), file, "--print-config", *WITHOUT.get(file, []))
        assert answer.code == 0, answer.err
        resolved = yaml.load(answer.out, yaml.CSafeLoader)
    if file in GOLDEN:
        check(f"configs/{Path(file).with_suffix('')}", _without_root(flat(resolved)))


def test_the_expected_configurations_are_the_ten() -> None:
    folder = EXPECTED / "configs"
    expected = [str(path.relative_to(folder).with_suffix(".yaml")) for path in folder.rglob("*.json")]
    assert sorted(expected) == GOLDEN


def _without_root(values: dict[str, object]) -> dict[str, object]:
    return {key: value.replace(str(ROOT), "ROOT") if isinstance(value, str) else value for key, value in values.items()}
