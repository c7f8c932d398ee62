"""The dashboard of a study is built without network, and published by one command."""

from __future__ import annotations

import sys

import pytest
from helpers.offline_runs import forget_account

from specexp.commands.dashboard import main
from specexp.tracking.dashboard import build_workspace, describe_comparison, describe_dashboard

EXPERIMENT = """
name: shapes
pair: {target: stdlib}
data: {prompts: {class_path: StdlibFunctions, init_args: {split: validation}}, max_prompts: 2}
drafter: {class_path: TokenRecycling, init_args: {k: 8}}
builder: {class_path: Chain, init_args: {length: 4}}
verifier: {class_path: KeyedSampling, init_args: {temperature: 0.7}}
sweep:
  n_trials: 2
  space:
    builder.init_args.length: {type: int, low: 1, high: 8}
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    forget_account(monkeypatch, tmp_path)
    file = tmp_path / "shapes.yaml"
    file.write_text(EXPERIMENT)
    return str(file)


def test_the_workspace_compares_the_runs_of_its_study():
    keys = ["builder", "builder.init_args.nodes"]
    ws = pytest.importorskip("wandb_workspaces.workspaces", reason="needs the extra dashboard")
    workspace = build_workspace(describe_dashboard("tree_shape", keys), "team", "specexp")
    view = workspace._to_model()  # what save() would send; there is no public name for it
    spec = view.model_dump(by_alias=True, exclude_none=True)["spec"]["section"]

    (runs,) = spec["runSets"]
    (group,) = runs["filters"]["filters"]
    assert (group["key"]["name"], group["value"]) == ("group", "tree_shape")
    assert runs["sort"]["keys"][0]["key"] == {"section": "summary", "name": "speedup"}

    panels = [panel for section in spec["panelBankConfig"]["sections"] for panel in section["panels"]]
    kinds = [panel["viewType"] for panel in panels]
    assert kinds.count("Scatter Plot") == 3
    assert {"Parameter Importance", "Bar Chart", "Weave", "Media Browser"} <= set(kinds)
    axes = panels[kinds.index("Parallel Coordinates Plot")]["config"]["columns"]
    assert [axis["accessor"] for axis in axes] == [
        "config:params.value.builder.name",
        "config:params.value.builder.init_args.nodes",
        "summary:speedup",
    ]
    assert ws.Workspace._from_model(view).sections[0].name == workspace.sections[0].name


def test_an_experiment_without_a_sweep_has_a_workspace_of_its_arms(experiment, tmp_path, capsys):
    compared = tmp_path / "compared.yaml"
    compared.write_text(EXPERIMENT.partition("sweep:")[0] + "arms:\n  short: {title: a short chain}\n")
    assert main([str(compared), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "BarPlot: Speedup over plain decoding" in shown
    described = describe_comparison("compared", ["a short chain"])
    assert described.pinned == ("a short chain/speedup",)


def test_a_dry_run_shows_the_panels_without_the_extra(experiment, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert main([experiment, "--project", "mine", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "specexp shapes -> your-entity/mine"
    assert "    ScatterPlot: Speedup over plain decoding by nodes" in shown
    assert main([experiment, "--studies", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "specexp studies -> your-entity/specexp"
    assert "    BarPlot: confirmed speedup over plain decoding by method" in shown


def test_a_mistake_is_one_sentence(experiment, tmp_path, monkeypatch, capsys):
    def error(*arguments: str) -> tuple[int, str]:
        code, shown = main(list(arguments)), capsys.readouterr().err
        assert shown.count("\n") == 1
        return code, shown

    assert "set it with --entity" in error(experiment)[1]
    without = tmp_path / "arms.yaml"
    without.write_text(EXPERIMENT.split("drafter:")[0])
    assert "has neither a sweep: section nor arms" in error(str(without), "--dry-run")[1]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
        code, shown = error(experiment, "--entity", "team")
    assert code == 1
    assert '".[dashboard]"' in shown


def test_a_missing_login_and_a_refusal_of_the_server_are_one_sentence(experiment, monkeypatch, capsys):
    ws = pytest.importorskip("wandb_workspaces.workspaces", reason="needs the extra dashboard")

    def refuse(_: object) -> None:
        raise ValueError("entity team not found\nTraceback ...")

    assert main([experiment, "--entity", "team"]) == 1
    assert "wandb login" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(ws.Workspace, "save", refuse)
    assert main([experiment, "--entity", "team"]) == 1
    assert capsys.readouterr().err == (
        "error: W&B refused the dashboard of team/specexp: entity team not found; --dry-run shows the panels\n"
    )
