"""Modelled latency is arithmetic on counts: every figure here is computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specexp.analyses import ModelledLatency
from specexp.analyses.modelled_latency import PublishedLatency
from specexp.config import ConfigError, load_config
from specexp.evaluation import PromptRecord
from specexp.testing.analyses import AnalysisContract


def record(arm: str, prompt: int, **given: Any) -> PromptRecord:
    return PromptRecord(arm, f"p{prompt}", "a", token_ids=(5,) * 12, turn_tokens=(12,), **given)


RECORDS = [
    *(record("engine", prompt, steps=12) for prompt in range(3)),
    *(record("tree", prompt, steps=3, draft_passes=15) for prompt in range(3)),
    *(record("broken", prompt, error="ValueError: no") for prompt in range(3)),
]


class TestModelledLatency(AnalysisContract):
    def make_analysis(self) -> ModelledLatency:
        return ModelledLatency(5.0, 0.025, [PublishedLatency("somebody's", 9.1, 0.537, 10.42)])


def test_seconds_per_token_are_passes_times_their_seconds() -> None:
    report = ModelledLatency(5.0, 0.1).report(RECORDS)
    rows = {row["arm"]: row for row in report.tables["modelled_latency"].records()}

    assert rows["engine"]["modelled s/token"] == pytest.approx(5.0)
    assert rows["engine"]["modelled vs plain decoding"] == "1.00x [1.00, 1.00]"
    assert rows["tree"]["modelled s/token"] == pytest.approx((3 * 5.0 + 15 * 0.1) / 12)
    assert rows["tree"]["draft passes/step"] == 5
    assert rows["tree"]["modelled vs plain decoding"] == "3.64x [3.64, 3.64]"  # 5 / 1.375
    assert rows["broken"]["modelled s/token"] is None
    assert rows["broken"]["modelled vs plain decoding"] == "refused: no prompt was answered by broken"


def test_the_interval_is_of_prompts_not_of_tokens() -> None:
    records = [record("tree", 0, steps=3), record("tree", 1, steps=12), record("tree", 1, steps=12, sample=1)]
    (row,) = ModelledLatency(2.0, 0.0).report(records).tables["modelled_latency"].rows
    speedup: Any = row[-1]
    assert speedup.ratio == pytest.approx(2.0)  # sqrt(4 * 1), the second prompt once
    assert (speedup.low, speedup.high, speedup.n) == (pytest.approx(1.0), pytest.approx(4.0), 2)


def test_published_rows_stand_beside_and_everything_is_called_modelled() -> None:
    published = [PublishedLatency("DySpec, C4", 9.1, 0.537, 10.42), PublishedLatency("somebody's")]
    report = ModelledLatency(5.0, 0.025, published).report(RECORDS)
    table = report.tables["modelled_latency"]

    assert table.rows[-2] == ["DySpec, C4 (not run here)", 9.1, None, 0.537, "10.42x published"]
    assert table.rows[-1] == ["somebody's (not run here)", None, None, None, None]
    assert table.title == "Modelled latency: a target pass of 5 s, a draft pass of 0.025 s"
    assert all("s/token" not in column.title or "modelled" in column.title for column in table.columns)
    (axes,) = report.figures["modelled_latency"].axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["engine", "tree", "DySpec, C4 (not run here)"]
    assert "Modelled" in str(report.figures["modelled_latency"].get_suptitle())


def test_without_an_answer_there_is_no_picture() -> None:
    report = ModelledLatency(5.0, 0.025).report(RECORDS[-3:])
    assert report.figures == {}
    assert "refused" in report.tables["modelled_latency"].to_markdown()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target_seconds": 0, "draft_seconds": 0.1}, "target_seconds is 0; allowed"),
        ({"target_seconds": 5, "draft_seconds": -0.1}, "draft_seconds is -0.1; allowed"),
        ({"target_seconds": 5}, "draft_seconds is missing"),
        (
            {"target_seconds": 5, "draft_seconds": 0, "published": [{"method": "x", "speedup": "fast"}]},
            "published.0.speedup is 'fast'; allowed",
        ),
        (
            {"target_seconds": 5, "draft_seconds": 0, "published": [{"metod": "x"}]},
            "metod",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump({"analyses": [{"class_path": "ModelledLatency", "init_args": arguments}]}))
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
