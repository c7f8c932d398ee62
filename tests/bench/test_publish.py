"""A report reaches the terminal, the folder and W&B through one function."""

import json
import re
from io import StringIO
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest
from rich.console import Console

from specexp.bench.pictures import new_figure, png
from specexp.bench.publish import Attached, Report, files_of, publish
from specexp.bench.table import Column, Table


@pytest.fixture
def tracker():
    made = MagicMock()
    made.name = "study"
    made.sync_hint.return_value = "wandb sync there"
    made.tracked = made.run.return_value.__enter__.return_value
    return made


def table(title: str = "Speed") -> Table:
    return Table(title, [Column("arm"), Column("tokens/s", 0)], [["engine", 123.4]], ["a note"])


def published(report: Report, folder: Path, **options: object) -> str:
    """Publish a report; returns the printed text."""
    text = StringIO()
    publish(report, folder, console=Console(file=text, width=100), **options)
    return text.getvalue()


def test_a_table_is_printed_and_written_for_a_person_and_a_program(tmp_path: Path) -> None:
    printed = published(Report({"arms": table()}), tmp_path / "new")
    assert all(part in printed for part in ("Speed", "a note"))
    assert f"Results in {tmp_path / 'new'}" in printed.replace("\n", "")
    assert (tmp_path / "new" / "arms.md").read_text() == table().to_markdown()
    assert (tmp_path / "new" / "arms.csv").read_text() == "arm,tokens/s\nengine,123.4\n"


def test_a_page_holds_heading_tables_sentences_and_pictures(tmp_path: Path) -> None:
    figure, _ = new_figure(3, 2, "Nothing")
    tables, data = {"arms": table(), "more": table("More")}, {"points": table("Points")}
    texts = {"sentences": ["It [is] fast."], "title": "Answer", "page": "table"}
    printed = published(Report(tables, {"two_words": figure}, data=data, **texts), tmp_path)
    page = (tmp_path / "table.md").read_text()
    pieces = ("# Answer", "**Speed**", "**More**", "It [is] fast.", "![two words](two_words.png)")
    assert [*map(page.index, pieces)] == sorted(map(page.index, pieces))
    names = ["points.csv", "report.html", "table.md", "two_words.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert "It [is] fast." in printed
    assert "Points" not in printed


def test_parts_are_published_after_the_report_and_tracked_in_the_same_run(tmp_path: Path, tracker) -> None:
    figure, _ = new_figure(3, 2)
    part = Report({"part": table("Part")}, {"picture": figure}, {"part.json": json.dumps([1])})
    attached = [Attached(tmp_path, "best", "static-tree")]
    report = Report({"arms": table()}, summary={"speedup": 2.0}, artifacts=attached, parts=[part])
    printed = published(report, tmp_path, tracker=tracker, kind="profile", config={"name": "study"})
    tracker.run.assert_called_once_with("study", job_type="profile", config={"name": "study"})
    assert tracker.tracked.mock_calls == [
        call.table("arms", table().records()),
        call.summary({"speedup": 2.0}),
        call.artifact(tmp_path, "best", "static-tree"),
        call.table("part", table().records()),
        call.picture("picture", tmp_path / "picture.png"),
    ]
    assert printed.index("Speed") < printed.index("Part") < printed.index("Results in")
    assert printed.rstrip().endswith("W&B: wandb sync there")
    assert json.loads((tmp_path / "part.json").read_text()) == [1]
    assert {"arms.md", "arms.csv", "part.md", "part.csv", "picture.png", "part.json"} == set(files_of(report))


def test_a_section_of_the_page_is_a_panel_and_the_last_line_is_the_next_step(tmp_path: Path, tracker) -> None:
    sections, steps = {"tree": "<h2>The tree</h2>"}, {"serve it": "python serve"}
    published(Report({"arms": table()}, fragments=sections, next_steps=steps), tmp_path, tracker=tracker)
    key, panel = tracker.tracked.html.call_args.args
    assert key == "tree_view"
    assert panel.startswith("<!doctype html>")
    assert "<h2>The tree</h2>" in panel
    assert "<p>To serve it:</p><pre>python serve</pre>" in (tmp_path / "report.html").read_text()


def test_sixty_columns_are_enough_and_no_color_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    columns = [Column("arm"), *(Column(f"a long heading {number}") for number in range(6))]
    note = "a note of more than sixty characters " * 2
    wide = Table("Speed", columns, [["a chain of four", *([1.25] * 6)]], [note])
    text = StringIO()
    publish(Report({"arms": wide}), tmp_path, console=Console(file=text, width=60, force_terminal=True))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
    assert max(map(len, shown.partition("Results in")[0].splitlines())) <= 60
    assert not re.search(r"\x1b\[(?:3|4|9)[0-7]m|\x1b\[38", text.getvalue())


def test_tables_are_printed_even_if_the_disk_is_full(tmp_path: Path, monkeypatch, capsys) -> None:
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("specexp.bench.publish.atomic_write", full)
    with pytest.raises(OSError, match="No space"):
        publish(Report({"arms": table()}), tmp_path)
    assert "engine" in capsys.readouterr().out


def test_a_figure_is_laid_out_in_plain_axes_with_a_broken_title() -> None:
    figure, [[left, _]] = new_figure(2, 2, "a title that is far too long for two inches", 1, 2, sharey=True)
    assert "\n" in figure.get_suptitle()
    assert not left.spines["top"].get_visible()
    assert png(figure).startswith(b"\x89PNG")
