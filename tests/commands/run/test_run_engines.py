"""Other engines as arms of an experiment, next to specexp's decoder on the same prompts."""

import sys

import pytest
from helpers import fake_server

from specexp.bench.record import read_records
from specexp.commands.run import main

LOOKUP = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2}
BROKEN = {
    "class_path": "OpenAIEndpoint",
    "init_args": {
        "command": f"{sys.executable} {fake_server.__file__} {{port}} --fault error",
        "plain_command": "none {port}",
    },
}


def hugging_face(**given):
    return {"class_path": "HuggingFace", "init_args": given}


@pytest.fixture
def compared(experiment):
    def write(arms, **changes):
        plain = {"drafter": None, "builder": None, "verifier": {"class_path": "Greedy"}, "baselines": ["plain"]}
        return experiment(**{**plain, "arms": arms, **changes})

    return write


@pytest.mark.slow
def test_other_engines_are_in_one_table_with_specexp(compared, tmp_path, capsys):
    arms = {
        "ours": {"drafter": {"class_path": "PromptLookup"}, "builder": {"class_path": "Chain"}},
        "plain": {"title": "theirs, plain", "engine": hugging_face()},
        "lookup": {"title": "theirs", "engine": hugging_face(drafts="prompt-lookup", settings=LOOKUP)},
        "broken": {"engine": BROKEN},
    }
    assert main([compared(arms), "--data.max_prompts", "2"]) == 1  # one arm has no answers
    records = read_records(tmp_path / "runs" / "tiny" / "records.jsonl")
    good = [record for record in records if not record.error]
    assert {record.arm for record in good} == {"plain", "ours", "theirs, plain", "theirs"}
    assert len(good) == 8
    assert all(record.difference is None for record in good)
    assert all("status 500" in record.error for record in records if record.arm == "broken")
    shown = capsys.readouterr()
    assert "theirs, plain" in shown.out
    assert "2 of 10 answers failed (broken: all 2)" in shown.err
