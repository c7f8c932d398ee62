"""A report reaches the terminal, the folder, W&B and one page that a browser shows, through one function."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from unittest.mock import MagicMock, call
from urllib.parse import unquote

import pytest
from helpers.browser import BROWSER, title_after
from helpers.made_records import outcome_of, record as four_tokens
from matplotlib.figure import Figure
from rich.console import Console

from specexp.bench.observers import BONUS, CORRECTED, Sources, steps_of
from specexp.bench.record import PromptRecord
from specexp.report.pictures import new_figure
from specexp.report.publish import PAGE, Attached, Report, files_of, html_page, publish
from specexp.report.sections import (
    folding_tree,
    importances_chart,
    pieces,
    prompt_section,
    prompts_shown,
    ratios_chart,
    search_chart,
)
from specexp.report.table import Column, Table


@pytest.fixture
def tracker():
    made = MagicMock()
    made.name = "study"
    made.sync_hint.return_value = "wandb sync there"
    made.tracked = made.run.return_value.__enter__.return_value
    return made


def table(title: str = "Speed") -> Table:
    return Table(title, [Column("arm"), Column("tokens/s", 0)], [["plain", 123.4]], ["a note"])


def published(report: Report, folder: Path, **options: object) -> str:
    """Publish a report; returns the printed text."""
    text = StringIO()
    publish(report, folder, console=Console(file=text, width=100), **options)
    return text.getvalue()


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


def test_a_report_and_its_parts_are_printed_written_and_tracked_in_one_run(tmp_path: Path, tracker) -> None:
    figure, _ = new_figure(3, 2)
    part = Report({"part": table("Part")}, {"picture": figure}, {"part.json": json.dumps([1])})
    report = Report(
        {"arms": table()},
        summary={"speedup": 2.0},
        fragments={"tree": "<h2>The tree</h2>"},
        next_steps={"serve it": "python serve"},
        artifacts=[Attached(tmp_path, "best", "static-tree")],
        parts=[part],
    )
    folder = tmp_path / "new"
    printed = published(report, folder, tracker=tracker, kind="profile", config={"name": "study"})
    tracker.run.assert_called_once_with("study", job_type="profile", config={"name": "study"})
    key, panel = tracker.tracked.html.call_args.args
    assert (key, panel.startswith("<!doctype html>")) == ("tree_view", True)
    assert "<h2>The tree</h2>" in panel
    assert tracker.tracked.mock_calls == [
        call.table("arms", table().records()),
        call.html(key, panel),
        call.summary({"speedup": 2.0}),
        call.artifact(tmp_path, "best", "static-tree", ("latest", "best")),
        call.table("part", table().records()),
        call.picture("picture", folder / "picture.png"),
    ]
    assert printed.index("Speed") < printed.index("a note") < printed.index("Part") < printed.index("Results in")
    assert f"Results in {folder}" in printed.replace("\n", "")
    assert printed.rstrip().endswith("W&B: wandb sync there")
    assert {"arms.md", "arms.csv", "part.md", "part.csv", "picture.png", "part.json"} == set(files_of(report))
    assert (folder / "arms.md").read_text() == table().to_markdown()
    assert (folder / "arms.csv").read_text() == "arm,tokens/s\nplain,123.4\n"
    assert json.loads((folder / "part.json").read_text()) == [1]
    assert "<p>To serve it:</p><pre>python serve</pre>" in (folder / "report.html").read_text()


@pytest.fixture
def lines_below(tmp_path: Path, capsys):
    """Publish a table of a run with this pair, data, limit and environment; returns the two lines below it."""

    def printed(pair, prompts, most, **environment) -> list[str]:
        config = {"pair": pair, "data": {"prompts": prompts}, "generation": {"max_new_tokens": most}}
        known = {"device_name": "A CPU", "device": "cpu", "python": "3.11", "command": ["specexp"]}
        known |= {"time": "2030-01-02T03:04:05", **environment}
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        (tmp_path / "environment.json").write_text(json.dumps(known))
        publish(Report({"arms": table()}), tmp_path)
        return capsys.readouterr().out.splitlines()[-3:-1]

    return printed


def test_two_lines_below_the_tables_say_how_they_came_about(lines_below) -> None:
    pair = {"target": "smollm2", "target_dtype": "bfloat16", "mode": "packed"}
    packages = {"specexp": "1.0", "torch": "2.13", "numpy": "2"}
    known = {"git_commit": "0123456789abcdef", "git_dirty": True, "threads": 2, "packages": packages}
    assert lines_below(pair, {"class_path": "my.Prompts"}, 64, **known) == [
        "specexp 1.0 (012345678-dirty), torch 2.13; A CPU, 2 threads",
        "smollm2 (weights from Q4_1), bfloat16, packed; prompts of Prompts; at most 64 tokens each, 2030-01-02",
    ]


def test_the_lines_to_paste_show_no_folders_of_this_machine(tmp_path: Path, lines_below) -> None:
    (tmp_path / "own-model").mkdir()
    pair = {"target": str(tmp_path / "own-model"), "target_dtype": "float32", "mode": "auto"}
    _, line = lines_below(pair, "OwnPrompts", 1, git_commit=None, git_dirty=None, threads=1, packages={})
    assert line == "own-model, float32; prompts of OwnPrompts; at most 1 token each, 2030-01-02"


def test_tables_are_printed_even_if_the_disk_is_full(tmp_path: Path, monkeypatch, capsys) -> None:
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("specexp.report.publish.atomic_write", full)
    with pytest.raises(OSError, match="No space"):
        publish(Report({"arms": table()}), tmp_path)
    assert "plain" in capsys.readouterr().out


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
  const light = (color) => Math.max(...color.match(/\d+/g).slice(0, 3).map(Number));
  const look = getComputedStyle(document.body);
  const contrast = Math.sign(light(look.color) - light(look.backgroundColor));
  document.title = ["LOOKED", highest, left, kept,
    tip ? tip.textContent.replace(/\s+/g, " ") : "no tip", named, point ? point.getAttribute("aria-label") : "none",
    document.documentElement.scrollWidth <= innerWidth,
    document.querySelector("[aria-label='Type now'] pre").getBoundingClientRect().bottom < innerHeight,
    contrast, [...table.querySelectorAll("td")].every((one) => one.getBoundingClientRect().right <= innerWidth),
  ].join("|");
}, 1500));
</script>"""


def record(arm: str, prompt: int, seconds: float) -> PromptRecord:
    return PromptRecord(
        arm, f"prompt {prompt}", "", token_ids=(1, 2, 3, 4), steps=2, decode_tokens=4, decode_seconds=seconds
    )


RECORDS = [record("plain", n, 2.0) for n in range(3)] + [record("tree", n, 1.0 + n) for n in range(3)]


def report() -> Report:
    rows = [[f"arm {n}", n * 1.5] for n in range(9)]
    table = Table("Which tree?", [Column("arm"), Column("tokens/s")], rows, ["a <note>"])
    texts = {f"prompt {n}": f"Why {n}?" for n in range(3)}
    chart = ratios_chart(RECORDS, "plain", texts=texts)
    assert chart is not None
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    fragments = {
        "tree": folding_tree([(0,), (0, 0), (1,)], {(0,): 0.5, (0, 0): 0.25}, "The tree"),
        "prompts": prompt_section(texts, RECORDS, {"tree": "Tree", "plain": "AR"}, str),
    }
    look = {"title": "Which tree?", "answer": ANSWER, "proof": "Safe: 6/6 outputs equal plain decoding's."}
    look |= {"charts": {"prompts": chart}, "next_steps": {"serve it": "specexp serve artifacts/tree/best"}}
    return Report({"arms": table}, {"figure": figure}, fragments=fragments, **look)


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


def test_every_table_is_downloaded_as_csv(page: Path) -> None:
    (link,) = re.findall(r'download="arms.csv" href="data:text/csv;charset=utf-8,([^"]+)"', page.read_text())
    assert unquote(link) == report().tables["arms"].to_csv()


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
    chart = ratios_chart(RECORDS, "plain", {"tree": "Tree of 3"})
    assert chart is not None
    values = [(one["arm"], one["prompt"], one["speed"]) for one in chart["data"]["values"]]
    assert values == [("Tree of 3", f"prompt {n}", speed) for n, speed in enumerate((2.0, 1.0, 0.6667))]
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
    shares = importances_chart({"builder.init_args.nodes": 0.75}, 8)
    assert shares is not None
    assert shares["data"]["values"] == [{"key": "builder.nodes", "importance": 0.75}]
    assert "over 8 trials" in shares["description"]
    assert importances_chart({}, 2) is None


def test_the_branches_of_a_tree_fold() -> None:
    text = folding_tree([(0, 0), (0,), (1,)], {(0,): 0.5}, "The tree")
    assert text.count("<details") == 2, "the root and the one node with a child"
    assert text.index("accepted in 50.0 % of steps") < text.index('<div class="leaf">')


def test_prompts_show_their_outputs_and_costs() -> None:
    titles = {"tree": "Tree", "other": "Other", "plain": "AR"}
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
    plain, tree = four_tokens("plain", 0), four_tokens("tree", 0, sources=(0, 1, CORRECTED, BONUS))
    found = prompts_shown({"p0": "Why?"}, [tree, plain], {"tree": "Tree", "plain": "AR"}, Letters())  # type: ignore[arg-type]
    assert [row[:3] for row in found.data["prompts"].rows] == [["p0", "Why?", "Tree"], ["p0", "Why?", "AR"]]
    text = found.fragments["prompts"]
    assert "Prompts, and the output of Tree" in text
    boxes = text.partition("hover over it")[2]
    assert boxes.count('class="step"') == 2
    assert 'title="step 1: 3 tokens, accepted drafts of rank 0, 1"' in boxes
    assert '<i>f</i><i class="r">g</i><u>h</u></span>' in boxes
    assert "<b>&lt;</b>" in boxes
    assert prompts_shown({"p0": "Why?"}, [plain], {"tree": "Tree"}, None).fragments == {}


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    found = pieces([*"aé<".encode()], lambda ids: bytes(ids).decode(errors="replace"))
    assert list(found) == ["a", "", "é", "<"]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_draws_sorts_filters_and_has_nothing_to_complain_of(
    page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    title = title_after(LOOK, page, tmp_path, width, dark)
    _, highest, left, kept, tip, named, point, fits, seen, contrast, inside = title.split("|")
    assert highest == "arm 8"
    assert (left, kept) == ("1", "1"), "one row and one prompt match"
    assert "Why 0?" in tip, "hovering over a point shows the prompt"
    assert named == "true"
    assert "speed" in point
    assert (fits, seen, inside) == ("true", "true", "true")
    assert contrast == ("1" if dark else "-1"), "the ink is lighter than the paper in the dark"
