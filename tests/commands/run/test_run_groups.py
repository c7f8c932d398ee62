"""``python -m specexp.run`` of experiments that decode groups of sequences."""

import json

import pytest

from specexp.bench.record import read_records
from specexp.commands.run import main
from specexp.commands.verify import main as verify
from specexp.config import ConfigError, load_config

SEED = {"class_path": "Scheduled", "init_args": {"n": 2, "workers": "thread"}}


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": f"ab{n} ab{n}"}) + "\n" for n in range(3)))
    return {"prompts": {"class_path": "RawText", "init_args": {"path": str(path)}}}


def test_items_are_solved_by_every_arm(experiment, tmp_path, capsys):
    own = {
        "class_path": "TaskItems",
        "init_args": {"tasks": [{"class_path": "helpers.countdown.Countdown"}], "items": 2},
    }
    path = experiment(
        data={"prompts": own},
        reasoning={"max_new_tokens": 6},
        arms={"serial": {}, "seed": {"execution": SEED}},
        analyses=["ReasoningTable", "TimeLines"],
    )
    assert main([path]) == 0
    folder = tmp_path / "runs" / "tiny"
    records = read_records(folder / "records.jsonl")
    assert {record.arm for record in records} == {"plain", "serial", "seed"}
    assert {record.prompt_id for record in records} == {"Countdown/57", "Countdown/68"}
    assert all(record.group.sequences == 13 and record.error is None for record in records)
    tokens = {record.key: record.token_ids for record in records if record.arm == "plain"}
    assert all(record.token_ids == tokens[record.key] for record in records)
    assert "hf-eager" not in capsys.readouterr().out
    assert {"reasoning_table.md", "time_lines.png"} <= {file.name for file in folder.iterdir()}


def test_the_samples_of_a_prompt_are_one_group(experiment, lines, tmp_path):
    path = experiment(
        data=lines,
        generation={"max_new_tokens": 10, "samples": 3},
        arms={"seed": {"execution": SEED}, "in step": {"execution": {"class_path": "Batched"}}},
    )
    assert main([path]) == 0
    records = read_records(tmp_path / "runs" / "tiny" / "records.jsonl")
    assert len(records) == 3 * 3
    assert all(record.sample == 0 and record.turns == 3 for record in records)


def test_verify_names_the_command_for_groups(experiment, capsys):
    assert verify([experiment(execution=SEED)]) == 2
    assert "python -m specexp.run" in capsys.readouterr().err


def test_a_bare_name_is_a_strategy_and_a_search(experiment):
    config = load_config(experiment(execution="SerialSpeculative", reasoning={"search": "BreadthFirst"}))
    assert config.get("execution.init_args.threads") is None
    assert config.get("reasoning.search.class_path") == "BreadthFirst"
    with pytest.raises(ConfigError, match="no Search is called 'BreadthFrist'; did you mean 'BreadthFirst'"):
        load_config(experiment(reasoning={"search": "BreadthFrist"}))
