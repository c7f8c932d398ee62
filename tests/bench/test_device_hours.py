"""How many device hours a plan tells."""

import pytest

from specexp.bench.device_hours import Prompts, Stage, recording_hours, told
from specexp.builders import Chain
from specexp.core.latency import LatencyProfile

LATENCY = LatencyProfile("made up", {1: 36.0, 2: 72.0}, {1: 3.6})
"""A token takes a hundred-thousandth of an hour, and a draft pass a tenth of it."""


def test_plain_decoding_takes_a_pass_a_token() -> None:
    assert Prompts([5, 7], new_tokens=100, samples=2).hours(LATENCY) == pytest.approx(400e-5)


def test_recording_takes_draft_passes_and_a_wide_pass_for_every_token() -> None:
    prompts = Prompts([5], new_tokens=100, samples=1)
    # beside its own pass of 36 ms each token costs 2 draft passes of 3.6 ms and one of 3 rows of 108 ms
    assert recording_hours(prompts, [Chain(2)], LATENCY) == pytest.approx(100 * (36 + 7.2 + 108) / 3.6e6)


def test_what_is_replayed_needs_no_device() -> None:
    stages = [Stage("search", 900, 0.0, "replayed"), Stage("confirmation", 100, 2.0, "3 candidates")]
    lines = told(stages, workers=4)
    assert lines[0] == "search: no device, 900 answers (replayed)"
    assert lines[1] == "confirmation: at most 2 device hours, 100 answers (3 candidates)"
    assert lines[2].startswith(
        "device time in all: at most 2 device hours, 0.5 device hours on each of 4; 90% of"
    )
