"""The page one opens: the answer first, everything in one file, and a browser shows it without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from specexp.bench.page.charts import ratios_chart, search_chart
from specexp.bench.page.html_page import html_page
from specexp.bench.page.sections import folding_tree, prompt_section
from specexp.bench.publish import PAGE, Report, publish
from specexp.bench.record import PromptRecord
from specexp.bench.table import Column, Table

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ANSWER = "tree 3 decodes 1.5x [1.2, 1.8] as fast as plain decoding & <safely>."
LOOK = """<script>
addEventListener("load", () => setTimeout(() => {
  const table = document.querySelector("table"), first = () => table.tBodies[0].rows[0].cells[0].textContent;
  table.querySelectorAll("th button")[1].click();
  const highest = first();
  const field = document.querySelector("input[type=search]");
  field.value = "arm 7"; field.dispatchEvent(new Event("input"));
  const left = [...table.tBodies[0].rows].filter((row) => !row.hidden).length;
  const point = document.querySelector("#chart-prompts path[aria-roledescription=point]");
  document.title = ["LOOKED", highest, left, point ? point.getAttribute("aria-label") : "none",
    document.documentElement.scrollWidth <= innerWidth,
    document.querySelector(".answer").getBoundingClientRect().bottom < innerHeight].join("|");
}, 1500));
</script>"""


def record(arm: str, prompt: int, seconds: float) -> PromptRecord:
    return PromptRecord(
        arm, f"prompt {prompt}", "", token_ids=(1, 2, 3, 4), steps=2, decode_tokens=4, decode_seconds=seconds
    )


RECORDS = [record("engine", n, 2.0) for n in range(3)] + [record("tree", n, 1.0 + n) for n in range(3)]


def report() -> Report:
    table = Table(
        "Which tree?",
        [Column("arm"), Column("tokens/s")],
        [[f"arm {n}", n * 1.5] for n in range(9)],
        ["a <note>"],
    )
    chart = ratios_chart(RECORDS, "engine")
    assert chart is not None
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    return Report(
        {"arms": table},
        {"figure": figure},
        title="Which tree?",
        answer=ANSWER,
        charts={"prompts": chart},
        fragments={"tree": folding_tree([(0,), (0, 0), (1,)], {(0,): 0.5, (0, 0): 0.25}, "The tree")},
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    publish(report(), folder)
    return folder / PAGE


def test_the_answer_stands_before_the_table_and_nothing_is_fetched(page: Path) -> None:
    text = page.read_text()
    own = re.sub(r'<script type="module">.*?</script>', "", text, flags=re.DOTALL)
    assert own.index("tree 3 decodes 1.5x [1.2, 1.8]") < own.index("<table")
    assert "plain decoding &amp; &lt;safely&gt;." in own
    assert "a &lt;note&gt;" in own
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", own)
    assert len(text) < 3_000_000


def test_a_page_without_charts_carries_no_library() -> None:
    text = html_page([Report({"arms": report().tables["arms"]})], {})
    assert "vegaEmbed" not in text
    assert len(text) < 20_000


def test_speeds_are_paired_prompt_by_prompt() -> None:
    chart = ratios_chart(RECORDS, "engine", {"tree": "Tree of 3"})
    assert chart is not None
    values = chart["data"]["values"]
    assert [(one["arm"], one["prompt"], one["speed"]) for one in values] == [
        ("Tree of 3", "prompt 0", 2.0),
        ("Tree of 3", "prompt 1", 1.0),
        ("Tree of 3", "prompt 2", 0.6667),
    ]
    assert ratios_chart(RECORDS, "none") is None


def test_a_search_shows_the_trials_that_have_a_speedup() -> None:
    rows = [
        {
            "name": "trial 1",
            "state": "complete",
            "nodes_per_step": 4.0,
            "speedup": 1.2,
            "builder.init_args.nodes": 4,
        },
        {"name": "trial 2", "state": "failed", "nodes_per_step": None, "speedup": None},
    ]
    chart = search_chart(rows, None)
    assert chart is not None
    assert [one["name"] for one in chart["data"]["values"]] == ["trial 1"]
    assert search_chart(rows[1:], None) is None


def test_the_branches_of_a_tree_fold() -> None:
    text = folding_tree([(0, 0), (0,), (1,)], {(0,): 0.5}, "The tree")
    assert text.count("<details") == 2, "the root and the one node with a child"
    assert text.index("accepted in 50.0 % of steps") < text.index('<div class="leaf">')


def test_prompts_show_what_was_decoded_and_what_it_took() -> None:
    text = prompt_section({"prompt 0": "1 < 2", "prompt 9": "not decoded"}, RECORDS, ["tree", "engine"], str)
    assert (
        "tree: 2.00 tokens a step, 250.00 ms a token; engine: 2.00 tokens a step, 500.00 ms a token" in text
    )
    assert "1 &lt; 2" in text
    assert "(1, 2, 3, 4)" in text
    assert "not decoded" not in text


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_draws_sorts_filters_and_has_nothing_to_complain_of(
    page: Path, tmp_path: Path, width: int
) -> None:
    looked = tmp_path / "looked.html"
    before, end, after = page.read_text().rpartition("</body>")
    looked.write_text(before + LOOK + end + after)
    assert BROWSER is not None
    ran = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom",
         "--enable-logging=stderr", f"--window-size={width},900", looked.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert [line for line in ran.stderr.splitlines() if ":CONSOLE" in line] == []
    title = re.search(r"<title>(LOOKED.*?)</title>", ran.stdout)
    assert title is not None
    _, highest, left, point, fits, seen = title[1].split("|")
    assert highest == "arm 8"
    assert left == "1"
    assert "speed" in point
    assert (fits, seen) == ("true", "true")
