"""The result of a command: a last line for people, one line of JSON for programs, a page that opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specexp.config import Config, ConfigError
from specexp.config.command import current_result, run_command

ROOT = Path(__file__).parents[2]
TREE = "drafter: TokenRecycling\nbuilder: {class_path: ParametricTree, init_args: {nodes: 12}}\n"


def acts(config: Config, dry_run: bool) -> int:
    print("a table, and progress")
    found = current_result()
    found.answer, found.page, found.next = "Trees win.", "runs/x/report.html", "" if dry_run else "go on"
    found.summary = {"speedup": 1.5, "nothing": float("nan")}
    return 0


def refuses(config: Config, dry_run: bool) -> int:
    raise ConfigError("x.yaml: builder is wrong")


@pytest.fixture
def path(write):
    return str(write(TREE))


def test_the_last_line_is_the_next_step(path, capsys):
    assert run_command("usage", [path], acts) == 0
    assert capsys.readouterr().out == "a table, and progress\nNext: go on\n"
    assert run_command("usage", [path, "--dry-run"], acts) == 0
    assert capsys.readouterr().out.endswith("Next: the same command without --dry-run\n")


def test_quiet_shows_the_answer_the_page_and_the_next_step(path, capsys):
    assert run_command("usage", [path, "--quiet"], acts) == 0
    assert capsys.readouterr().out == "Trees win.\nruns/x/report.html\nNext: go on\n"


def test_json_is_one_line_also_for_errors(path, capsys):
    assert run_command("usage", [path, "--json"], acts) == 0
    assert json.loads(capsys.readouterr().out) == {
        "exit_code": 0,
        "answer": "Trees win.",
        "page": "runs/x/report.html",
        "summary": {"speedup": 1.5, "nothing": None},
        "next": "go on",
    }
    assert run_command("usage", [path, "--json"], refuses) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"exit_code": 2, "error": "x.yaml: builder is wrong"}
    assert shown.err == "error: x.yaml: builder is wrong\n"


def test_open_opens_the_page(path, monkeypatch, tmp_path):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.chdir(tmp_path)
    assert run_command("usage", [path, "--open"], acts) == 0
    assert opened == [(tmp_path / "runs/x/report.html").as_uri()]


def test_a_closed_pipe_ends_the_output_without_a_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-c", "from specexp.config.command import say; say('long ' * 100_000)"],
        stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")
