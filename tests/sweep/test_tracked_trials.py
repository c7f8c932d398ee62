"""The W&B runs of a study, read back from the files of offline runs."""

import math
from dataclasses import replace

import pytest
from helpers.fake_bench import PROMPTS, FakeBench, search, settings
from helpers.offline_runs import forget_account, offline_runs, records

from specexp.bench.statistics import Speedup
from specexp.config import load_config
from specexp.report.publish import tracked_config
from specexp.sweep.conclusion import method_of
from specexp.sweep.output import summary_of, track_trial
from specexp.sweep.trials import Confirmed
from specexp.tracking.tracker import Tracker

SPEEDUP = Speedup("trial 3", "plain", math.log(1.5), 1.5, 1.4, 1.6, 40)
WINNER = Confirmed("trial 3", 3, (), {}, 2.5, 300.0, SPEEDUP, None)
FILE = """\
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


@pytest.mark.slow
def test_a_trial_is_a_run_with_a_step_for_each_prompt(tmp_path, monkeypatch):
    forget_account(monkeypatch, tmp_path)
    chains = [{"builder": {"class_path": "Chain", "init_args": {"nodes": nodes}}} for nodes in (13, 20)]
    study = search(tmp_path, FakeBench(), settings(enqueue=chains, n_trials=1))
    tracker = Tracker("fake", tmp_path)
    for trial in study.trials:
        track_trial(tracker, trial, {"model": "stdlib", "device": "cpu"}, ["speedup"])
    assert tracker.failures == {}
    refused, whole = runs = offline_runs(tmp_path)
    assert [run["summary"]["state"] for run in runs] == ["failed", "complete"]
    assert refused["summary"]["reason"] == "thirteen nodes do not go together"
    assert [run["name"].partition(": ")[2] for run in runs] == ["Chain(nodes=13)", "Chain(nodes=20), 20 nodes"]
    assert all((run["config"]["model"], run["config"]["device"]) == ("stdlib", "cpu") for run in runs)
    history = [record["item"]["speedup"] for record in records(whole["folder"], "history")]
    assert len(history) == PROMPTS
    assert history[0] == pytest.approx(math.exp(0.5), abs=2e-4)  # but for the noise of the bench
    assert whole["summary"]["speedup"] == pytest.approx(math.exp(whole["summary"]["log_speedup"]))


def test_the_configuration_of_a_run_names_pair_device_and_versions_and_no_password(tmp_path):
    (tmp_path / "mine.yaml").write_text(FILE)
    config = load_config(tmp_path / "mine.yaml")
    setting = tracked_config(config.to_dict())
    assert {"pair", "verifier", "data", "generation", "device_name"} <= setting.keys()
    assert (setting["model"], setting["device"]) == ("stdlib", "cpu")
    assert setting["verifier"]["class_path"].endswith("KeyedSampling")
    assert (setting["prompt_set"], setting["parts"]) == ("StdlibFunctions", "TokenRecycling + Chain")
    assert "torch" in setting["versions"]
    assert "very-secret" not in str(setting)


@pytest.mark.parametrize(
    ("parts", "choice", "method"),
    [
        ({"drafter": {"class_path": "specexp.drafters.PromptLookup"}}, None, "PromptLookup"),
        ({"drafter": {"class_path": "specexp.drafters.PromptLookup"}}, "chain", "chain"),
        ({"drafter": None, "engine": {"class_path": "specexp.engines.LlamaServer"}}, None, "LlamaServer"),
        ({"drafter": None}, None, "plain"),
    ],
)
def test_studies_are_grouped_by_the_method_that_won(parts, choice, method):
    assert method_of({"engine": None, **parts}, replace(WINNER, choice=choice)) == method


def test_the_summary_of_a_study_has_the_winners_figures():
    summary = summary_of(WINNER)
    assert (summary["winner"], summary["winner_trial"], summary["tokens_per_step"]) == ("trial 3", 3, 2.5)
    assert [summary[f"confirmed_speedup{end}"] for end in ("", "_low", "_high")] == [1.5, 1.4, 1.6]
