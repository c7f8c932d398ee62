"""The report as W&B keeps it is built without network, and why it is not published is one sentence."""

import pytest

from experiments.reproduce.__main__ import main
from experiments.reproduce.row_record import RowRecord, measured
from experiments.reproduce.told import look_at


def test_the_report_has_a_chapter_a_paper_and_what_is_known_of_each_row(row, leave_results, tmp_path) -> None:
    pytest.importorskip("wandb_workspaces.reports.v2", reason="needs the extra dashboard")
    from experiments.reproduce.wandb_report import build_report

    RowRecord(row.name, {"": measured(row, row.runs[""], leave_results(tmp_path / "run"))}).write(tmp_path)
    made = build_report(look_at([row], tmp_path), "team", "specexp", "reproduce")
    assert (made.entity, made.project, made.description) == ("team", "specexp", "1 agrees.")
    _contents, paper, place, told, pictures, grid = made.blocks
    assert (paper.text, place.text, pictures.text) == ("DySpec", "Table 0", "Pictures")
    assert "- Here: **agrees**" in told.text
    assert [panel.media_keys for panel in grid.panels] == [["dyspec.made"]]
    assert grid.runsets[0].filters == "Group = 'reproduce'"


def test_why_it_is_not_published_is_one_sentence(tmp_path, monkeypatch, capsys) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    given = ["--report", "--wandb-report", "team", "--tracking.mode", "disabled"]
    given += ["--records", str(tmp_path), "--page", str(tmp_path), "--output", str(tmp_path / "runs")]
    pytest.importorskip("wandb_workspaces.reports.v2", reason="needs the extra dashboard")
    assert main(given) == 2
    assert capsys.readouterr().err == (
        "error: --wandb-report team: nobody is logged in to W&B: run wandb login first\n"
    )
    monkeypatch.setattr("experiments.reproduce.__main__.find_spec", lambda name: None)
    assert main(given) == 2
    assert 'wandb-workspaces is needed: pip install -e ".[dashboard]"' in capsys.readouterr().err
