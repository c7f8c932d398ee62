"""What a study leaves in W&B, read back from the files of its offline runs."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.offline_runs import forget_account, offline_runs, records
from matplotlib.figure import Figure

from specexp.tracking import Tracker

PARAMS = {"builder": {"name": "parametric", "class_path": "ParametricTree"}, "builder.init_args.nodes": 16}


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_account(monkeypatch, tmp_path)


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


def test_the_study_run_holds_table_picture_and_artifact(tmp_path: Path) -> None:
    exported = tmp_path / "artifacts"
    exported.mkdir()
    (exported / "artifact.json").write_text('{"kind": "static-tree"}')
    tracker = Tracker("tree_shape", tmp_path / "runs")
    with tracker.study({"question": "Which tree?"}) as run:
        run.table(
            "trials", [{"number": 0, "speedup": 1, "tree": [[0]]}, {"number": 1, "speedup": 1.5, "note": "x"}]
        )
        run.picture("tree", Figure(figsize=(1, 1)), caption="the winner")
        run.artifact(exported, "tree_shape", "static-tree", metadata={"speedup": 1.5})
    (exported / "artifact.json").unlink()

    assert tracker.failures == {}
    (folder,) = (tmp_path / "runs" / "wandb").glob("offline-run-*")
    (table,) = folder.glob("files/media/table/*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["number", "speedup", "tree", "note"],
        "data": [[0, 1, "[[0]]", None], [1, 1.5, None, "x"]],
    }
    assert len(list(folder.glob("files/media/images/*.png"))) == 1
    (artifact,) = [found for found in records(folder, "artifact") if found["name"] == "tree_shape"]
    assert (artifact["type"], sorted(artifact["aliases"])) == ("static-tree", ["best", "latest"])
    (entry,) = artifact["manifest"]["contents"]
    kept = Path(entry["local_path"])
    assert kept.is_relative_to(tmp_path / "runs")
    assert kept.read_text() == '{"kind": "static-tree"}'


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


def test_runs_and_the_hint_are_of_the_present_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):  # one service writes both
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        tracker = Tracker("tree shape", "my runs/tree shape")
        assert tracker.sync_hint() == ""
        with tracker.run("arms") as run:
            run.log({"speedup": 1.0})
        assert tracker.sync_hint() == "wandb sync 'my runs/tree shape/wandb'/offline-run-*"
        assert len(list(Path("my runs/tree shape/wandb").glob("offline-run-*"))) == 1


def test_disabled_never_imports_wandb(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from specexp.tracking import Tracker
tracker = Tracker("study", Path({str(tmp_path)!r}) / "runs", mode="disabled")
with tracker.trial(0, {{"nodes": 4}}) as trial, tracker.study() as study:
    trial.log({{"speedup": 1.0}})
    study.table("trials", [{{"number": 0}}])
    study.artifact("nowhere", "tree", "static-tree")
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


def test_a_connection_lost_midway_is_part_of_the_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    lost = Mock(
        offline=False, url="https://wandb.example/run", dir=str(tmp_path / "wandb" / "run-1" / "files")
    )
    lost.finish.side_effect = TimeoutError("Timed out finishing run.")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "init", Mock(return_value=lost))
    monkeypatch.chdir(tmp_path)
    tracker = Tracker("study", tmp_path, mode="online")
    with tracker.trial(0, {}) as run:
        run.summary({"speedup": 1.0})
    assert tracker.sync_hint() == "wandb sync wandb/run-1"
    assert tracker.failures == {"finish a run": 1}
