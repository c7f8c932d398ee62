"""The JSON schema allows all shipped files, and refuses values that our own checker refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specexp.config import ConfigError, load_config
from specexp.config.__main__ import main
from specexp.config.json_schema import json_schema
from specexp.config.layers import read_yaml

ROOT = Path(__file__).parents[2]
SHIPPED = [
    path
    for folder in ("experiments", "configs", "sweeps")
    for path in (ROOT / folder).rglob("*.yaml")
    if path.name != "rows.yaml"
]


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def as_json(path: Path) -> Any:
    return json.loads(json.dumps(read_yaml(path)))


def test_the_command_prints_the_schema(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_file_is_allowed_and_names_the_schema_for_editors(validator, path):
    content = as_json(path)
    if "model" in content:
        pytest.skip("a training recipe of specexp.fit, whose schema is the model's own")
    assert [error.message for error in validator.iter_errors(content)] == []
    text = path.read_text(encoding="utf-8")
    named = re.search(r"^# yaml-language-server: \$schema=(\S+)$", text, re.MULTILINE)
    assert named is not None, "add # yaml-language-server: $schema=... below the first line"
    assert (path.parent / named[1]).resolve() == ROOT / "specexp" / "config" / "schema.json"


WRONG = {
    "section": "bulder: Chain",
    "bound": "generation: {max_new_tokens: 0}",
    "text for a number": 'generation: {seed: "8"}',
    "choice": "pair: {target_dtype: bfloat}",
    "class": "drafter: TokenRecycler",
    "class of another family": "builder: {class_path: TokenRecycling}",
    "argument's bound": "drafter: {class_path: TokenRecycling, init_args: {k: 0}}",
    "beside init_args": "builder: {class_path: Chain, length: 3}",
    "inner part": "drafter: {class_path: Union, init_args: {drafters: [{class_path: TokenRecyclin}]}}",
    "item": "profile: {prefixes: [64, 0]}",
    "entry's bound": "sweep: {space: {builder.init_args.nodes: {type: int, low: 1.5, high: 3}}}",
    "entry's type": "sweep: {space: {builder.init_args.nodes: {type: integer, low: 1, high: 2}}}",
    "stage's data": "sweep: {learn: {data: {max_prompt: 2}}, space: {drafter.k: {type: int, low: 1, high: 3}}}",
    "data": "data: {max_prompts: many}",
    "arm's part": "arms: {a: {builder: {class_path: Chain, init_args: {lenght: 3}}}}",
    "latency": "latency: {name: x, target_ms: {1: five}}",
    "list for a text": "name: [a, b]",
    "entry of a list": "baselines: [plain, hf-egaer]",
    "mapping for a part": "verifier: {temperature: 0.7}",
    "infinite": "verifier: {class_path: KeyedSampling, init_args: {temperature: .inf}}",
    "export": "sweep: {export: {to: 3}, space: {builder.init_args.nodes: {type: int, low: 1, high: 3}}}",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_refused_by_both(validator, write, text):
    path = write(text)
    assert not validator.is_valid(as_json(path))
    with pytest.raises(ConfigError):
        load_config(path)


def test_a_part_of_another_package_is_allowed(validator):
    part = {"class_path": "somebodys.Echo", "init_args": {"times": 3}}
    assert validator.is_valid({"drafter": part})
    assert validator.is_valid({"drafter": {"class_path": "Union", "init_args": {"drafters": [part, part]}}})
