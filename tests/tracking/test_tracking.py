"""W&B: its mode, names and cells, what a study leaves in offline runs, and what the dashboard finds there."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.made_records import record
from helpers.offline_runs import forget_account, offline_runs, records
from matplotlib.figure import Figure

from specexp.bench.metrics import figures_of
from specexp.core.outcome import PHASES
from specexp.report.publish import Report, publish
from specexp.report.sections import folding_tree, prompts_shown
from specexp.tracking.dashboard import describe_dashboard
from specexp.tracking.mode import logged_in, resolve_mode
from specexp.tracking.names import nest_parameters, parameter_key, table_columns, to_json
from specexp.tracking.tracker import Tracker


@pytest.fixture(autouse=True)
def netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    forget_account(monkeypatch, tmp_path)
    return tmp_path / "netrc"


KEY = {"WANDB_API_KEY": "0" * 40}
LOGIN = "machine api.wandb.ai\n  login user\n  password " + "0" * 40 + "\n"


@pytest.mark.parametrize(
    ("login", "environment", "mode", "expected"),
    [
        ("", {}, None, "offline"),
        ("", KEY, None, "online"),
        (LOGIN, {}, None, "online"),
        (LOGIN, {"WANDB_BASE_URL": "https://wandb.example.org"}, None, "offline"),
        ("", {"WANDB_MODE": "disabled"}, None, "disabled"),
        ("", {"WANDB_MODE": "disabled"}, "offline", "offline"),
    ],
)
def test_runs_are_online_only_with_an_account(netrc, monkeypatch, login, environment, mode, expected) -> None:
    netrc.write_text(login)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert logged_in() is (expected == "online")
    assert resolve_mode(mode) == expected


def test_online_without_account_is_offline_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_mode("online") == "offline"
    assert "wandb login" in caplog.text


def test_an_unknown_mode_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"W&B mode must be one of online, offline, disabled, or null, got 'onlin'"):
        resolve_mode("onlin")


def test_parameters_keep_their_dotted_keys() -> None:
    assert nest_parameters({"drafter.init_args.update": "last", "drafter.init_args.k": np.int64(8)}) == {
        "drafter": {"init_args": {"update": "last", "k": 8}}
    }


def test_a_part_searched_beside_its_arguments_stands_at_its_name() -> None:
    keys = ["builder.init_args.nodes", "builder"]
    assert [parameter_key(key, keys) for key in keys] == ["builder.init_args.nodes", "builder.name"]
    params = {"builder.init_args.nodes": 4, "builder": {"class_path": "Chain"}}
    assert nest_parameters(params) == {"builder": {"init_args": {"nodes": 4}, "name": "Chain"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        ((1, {"a": Path("runs")}), [1, {"a": "runs"}]),
        (float("inf"), "inf"),
        (True, True),
        (int, "<class 'int'>"),
    ],
)
def test_values_become_plain_json(value: object, expected: object) -> None:
    assert to_json(value) == expected


def test_a_column_has_one_type() -> None:
    columns, rows = table_columns([{"a": 1, "b": "x", "c": True}, {"a": 2.5, "b": [0, 1]}, {"b": 3}])
    assert columns == ["a", "b", "c"]
    assert rows == [[1, "x", True], [2.5, "[0, 1]", None], [None, "3", None]]


PARAMS = {"builder": {"name": "parametric", "class_path": "ParametricTree"}, "builder.init_args.nodes": 16}


@pytest.mark.slow
def test_a_trial_is_an_offline_run_of_the_study_s_group(tmp_path: Path) -> None:
    tracker = Tracker("tree_shape", tmp_path / "runs", tags=["cpu"])
    with tracker.trial(3, PARAMS, {"generation": {"seed": 0, "folder": Path("runs")}}) as run:
        for prompt in range(3):
            run.log({"prompt": prompt, "speedup": 1.0 + prompt})
        run.summary({"speedup": 1.5, "seconds/draft": 0.25})

    assert tracker.failures == {}
    (folder,) = (tmp_path / "runs" / "wandb").glob("offline-run-*")
    (found,) = offline_runs(tmp_path / "runs")
    assert found["name"] == "tree_shape-003"
    assert found["project"] == "specexp"
    assert found["state"] == "finished"
    assert found["config"] == {
        "trial": 3,
        "params": {"builder": {"name": "parametric", "init_args": {"nodes": 16}}},
        "generation": {"seed": 0, "folder": "runs"},
    }
    summary = found["summary"]
    assert (summary["speedup"], summary["seconds/draft"], summary["state"]) == (1.5, 0.25, "complete")
    assert [record["item"]["speedup"] for record in records(folder, "history")] == [1.0, 2.0, 3.0]
    (started,) = records(folder, "run")
    assert (started["run_group"], started["job_type"], started["tags"]) == ("tree_shape", "trial", ["cpu"])


AGENT = {
    "WANDB_SWEEP_ID": "abc", "WANDB_RUN_ID": "xyz", "WANDB_SWEEP_PARAM_PATH": "p.yaml", "WANDB_RESUME": "allow",
}  # fmt: skip


@pytest.mark.slow
def test_each_trial_under_wandb_agent_is_a_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {**AGENT, "WANDB_PROJECT": "mine", "WANDB_NAME": "nn"}.items():
        monkeypatch.setenv(name, value)
    tracker = Tracker("study", tmp_path)
    for number in range(2):
        with tracker.trial(number, PARAMS) as run:
            run.log({"speedup": 1.0})
    folders = {path.name.rpartition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*")}
    assert len(folders) == 2
    assert "xyz" not in folders
    assert [found["project"] for found in offline_runs(tmp_path)] == ["mine", "mine"]
    assert {found["name"] for found in offline_runs(tmp_path)} == {"study-000", "study-001"}
    for name in (*AGENT, "WANDB_NAME"):
        assert name in caplog.text


def test_the_files_project_is_kept_with_a_note_and_disabled_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "other")
    assert Tracker("study", "runs", project="mine").project == "mine"
    assert "WANDB_PROJECT=other ignored" in caplog.text
    monkeypatch.setenv("WANDB_DISABLED", "true")
    assert Tracker("study", "runs", mode="offline").mode == "disabled"


def test_the_study_run_holds_table_picture_and_artifact(tmp_path: Path) -> None:
    exported = tmp_path / "artifacts"
    exported.mkdir()
    (exported / "artifact.json").write_text('{"kind": "static-tree"}')
    Figure(figsize=(1, 1)).savefig(tmp_path / "tree.png")
    tracker = Tracker("tree_shape", tmp_path / "runs")
    with tracker.run("tree_shape", "study", {"question": "Which tree?"}) as run:
        run.table("trials", [{"number": 0, "speedup": 1, "tree": [[0]]}, {"number": 1, "speedup": 1.5, "note": "x"}])
        run.picture("tree", tmp_path / "tree.png")
        run.artifact(exported, "tree shape/4 bit", "static-tree", ("latest", "best"))
    (exported / "artifact.json").unlink()

    assert tracker.failures == {}
    (folder,) = (tmp_path / "runs" / "wandb").glob("offline-run-*")
    (table,) = folder.glob("files/media/table/*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["number", "speedup", "tree", "note"],
        "data": [[0, 1, "[[0]]", None], [1, 1.5, None, "x"]],
    }
    assert len(list(folder.glob("files/media/images/*.png"))) == 1
    (artifact,) = [found for found in records(folder, "artifact") if found["name"] == "tree_shape_4_bit"]
    assert (artifact["type"], sorted(artifact["aliases"])) == ("static-tree", ["best", "latest"])
    (entry,) = artifact["manifest"]["contents"]
    kept = Path(entry["local_path"])
    assert kept.is_relative_to(tmp_path / "runs")
    assert kept.read_text() == '{"kind": "static-tree"}'


@pytest.mark.slow
def test_a_failing_trial_is_recorded_and_its_error_passes(tmp_path: Path) -> None:
    tracker = Tracker("study", tmp_path)
    with pytest.raises(RuntimeError, match="no memory"), tracker.trial(0, {}):
        raise RuntimeError("no memory")
    with tracker.trial(1, {}) as run:
        run.summary({"state": "pruned"})

    failed, pruned = offline_runs(tmp_path)
    assert (failed["summary"]["state"], failed["exit_code"]) == ("failed", 1)
    assert failed["summary"]["reason"] == "RuntimeError('no memory')"
    assert (pruned["summary"]["state"], pruned["exit_code"]) == ("pruned", 0)


def test_disabled_never_imports_wandb(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from specexp.tracking.tracker import Tracker
tracker = Tracker("study", Path({str(tmp_path)!r}) / "runs", mode="disabled")
with tracker.trial(0, {{"nodes": 4}}) as trial, tracker.run("whole", "study") as study:
    trial.log({{"speedup": 1.0}})
    study.table("trials", [{{"number": 0}}])
    study.artifact("nowhere", "tree", "static-tree", ())
assert tracker.sync_hint() == ""
assert "wandb" not in sys.modules, "imported"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not (tmp_path / "runs").exists()


def test_a_broken_wandb_warns_once_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    monkeypatch.setattr(wandb, "init", Mock(side_effect=OSError("no space left on device")))
    tracker = Tracker("study", tmp_path, mode="offline")
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            with tracker.trial(number, {"nodes": number}) as run:
                run.log({"speedup": 1.0})
                run.picture("tree", "missing.png")
    assert tracker.failures == {"start a run": 3}
    assert [record.getMessage() for record in caplog.records] == [
        "W&B could not start a run (OSError: no space left on device); the work goes on without it"
    ]
    assert tracker.sync_hint() == ""

    monkeypatch.undo()
    forget_account(monkeypatch, tmp_path)
    with tracker.trial(3, {}) as run:
        run.picture("tree", tmp_path / "missing.png")
        run.finish()
        run.log({"speedup": 1.0})
    assert tracker.failures == {"start a run": 3, "write a picture": 1}


@pytest.mark.slow
def test_an_unreachable_server_falls_back_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    start = wandb.init
    modes: list[str] = []

    def without_network(**arguments: Any) -> Any:
        modes.append(arguments["mode"])
        if arguments["mode"] == "online":
            raise wandb.errors.CommError("unreachable")
        return start(**arguments)

    monkeypatch.setattr(wandb, "init", without_network)
    tracker = Tracker("study", tmp_path)
    for number in range(2):
        with tracker.trial(number, {}) as run:
            run.summary({"speedup": 1.0})
    assert modes == ["online", "offline", "offline"]
    assert len(offline_runs(tmp_path)) == 2
    assert "offline-run-*" in tracker.sync_hint()


def test_a_connection_lost_midway_is_part_of_the_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    lost = Mock(offline=False, url="https://wandb.example/run", dir=str(tmp_path / "wandb" / "run-1" / "files"))
    lost.finish.side_effect = TimeoutError("Timed out finishing run.")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "init", Mock(return_value=lost))
    monkeypatch.chdir(tmp_path)
    tracker = Tracker("study", tmp_path, mode="online")
    with tracker.trial(0, {}) as run:
        run.summary({"speedup": 1.0})
    assert tracker.sync_hint() == "wandb sync wandb/run-1"
    assert tracker.failures == {"finish a run": 1}


class Letters:
    def decode(self, ids) -> str:
        return "".join("abcdefghi"[one] for one in ids)


@pytest.mark.slow
def test_every_panel_finds_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_account(monkeypatch, tmp_path)
    tracker = Tracker("shapes", tmp_path, mode="offline")
    decoded = record("tree", 0, sources=(0, 1, -1, -2), drafted_nodes=4, seconds=dict.fromkeys(PHASES, 0.1))
    figures = figures_of([decoded])
    with tracker.trial(0, {"builder.init_args.nodes": 4}) as run:
        run.summary({**figures, "speedup": 1.5, "nodes": 4})  # as a row of trials has it
    page = prompts_shown({"p0": "Why?"}, [decoded], {"tree": "Tree"}, Letters())  # type: ignore[arg-type]
    tree = Report(fragments={"tree": folding_tree([(0,)], {(0,): 0.5}, "The tree")})
    publish(Report(parts=[page, tree]), tmp_path, tracker, kind="study")
    trial, whole = sorted(offline_runs(tmp_path), key=lambda found: "speedup" not in found["summary"])
    logged = {key for line in records(whole["folder"], "history") for key in line["item"]}
    shown = {re.split(r"[./]", key)[0] for key in logged} | {"trials"}
    dashboard = describe_dashboard("shapes", ["builder.init_args.nodes"])
    for panels in dashboard.sections.values():
        for panel in panels:
            options = panel.options
            wanted = {options[name] for name in ("x", "y", "with_respect_to") if name in options}
            assert wanted | set(options.get("metrics", ())) <= trial["summary"].keys(), panel
            media = {*options.get("media_keys", ()), *filter(None, [options.get("table_name")])}
            assert media <= shown, panel
