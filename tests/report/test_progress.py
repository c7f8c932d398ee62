"""The lines of a stage: a bar on a terminal, and without one a line at most once a minute."""

import io

from rich.console import Console

from specexp.report.progress import StageBar


def test_without_a_terminal_a_long_stage_prints_a_line_a_minute(monkeypatch):
    seconds = iter(range(0, 1000, 25))
    monkeypatch.setattr("specexp.report.progress.time", lambda: next(seconds))
    written = io.StringIO()
    with StageBar(Console(file=written, force_terminal=False)) as bar:
        bar.stage("confirming", 8)
        for _ in range(8):
            bar.prompt()
    lines = [line for line in written.getvalue().splitlines() if line.startswith("confirming: ")]
    assert lines == ["confirming: 3 of 8", "confirming: 6 of 8"]
