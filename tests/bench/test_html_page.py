"""The page one opens: the answer first, everything in one file, and a browser shows it without a complaint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.made_records import outcome_of, record as four_tokens
from matplotlib.figure import Figure

from specexp.bench.analysis import BONUS, CORRECTED, Sources, steps_of
from specexp.bench.page.charts import importances_chart, ratios_chart, search_chart, tokens_at_a_step
from specexp.bench.page.sections import folding_tree, pieces, prompt_section, prompts_shown
from specexp.bench.publish import PAGE, Report, html_page, publish
from specexp.bench.record import PromptRecord
from specexp.bench.table import Column, Table

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ANSWER = "tree 3 decodes 1.5x [1.2, 1.8] as fast as plain decoding & <safely>."
LOOK = r"""<script>
addEventListener("load", () => setTimeout(() => {
  const table = document.querySelector("table"), first = () => table.tBodies[0].rows[0].cells[0].textContent;
  table.querySelectorAll("th button")[1].click();
  const highest = first();
  const field = document.querySelector("input[type=search]");
  field.value = "arm 7"; field.dispatchEvent(new Event("input"));
  const left = [...table.tBodies[0].rows].filter((row) => !row.hidden).length;
  const search = document.querySelector("input.prompts");
  search.value = "prompt 2"; search.dispatchEvent(new Event("input"));
  const kept = [...document.querySelectorAll("details.prompt")].filter((one) => !one.hidden).length;
  const point = document.querySelector("#chart-prompts path[aria-roledescription=point]");
  const at = point.getBoundingClientRect();
  const over = {bubbles: true, clientX: at.x + at.width / 2, clientY: at.y + at.height / 2};
  for (const kind of ["pointerover", "mouseover", "pointermove", "mousemove"])
    point.dispatchEvent(new PointerEvent(kind, over));
  const tip = document.getElementById("vg-tooltip-element");
  const named = [...document.querySelectorAll("input, button, img, [role=img]")].every(
    (one) => one.ariaLabel || one.alt || one.textContent);
  document.title = ["LOOKED", highest, left, kept,
    tip ? tip.textContent.replace(/\s+/g, " ") : "no tip", named, point ? point.getAttribute("aria-label") : "none",
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
    texts = {f"prompt {n}": f"Why {n}?" for n in range(3)}
    chart = ratios_chart(RECORDS, "engine", texts=texts)
    assert chart is not None
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    return Report(
        {"arms": table},
        {"figure": figure},
        title="Which tree?",
        answer=ANSWER,
        charts={"prompts": chart},
        fragments={
            "tree": folding_tree([(0,), (0, 0), (1,)], {(0,): 0.5, (0, 0): 0.25}, "The tree"),
            "prompts": prompt_section(texts, RECORDS, {"tree": "Tree", "engine": "AR"}, str),
        },
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


def test_texts_in_scripts_are_escaped_and_a_page_without_charts_has_no_library(tmp_path: Path) -> None:
    tables = {"arms": report().tables["arms"]}
    values = [{"prompt": text} for text in ("<!-- a comment", "<script>alert(1)</script>", "a < b")]
    chart = {"description": "all", "data": {"values": values}}
    text = html_page(Report(tables, charts={"all": chart}), {}, tmp_path)
    drawn = re.search(r'vegaEmbed\("#chart-all", (.*), options\);', text)
    assert drawn is not None
    assert "<" not in drawn[1]
    assert json.loads(drawn[1])["data"]["values"] == values
    text = html_page(Report(tables), {}, tmp_path)
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


def test_a_search_shows_trials_with_a_speedup_and_the_line_no_smaller_tree_reached() -> None:
    found = [(2, 1.1), (4, 1.6), (3, 1.9), (8, 1.5), (9, 1.7), (None, None)]
    states = ["complete", "complete", "pruned", "complete", "complete", "failed"]
    rows = [
        {"name": str(n), "nodes_per_step": n, "speedup": s, "state": state, "builder.nodes": n}
        for (n, s), state in zip(found, states, strict=True)
    ]
    chart = search_chart(rows, "builder.nodes")
    assert chart is not None
    assert [one["builder nodes"] for one in chart["data"]["values"]] == [2, 4, 3, 8, 9]
    line = next(layer for layer in chart["layer"] if layer["mark"]["type"] == "line")
    best = [(one["nodes_per_step"], one["speedup"]) for one in line["data"]["values"]]
    assert best == [(2, 1.1), (4, 1.6), (9, 1.7)]
    assert search_chart(rows[-1:], None) is None


def test_importances_are_shares_with_the_number_of_trials() -> None:
    chart = importances_chart({"builder.init_args.nodes": 0.75}, 8)
    assert chart is not None
    assert chart["data"]["values"] == [{"key": "builder.nodes", "importance": 0.75}]
    assert "over 8 trials" in chart["description"]
    assert importances_chart({}, 2) is None


def test_the_branches_of_a_tree_fold() -> None:
    text = folding_tree([(0, 0), (0,), (1,)], {(0,): 0.5}, "The tree")
    assert text.count("<details") == 2, "the root and the one node with a child"
    assert text.index("accepted in 50.0 % of steps") < text.index('<div class="leaf">')


def test_prompts_show_their_outputs_and_costs() -> None:
    titles = {"tree": "Tree", "other": "Other", "engine": "AR"}
    text = prompt_section({"prompt 0": "1 < 2", "prompt 9": "not decoded"}, RECORDS, titles, str)
    assert "Tree: 2.00 tokens a step, 250.00 ms a token; AR: 2.00 tokens a step, 500.00 ms a token" in text
    assert "1 &lt; 2" in text
    assert "(1, 2, 3, 4)" in text
    assert "not decoded" not in text


CHAIN, BUSH = [-1, 0, 1], [-1, 0, 0]


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (outcome_of(BUSH, (2,)), [1, BONUS]),  # nothing was drafted below the second child
        (outcome_of(CHAIN, (1,)), [0, CORRECTED]),  # the node below the first was another token
        (outcome_of(CHAIN, ()), [CORRECTED]),
        (outcome_of([-1], ()), [BONUS]),  # plain decoding drafts nothing
        (outcome_of(CHAIN, (1, 2), bonus=False), [0, 1]),  # the output ended inside the draft
    ],
)
def test_a_drafted_token_has_its_rank_and_the_targets_own_the_reason(outcome, found: list[int]) -> None:
    sources = Sources()
    sources(outcome)
    assert sources.found == found


def test_steps_end_with_the_targets_own_token_or_with_the_turn() -> None:
    found = [0, 0, CORRECTED, BONUS, 1, CORRECTED]
    assert [list(step) for step in steps_of(found, [3, 2, 1])] == [[0, 1, 2], [3], [4], [5]]


class Letters:
    def decode(self, ids) -> str:
        return "".join("abcdefgh<"[one] for one in ids)


def test_a_report_shows_text_steps_and_output_of_each_prompt() -> None:
    plain, tree = four_tokens("engine", 0), four_tokens("tree", 0, sources=(0, 1, CORRECTED, BONUS))
    assert tokens_at_a_step(tree) == {1: 0.5, 3: 0.5}
    found = prompts_shown({"p0": "Why?"}, [tree, plain], {"tree": "Tree", "engine": "AR"}, Letters())  # type: ignore[arg-type]
    assert [row[:3] for row in found.data["prompts"].rows] == [["p0", "Why?", "Tree"], ["p0", "Why?", "AR"]]
    assert {row["text"] for row in found.charts["steps"]["data"]["values"]} == {"Why?"}
    text = found.fragments["prompts"]
    assert "Prompts, and the output of Tree" in text
    boxes = text.partition("hover over it")[2]
    assert boxes.count('class="step"') == 2
    assert 'title="step 1: 3 tokens, drafted ranks 0, 1"' in boxes
    assert '<i>f</i><i class="r">g</i><u>h</u></span>' in boxes
    assert "<b>&lt;</b>" in boxes
    assert prompts_shown({"p0": "Why?"}, [plain], {"tree": "Tree"}, None).fragments == {}


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    found = pieces([*"aé<".encode()], lambda ids: bytes(ids).decode(errors="replace"))
    assert list(found) == ["a", "", "é", "<"]


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
    _, highest, left, kept, tip, named, point, fits, seen = title[1].split("|")
    assert highest == "arm 8"
    assert (left, kept) == ("1", "1"), "one row and one prompt match"
    assert "Why 0?" in tip, "hovering over a point shows the prompt"
    assert named == "true"
    assert "speed" in point
    assert (fits, seen) == ("true", "true")
