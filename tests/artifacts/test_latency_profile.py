"""A latency profile is loaded as it was saved, measured or written by hand; a field that is wrong is one sentence."""

from pathlib import Path
from typing import Any

import pytest

from specexp.artifacts import ArtifactError, value_of
from specexp.artifacts.kinds.latency_profile import LatencyProfileArtifact
from specexp.config.artifacts import save_artifact
from specexp.core.latency import LatencyProfile, Overhead
from specexp.deploy.export.command import main

PROFILE = LatencyProfile(
    "a device", {1: 10.0, 8: 12.0}, {1: 2.0}, 0.5, prefix_tokens=64, target_prefix_ms=1.5,
    overheads={"plain": Overhead(token_ms=0.25)}, source="published",
)  # fmt: skip
POINT = {"tokens": 1, "prefix": 64, "ms": 10.0, "low": 9.5, "high": 10.5}
ARM = {
    "arm": "plain decoding", "composition": "plain", "tokens": 40, "steps": 40, "nodes": 0,
    "measured_ms": 10.0, "predicted_ms": 10.1,
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "device": "a CPU", "threads": 1, "target_dtype": "bfloat16", "draft_dtype": None,
    "target": [POINT], "draft": [], "arms": [ARM],
}  # fmt: skip


def save(folder: Path, **changed: Any) -> LatencyProfileArtifact:
    content = {**PROFILE.to_dict(), **changed}
    content = {name: value for name, value in content.items() if value != "left out"}
    saved = save_artifact(folder / "a", "latency-profile", {"profile.json": content})
    assert isinstance(saved.content, LatencyProfileArtifact)
    return saved


def test_it_is_the_profile_that_was_saved_and_says_whether_it_was_measured(tmp_path: Path) -> None:
    by_hand = save(tmp_path)
    assert by_hand.profile == PROFILE
    assert by_hand.profile.label == "modelled: a device (published)"
    assert by_hand.measured is None
    measured = save(tmp_path, measured=MEASURED, source="measured")
    assert value_of("latency-profile", str(tmp_path / "a" / "best")) == measured.profile
    assert measured.measured is not None
    assert measured.measured.target[0].high == 10.5
    assert measured.measured.arms[0].predicted_ms == 10.1


def test_a_profile_is_read_once_and_an_alias_that_moves_is_followed(tmp_path: Path) -> None:
    save(tmp_path)
    first = value_of("latency-profile", str(tmp_path / "a" / "best"))
    assert value_of("latency-profile", str(tmp_path / "a" / "best")) is first
    save(tmp_path, step_ms=7.0)
    assert value_of("latency-profile", str(tmp_path / "a" / "best")).step_ms == 7.0


def test_what_may_be_left_out_has_its_default(tmp_path: Path) -> None:
    assert save(tmp_path, overheads="left out", step_ms="left out").profile.step_ms == 0


def test_it_is_for_experiments_and_not_for_deployments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save(tmp_path)
    assert main([str(saved.folder), "--to", "vllm"]) == 2
    assert "a latency profile is for experiments, as latency: {artifact: PATH}" in capsys.readouterr().err
    with pytest.raises(ArtifactError, match="records no drafter"):
        _ = saved.parts
