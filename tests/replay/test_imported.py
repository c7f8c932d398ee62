"""Another engine's metrics as a recording: chains replay as they were served, and what_if takes the file."""

import json

import numpy as np
import pytest

from specexp.core.tree import TreeShape
from specexp.replay.format.chain_metrics import ChainRun, chain_runs, conditional_rates
from specexp.replay.format.errors import RecordingError
from specexp.replay.format.imported import imported_turns
from specexp.replay.play.ranks import RankTable

STEPS = {"per_step_drafted": [3, 3, 2], "per_step_accepted": [3, 0, 2]}
ANSWER = {
    "model": "m",
    "usage": {"prompt_tokens": 7},
    "metrics": {"speculative_decoding": {"num_spec_steps": 3, **STEPS}},
}
RUN = ChainRun(7, (3, 3, 2), (3, 0, 2))


@pytest.mark.parametrize("record", [ANSWER, {"usage": {"prompt_tokens": 7}, "spec_decode_acceptance": STEPS}])
def test_steps_are_found_in_vllms_answers_and_in_aiperfs_records(record, tmp_path) -> None:
    lines, whole = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text(f"{json.dumps(record)}\n\n{json.dumps(record)}\n")
    whole.write_text(json.dumps([record]))
    assert chain_runs(lines) == [RUN, RUN]
    assert chain_runs(whole) == [RUN]
    assert RUN.new_tokens == 1 + 4 + 1 + 3


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({"per_step_accepted": [1]}, "line 2: .* are no lists of the same length"),
        ({"per_step_drafted": [1], "per_step_accepted": [2]}, "0 <= accepted <= drafted"),
        ({"per_step_drafted": [True], "per_step_accepted": [True]}, "0 <= accepted <= drafted"),
        ({"num_spec_steps": 2}, "tells no request's steps"),
    ],
)
def test_what_is_no_chain_is_refused_with_its_line(steps, said, tmp_path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f"\n{json.dumps({'metrics': steps})}\n")
    with pytest.raises(RecordingError, match=said):
        chain_runs(file)


def test_rates_count_a_position_only_where_it_was_tried() -> None:
    assert conditional_rates([RUN]) == [2 / 3, 1.0, 1.0]


def test_a_chain_of_the_length_that_was_served_takes_the_steps_it_took() -> None:
    generator = np.random.default_rng(1)
    accepted = np.minimum(generator.geometric(0.4, 200) - 1, 4).tolist()
    run = ChainRun(5, (4,) * 200, tuple(accepted))
    table = RankTable(imported_turns([run]), run.new_tokens, 10_000)
    counts = table.evaluate(TreeShape.from_rank_paths([[0] * depth for depth in range(1, 5)]))
    assert counts.tokens.sum() == run.new_tokens
    assert counts.steps.sum() == pytest.approx(200, rel=0.05)  # the first token shifts them
