"""The page of results: its data from records, and the page in a browser."""

import json
import re
from base64 import b64decode
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.browser import BROWSER, title_after
from helpers.made_records import record

from experiments.results_site import PAGE, RECORDS, kept, site_of
from specexp.bench.record import write_records
from specexp.commands.results import BLOCK, with_results
from specexp.config.layers import ConfigError

ROOT = Path(__file__).parents[2]
LOOK = r"""<script>
addEventListener("load", () => setTimeout(() => {
  const text = (selector) => document.querySelector(selector).textContent;
  const at = {};
  at.model = document.querySelector("select[name=model]").value;
  at.points = document.querySelectorAll("#chart circle").length;
  const colors = () => [...document.querySelectorAll("#chart .row")].map((row) => getComputedStyle(row).color);
  const above = colors();
  const ratios = () => [...document.querySelectorAll("td.ratio")].map((cell) => parseFloat(cell.textContent));
  const fastest = ratios();
  at.fastest_first = fastest.every((one, index) => !index || fastest[index - 1] >= one);
  [...document.querySelectorAll("th button")].find((one) => one.textContent === "Speedup").click();
  const slowest = ratios();
  at.slowest_first = slowest.every((one, index) => !index || slowest[index - 1] <= one);
  at.colors = new Set([...above, ...colors()]).size;
  document.querySelector("form button").click();
  at.all = text("#count");
  const task = document.querySelector("select[name=task]");
  task.value = "HumanEval"; task.dispatchEvent(new Event("change"));
  at.tasks = [...new Set([...document.querySelectorAll("td[data-label=Task]")].map((cell) => cell.textContent))];
  const search = document.querySelector("input[type=search]");
  search.value = "no such method"; search.dispatchEvent(new Event("input"));
  at.nothing = text("#chart") + text("#count");
  at.linked = location.hash;
  location.hash = "sort=speedup.down"; dispatchEvent(new Event("hashchange"));
  document.querySelector("summary").click();
  at.opened = document.querySelector("details[open]").textContent;
  at.fits = document.documentElement.scrollWidth <= innerWidth;
  at.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const light = (color) => color.match(/\d+/g).slice(0, 3).reduce((sum, one) => sum + +one, 0);
  const style = getComputedStyle(document.body);
  at.contrast = Math.abs(light(style.color) - light(style.backgroundColor));
  document.title = "LOOKED" + btoa(encodeURIComponent(JSON.stringify(at)));
}, 50));
</script>"""

MOST_MEASURED = "SmolLM2-135M-Instruct"


@pytest.mark.slow
def test_the_page_has_the_figures_of_the_records(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = PAGE.read_text(encoding="utf-8")
    assert with_results(site_of(RECORDS)) == page, "run python -m experiments.results_site"


def test_markup_in_a_name_cannot_end_the_block():
    page = with_results({"rows": [{"a": "</script>"}]})
    found = BLOCK.search(page)
    assert found is not None
    assert json.loads(found[0].partition("\n")[2].removesuffix("</script>")) == {"rows": [{"a": "</script>"}]}


@pytest.fixture
def study(tmp_path):
    """A run on five prompts of category a and one of b. The tree takes half of plain decoding's time."""
    folder = tmp_path / "my_run"
    folder.mkdir()
    lines = []
    for prompt in (0, 2, 4, 6, 8, 1):
        drafted = {"drafted_nodes": 4, "drafted_at": (2, 2), "accepted_at": (2, 1)}
        lines += [record("plain", prompt, 2.0), record("tree", prompt, 1.0, steps=2, **drafted)]
    write_records(folder / "records.jsonl", lines)
    environment = {
        "command": ["python", "-m", "specexp.run", "experiments/workloads.yaml"],
        "time": "2026-01-02T03:04:05+00:00", "git_commit": "0123456789abcdef", "git_dirty": False,
        "device": "cpu", "device_name": "a processor", "cpu_count": 2, "threads": 2, "packages": {},
    }  # fmt: skip
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def test_a_run_is_kept_and_shown_with_speedup_and_acceptance_by_position(study, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    kept(study).write(tmp_path / "results")
    data = site_of(tmp_path)
    [run] = data["runs"]
    assert (run["source"], run["model"], run["device"]) == (
        "my run", "SmolLM2-135M-Instruct", "a processor, threads: 2",
    )  # fmt: skip
    assert (run["clock"], run["commit"], run["date"]) == ("measured", "012345678", "2026-01-02")
    found = {row["task"]: row for row in data["rows"]}
    # the category of one prompt has no row
    assert found.keys() == {"everyday tasks", "everyday tasks: a"}
    row = found["everyday tasks"]
    assert (row["method"], row["engine"], row["prompts"]) == ("tree", "specexp, compiled", 6)
    assert row["speedup"] == [2.0, 2.0, 2.0]
    assert row["accepted_at"] == [1.0, 0.5]
    assert found["everyday tasks: a"]["prompts"] == 5


def test_a_run_of_several_tables_is_shown_once_with_all_of_them(study, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("first", "second"):
        kept(study).model_copy(update={"row": name}).write(tmp_path / "results")
    data = site_of(tmp_path)
    assert [run["source"] for run in data["runs"]] == ["first; second"]
    assert len(data["rows"]) == 2


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be the folder of a finished run or study"):
        kept(tmp_path)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_a_browser_filters_sorts_and_draws(tmp_path, width, dark):
    title = title_after(LOOK, ROOT / PAGE, tmp_path, width, dark)
    at = json.loads(unquote(b64decode(title).decode()))
    assert at["model"] == MOST_MEASURED
    whole, real = rows_of_the_page()
    assert at["points"] == min(real, 15 if width < 640 else 30)
    assert at["colors"] >= 2, "faster and slower differ"
    assert at["fastest_first"]
    assert at["slowest_first"]
    assert at["all"].startswith(f"{whole} of {whole} results")
    assert at["tasks"] == ["HumanEval"]
    assert at["nothing"].startswith("No result matches with a speedup.0 of")
    assert "task=HumanEval" in at["linked"], "the address keeps the filters"
    assert re.search(r"Command: python -m specexp\.\w+ .*Commit: \w{9}", at["opened"])
    assert at["fits"]
    assert at["dark"] == dark
    assert at["contrast"] > 450


def rows_of_the_page() -> tuple[int, int]:
    """Return the number of rows, and that of the real model's rows with a measured speedup."""
    found = BLOCK.search((ROOT / PAGE).read_text(encoding="utf-8"))
    assert found is not None
    data = json.loads(found[0].partition("\n")[2].removesuffix("</script>"))
    runs = [data["runs"][row["run"]] for row in data["rows"] if "speedup" in row]
    real = [run for run in runs if (run["model"], run["clock"]) == (MOST_MEASURED, "measured")]
    return len(data["rows"]), len(real)
