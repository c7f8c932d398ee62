"""A trial's speedup is not believed beyond its tokens per step: the prompt is decoded again with both arms."""

import csv
from pathlib import Path

import pytest
from helpers.small_study import write

from specexp.bench.statistics import IMPOSSIBLE
from specexp.sweep.command import main
from specexp.sweep.plain_seconds import PlainSeconds

pytestmark = pytest.mark.slow


def test_plain_decoding_that_was_slowed_down_a_thousandfold_makes_no_method_fast(small, monkeypatch):
    monkeypatch.setattr(PlainSeconds, "now", lambda plain, prompt_id: 1000 * plain.seconds_per_token[prompt_id])
    assert main([write(small)]) == 0
    with Path("runs/small/trials.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == "complete"]
    assert len(rows) > 1
    for row in rows:
        # the geometric mean of the prompts is at most the mean that all of them have together, up to their spread
        assert float(row["speedup"]) < 1.2 * IMPOSSIBLE * float(row["tokens_per_step"])
