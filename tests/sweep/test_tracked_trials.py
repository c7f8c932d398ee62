"""What W&B is told of a study, read back from the files of offline runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fake_bench import PROMPTS, FakeBench, search, settings
from helpers.offline_runs import forget_account, offline_runs, records

from specexp.bench.statistics import Speedup
from specexp.config import Config, load_config
from specexp.sweep.output import TrackedTrials, method_of, setting_of, summary_of
from specexp.sweep.trials import Candidate, Confirmed, Measurement, Report
from specexp.tracking import Tracker

SPEEDUP = Speedup("trial 3", "engine", math.log(1.5), 1.5, 1.4, 1.6, 40)
WINNER = Confirmed("trial 3", 3, (), {}, 2.5, 300.0, SPEEDUP, None)


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_account(monkeypatch, tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "mine.yaml"
    file.write_text(
        """\
name: mine
data: {prompts: {class_path: StdlibFunctions, init_args: {split: validation}}}
drafter: TokenRecycling
builder: Chain
verifier: KeyedSampling
sweep:
  n_trials: 2
  storage: postgresql://me:very-secret@host/db
  space: {builder.init_args.length: {type: int, low: 1, high: 8}}
"""
    )
    return load_config(file)


class Watching(FakeBench):
    """Counts the runs that are there when a trial's measurement begins; fails with 30 nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.runs: dict[int, int] = {}

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        self.runs[candidate.attributes["nodes"]] = len(list(self.folder.glob("wandb/offline-run-*")))
        if candidate.attributes["nodes"] == 30:
            raise RuntimeError("out of memory")
        return super().measure(candidate, report, trial)


def test_trials_are_written_as_they_run(tmp_path: Path) -> None:
    """One that fails while it is measured, one that is refused before, one that is measured."""
    known = [
        {"name": f"chain {nodes}", "builder": {"class_path": "Chain", "init_args": {"nodes": nodes}}}
        for nodes in (30, 13, 20)
    ]
    tracker = Tracker("fake", tmp_path)
    watched = TrackedTrials(tracker, {"model": "stdlib", "device": "cpu"}, ["speedup"])
    bench = Watching(tmp_path)
    search(tmp_path, bench, settings(enqueue=known, n_trials=1), watched=watched)

    assert bench.runs == {30: 1, 20: 3}
    assert tracker.failures == {}
    _, refused, whole = runs = offline_runs(tmp_path)
    assert [run["summary"]["state"] for run in runs] == ["failed", "failed", "complete"]
    assert refused["summary"]["reason"] == "ValueError: thirteen nodes do not go together"
    assert all((run["config"]["model"], run["config"]["device"]) == ("stdlib", "cpu") for run in runs)
    history = [record["item"]["speedup"] for record in records(whole["folder"], "history")]
    assert len(history) == PROMPTS
    assert history[0] == pytest.approx(math.exp(0.5), abs=2e-4)  # but for the noise of the bench
    assert whole["summary"]["speedup"] == pytest.approx(math.exp(whole["summary"]["log_speedup"]))


def test_an_interrupted_trial_is_closed(tmp_path: Path) -> None:
    class Interrupted(FakeBench):
        def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
            report(0, 0.5)
            raise KeyboardInterrupt

    watched = TrackedTrials(Tracker("fake", tmp_path), {}, ["speedup"])
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, Interrupted(), settings(), watched=watched)
    watched.interrupt()
    (run,) = offline_runs(tmp_path)
    assert (run["summary"]["state"], run["exit_code"]) == ("interrupted", 1)


def test_runs_say_what_decodes_what_how_and_where(config: Config) -> None:
    setting = setting_of(config)
    assert {"pair", "verifier", "data", "generation", "device_name"} <= setting.keys()
    assert (setting["model"], setting["device"]) == ("stdlib", "cpu")
    assert setting["verifier"]["class_path"].endswith("KeyedSampling")
    assert "torch" in setting["versions"]
    assert "very-secret" not in str({**config.to_dict(), **setting})


@pytest.mark.parametrize(
    ("parts", "choice", "method"),
    [
        ({"drafter": {"class_path": "specexp.drafters.PromptLookup"}}, None, "PromptLookup"),
        ({"drafter": {"class_path": "specexp.drafters.PromptLookup"}}, "chain", "chain"),
        ({"drafter": None, "engine": {"class_path": "specexp.engines.LlamaServer"}}, None, "LlamaServer"),
        ({"drafter": None}, None, "plain"),
    ],
)
def test_studies_are_taken_together_by_what_won(
    parts: dict[str, Any], choice: str | None, method: str
) -> None:
    config: Any = SimpleNamespace(get=parts.get)
    assert method_of(config, replace(WINNER, choice=choice)) == method


def test_a_study_is_compared_by_its_winner() -> None:
    assert summary_of(WINNER) == {
        "winner": "trial 3",
        "winner_trial": 3,
        "confirmed_speedup": 1.5,
        "confirmed_speedup_low": 1.4,
        "confirmed_speedup_high": 1.6,
        "tokens_per_second": 300.0,
        "tokens_per_step": 2.5,
    }
