"""``python -m specexp.run`` of experiments that decode groups of sequences."""

import json

import pytest

from specexp.bench.record import read_records
from specexp.commands.run import main
from specexp.config import ConfigError, load_config
from specexp.verify.command import main as verify

SEED = {"class_path": "Scheduled", "init_args": {"n": 2, "workers": "thread"}}
DRAWN = {"class_path": "Chain", "init_args": {"length": 3, "candidates": "drawn"}}


@pytest.fixture
def lines(tmp_path):
    """A data section with three prompts of one turn."""
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


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"execution": {"class_path": "Scheduled", "init_args": {"n": 2, "verify_batch": 3}}},
            "verify_batch must be at most n=2",
        ),
        ({"execution": SEED, "drafter": None, "builder": None}, "execution: Scheduled needs a drafter"),
        (
            {
                "execution": SEED,
                "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 4, "state": "carry"}},
                "verifier": {"class_path": "RejectionSampling"},
            },
            "TokenRecycling shares what it learns between the sequences of Scheduled",
        ),
        (
            {
                "execution": SEED,
                "controller": {"class_path": "Heuristic", "init_args": {"state": "carry"}},
                "drafter": {"class_path": "DraftModel"},
                "builder": DRAWN,
                "verifier": {"class_path": "RejectionSampling"},
            },
            "Heuristic shares what it learns between the sequences of Scheduled",
        ),
        (
            {"execution": SEED, "latency": {"name": "made", "target_ms": {1: 10}, "draft_ms": {1: 1}}},
            "cannot be modelled by latency 'made'",
        ),
        (
            {"execution": SEED, "arms": {"hf": {"reference": "hf-prompt-lookup"}}},
            "arms.hf: 'hf-prompt-lookup' decodes single sequences",
        ),
        ({"execution": SEED, "analyses": ["TreeSizes"]}, "analyses.0 watches single steps"),
        ({"analyses": ["ReasoningTable"]}, "analyses.0 looks at groups of sequences"),
        ({"execution": SEED}, "has 2 turns, but execution decodes prompts of one turn"),
        (
            {"reasoning": {"search": {"class_path": "BreadthFirst", "init_args": {"breadth": 0}}}},
            "breadth must be >= 1, got 0",
        ),
    ],
)
def test_a_mistake_is_one_sentence(experiment, tmp_path, capsys, sections, message):
    assert main([experiment(**sections)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]  # above it, what the reading library logs
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "runs").exists()


def test_verify_names_the_command_for_groups(experiment, capsys):
    assert verify([experiment(execution=SEED)]) == 2
    assert "python -m specexp.run" in capsys.readouterr().err


def test_a_bare_name_is_a_strategy_and_a_search(experiment):
    config = load_config(experiment(execution="SerialSpeculative", reasoning={"search": "BreadthFirst"}))
    assert config.get("execution.init_args.threads") is None
    assert config.get("reasoning.search.class_path") == "BreadthFirst"
    with pytest.raises(ConfigError, match="no Search is called 'BreadthFrist'; did you mean 'BreadthFirst'"):
        load_config(experiment(reasoning={"search": "BreadthFrist"}))
