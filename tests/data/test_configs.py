"""What a configuration says of prompts is checked against the signatures; importing the package stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest

from specexp.config import ConfigError, build_workload, load_config

DATA = Path(__file__).parents[2] / "configs" / "data" / "stdlib.yaml"


def test_a_short_name_is_found():
    config = load_config(DATA, ["--data.prompts", "GSM8K", "--data.prompts.init_args.path=test.jsonl"])
    assert build_workload(config).prompts.path == "test.jsonl"


@pytest.mark.parametrize(
    ("prompts", "key", "value"),
    [
        ("GSM8K", "max_prompts", 0),
        ("GSM8K", "offset", -1),
        ("GSM8K", "shuffle_seed", -1),
        ("GSM8K", "max_prompt_tokens", 0),
        ("GSM8K", "too_long", "drop"),
        ("C4", "prompts.init_args.items", 0),
        ("OpenWebText", "prompts.init_args.prompt_tokens", 0),
        ("CNNDailyMail", "prompts.init_args.items", 0),
        ("RawText", "prompts.init_args.items", 0),
        ("StdlibFunctions", "prompts.init_args.split", "dev"),
    ],
)
def test_bounds_are_those_of_the_signature(tmp_path: Path, prompts: str, key: str, value: object):
    file = tmp_path / "bounds.yaml"
    path = "{path: a.txt}" if prompts == "RawText" else "{}"
    file.write_text(f"data: {{prompts: {{class_path: {prompts}, init_args: {path}}}}}")
    with pytest.raises(ConfigError, match=key):
        load_config(file, [f"--data.{key}={value}"])


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"lightning", "datasets", "torch", "transformers"}
    code = f"import sys, specexp.data; print({heavy} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == "set()"
