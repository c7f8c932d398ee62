"""The page that joins tables of several machines."""

import json
from pathlib import Path

import numpy as np
import pytest

from specexp.bench.statistics import Speedup
from specexp.commands.results import BLOCK, main
from specexp.report.publish import Report, publish
from specexp.report.table import Table, columns

CONFIG = {
    "pair": {"target": "smollm2", "target_dtype": "bfloat16", "mode": "auto"},
    "data": {"prompts": {"class_path": "specexp.data.named_sets.EverydayTasks"}},
    "generation": {"max_new_tokens": 64},
    "sweep": {"export": {"to": "artifacts/mine"}},
}
KNOWN = {
    "command": ["python", "-m", "specexp.sweep", "mine.yaml"], "time": "2030-01-02T03:04:05", "git_commit": None,
    "git_dirty": None, "python": "3.11", "packages": {"specexp": "1.1.0", "torch": "2.13"}, "device": "cpu",
    "threads": 2,
}  # fmt: skip


def written(folder, device_name):
    """Write the page of a study on a device, and return its path."""
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    (folder / "environment.json").write_text(json.dumps({**KNOWN, "device_name": device_name}))
    twice = Speedup.of("tree", "plain", np.array([0.69, 0.7, 0.7, 0.68]), "measured")
    tables = {
        "confirm": Table("Which?", columns("tree | tokens per step | speedup:interval"), [["a | b", 1.5, twice]]),
        "categories": Table("By category", columns("arm | chat | all"), [["a | b", f"{twice} (1.25)", str(twice)]]),
    }
    publish(Report(tables, page="confirm"), folder)
    return str(folder / "confirm.md")


def test_tables_of_two_machines_become_one_page_with_command_and_artifact(tmp_path, capsys):
    files = [written(tmp_path / name, f"{name} CPU, AVX2") for name in ("one", "other")]
    page = tmp_path / "all.html"
    assert main([*files, "--output", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"{page} has 4 results of 2 files; open it in a browser\n")
    found = BLOCK.search(page.read_text())
    assert found is not None
    data = json.loads(found[0].partition("\n")[2].removesuffix("</script>"))
    assert [run["device"] for run in data["runs"]] == ["one CPU, AVX2, 2 threads", "other CPU, AVX2, 2 threads"]
    assert data["runs"][0] == {
        "source": "Which?", "model": "smollm2 (weights from Q4_1)", "device": "one CPU, AVX2, 2 threads", "costs": "",
        "clock": "measured", "engine": "specexp, bfloat16", "command": "python -m specexp.sweep mine.yaml",
        "artifact": "artifacts/mine/best-tree", "commit": "specexp 1.1.0, torch 2.13", "date": "2030-01-02",
    }  # fmt: skip
    whole, chat = data["rows"][:2]
    assert (whole["run"], whole["method"], whole["task"], whole["tokens_per_step"]) == (
        0,
        "a | b",
        "EverydayTasks",
        1.5,
    )
    assert whole["speedup"][0] == pytest.approx(2.0, abs=0.01)
    assert (chat["task"], chat["tokens_per_step"]) == ("EverydayTasks: chat", 1.25)


def test_a_page_neither_replaces_a_table_nor_has_it_twice(tmp_path, capsys):
    file = written(tmp_path / "one", "one CPU")
    before = Path(file).read_text()
    assert main([file, "--output", file]) == 2
    assert f"--output must be a new file or an earlier page of results, got {file}" in capsys.readouterr().err
    assert Path(file).read_text() == before
    assert main([file, "--output", str(tmp_path / "all.html")]) == 0
    assert main([file, "--output", str(tmp_path / "all.html")]) == 0, "an earlier page is replaced"
    assert main([file, file, "--output", str(tmp_path / "all.html")]) == 2
    assert f"each FILE must be given once, got {file} twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# Shopping\n", "it has no speedups over plain decoding"),
        (
            "| arm | tokens/step | vs plain |\n| a | 1 | 2.00x [1.00, 3.00] |\n",
            "it names no conditions below its tables",
        ),
        ("| arm | vs plain |\n| a | 2.00x [1.00, 3.00] |\n", "it has no speedups over plain decoding"),
        (b"\xff", "it cannot be read ("),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_one_sentence(tmp_path, capsys, text, why):
    file = tmp_path / "mine.md"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main([str(file), "--output", str(tmp_path / "all.html")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file} must be table.md of a run or confirm.md of a study")
    assert why in error
    assert error.count("\n") == 1
    assert not (tmp_path / "all.html").exists()


def test_a_missing_file_is_named_with_one_like_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("confirm.md").touch()
    assert main(["confrim.md"]) == 2
    assert capsys.readouterr().err == "error: confrim.md does not exist; did you mean 'confirm.md'?\n"
