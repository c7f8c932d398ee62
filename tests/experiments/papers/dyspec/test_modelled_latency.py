"""Modelled latency is arithmetic on counts: every figure here is computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.made_records import outcome_of, strategy

from experiments.papers.dyspec.costs import ModelledLatency
from specexp.bench.record import PromptRecord
from specexp.builders import Chain
from specexp.config import ConfigError, build_analyses, load_config
from specexp.controllers import Fixed
from specexp.core.context import Context
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.drafters import DraftModel
from specexp.verifiers import Greedy

PROFILE = {"name": "x", "target_ms": {1: 5}}


def record(arm: str, prompt: int, **given: Any) -> PromptRecord:
    return PromptRecord(arm, f"p{prompt}", "a", token_ids=(5,) * 12, turn_tokens=(12,), **given)


RECORDS = [
    *(record("engine", prompt, steps=12) for prompt in range(3)),
    *(record("broken", prompt, error="ValueError: no") for prompt in range(3)),
]


def rows_of(analysis: ModelledLatency, records: list[PromptRecord]) -> dict[Any, dict[str, Any]]:
    """The rows of the table by arm."""
    return {row["arm"]: row for row in analysis.report(records).tables["modelled_latency"].records()}


def test_plain_decoding_takes_a_target_pass_a_token() -> None:
    rows = rows_of(ModelledLatency(LatencyProfile("made up", {1: 5000}, {1: 100})), RECORDS)
    assert rows["engine"]["modelled s/token"] == pytest.approx(5.0)
    assert rows["engine"]["modelled vs plain decoding"] == "1.00x [1.00, 1.00]"
    assert rows["broken"]["modelled s/token"] is None
    assert rows["broken"]["modelled vs plain decoding"] == "refused: no prompt was answered by broken"


BY_TOKENS = LatencyProfile("by tokens", {1: 100, 9: 180}, {1: 10, 3: 20}, step_ms=4)


def test_watched_passes_are_modelled_by_the_tokens_they_were_fed() -> None:
    analysis = ModelledLatency(BY_TOKENS)
    analysis.begin({"drafts": strategy(Greedy())})
    for fed in ((1,), (1, 3)):  # two steps over 4 nodes each: 5 tokens take 140 ms
        outcome = outcome_of([-1, 0, 1, 2, 3], [1, 2])
        outcome.context, outcome.pass_tokens = Context([1, 2], sequence="p0#0"), fed
        analysis.observe("drafts", outcome)
    records = [record("drafts", 0, steps=2, draft_passes=3, drafted_nodes=8)]
    row = rows_of(analysis, records)["drafts"]
    seconds = 2 * (0.140 + 0.004) + 3 * 0.010 + 0.010
    assert row["modelled s/token"] == pytest.approx(seconds / 12)
    assert row["modelled vs plain decoding"].startswith(f"{12 * 0.1 / seconds:.2f}x")


def test_unwatched_passes_are_modelled_only_if_nothing_was_drafted() -> None:
    records = [
        record("plain", 0, steps=12),
        record("assisted", 0, steps=4, draft_passes=12, drafted_nodes=12),
        record("lookup", 0, steps=4, drafted_nodes=12),
    ]
    rows = rows_of(ModelledLatency(BY_TOKENS), records)
    assert rows["plain"]["modelled s/token"] == pytest.approx(0.1)
    assert rows["lookup"]["modelled s/token"] is rows["assisted"]["modelled s/token"] is None
    said = rows["assisted"]["modelled vs plain decoding"]
    assert said == "refused: the number of tokens in each pass of assisted is unknown"


def test_a_draft_model_needs_milliseconds() -> None:
    with pytest.raises(
        ValueError, match="'target only' must have draft_ms, because arm 'drafts' runs a draft model"
    ):
        ModelledLatency(LatencyProfile("target only", {1: 5})).begin(
            {"drafts": Parts(DraftModel(), Chain(2), Greedy(), Fixed())}
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "profile is missing"),
        ({"profile": {"name": "x", "target_ms": {1: 0}}}, "must hold milliseconds above 0"),
        ({"profile": PROFILE, "published": [{"metod": "x"}]}, "unknown key 'metod'; did you mean 'method'?"),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    analysis = {"class_path": "experiments.papers.dyspec.costs.ModelledLatency", "init_args": arguments}
    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump({"analyses": [analysis]}))
    with pytest.raises(ConfigError) as raised:
        build_analyses(load_config(file))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
