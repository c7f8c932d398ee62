"""The script that writes the README's figures: its blocks, its comparison, and its pictures."""

import re

import pytest

from experiments.first_page.__main__ import BLOCK, README, aligned, deviations, engines, replaced, rows_of
from tests.helpers.made_records import record

pytestmark = pytest.mark.unit

PAGE = "It is <!-- ratio -->1.50x [1.20, 1.80]<!-- end --> as fast.\n<!-- main job -->\nold\n<!-- end -->\n"


def test_blocks_are_replaced_and_the_rest_stays():
    assert replaced(PAGE, {"ratio": "2.00x [1.90, 2.10]", "main job": "\nnew\n"}) == (
        "It is <!-- ratio -->2.00x [1.90, 2.10]<!-- end --> as fast.\n<!-- main job -->\nnew\n<!-- end -->\n"
    )


def test_a_block_without_a_place_in_the_page_is_an_error():
    with pytest.raises(ValueError, match="must have the block <!-- by task -->, and has none"):
        replaced(PAGE, {"ratio": "", "main job": "", "by task": ""})


def test_the_readme_has_every_block():
    names = [match["name"] for match in BLOCK.finditer(README.read_text(encoding="utf-8"))]
    assert names == ["ratio", "main job", "by task", "engines"]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("1.40x [1.10, 1.60]", []),  # 1.50 lies in it
        ("2.00x [1.90, 2.10]", ["ratio: the page has 1.50x [1.20, 1.80], this run 2.00x [1.90, 2.10]"]),
    ],
)
def test_a_ratio_outside_the_interval_of_this_run_is_a_deviation(now, expected):
    assert deviations(PAGE, {"ratio": now, "main job": "\nnew\n"}) == expected


def test_rows_are_compared_by_their_first_cell():
    page = "<!-- by task -->\nchat    1.10x [1.00, 1.20]\nedit    2.00x [1.50, 2.50]\n<!-- end -->"
    now = "\nedit    2.10x [1.80, 2.40]\nchat    1.50x [1.40, 1.60]\n"
    assert deviations(page, {"by task": now}) == ["chat: the page has 1.10x [1.00, 1.20], this run 1.50x [1.40, 1.60]"]


def test_a_table_of_results_becomes_aligned_text(tmp_path):
    file = tmp_path / "confirm.csv"
    file.write_text("tree,nodes,speedup,speedup low,speedup high\nchain,2,1.5,1.25,1.75\nplain decoding,0,1,,\n")
    rows = rows_of(file, {"tree": "", "nodes": ".3g", "speedup": "interval"})
    assert aligned(rows).splitlines() == [
        "tree            nodes             speedup",
        "chain               2  1.50x [1.25, 1.75]",
        "plain decoding      0                   1",
    ]


def test_an_engine_is_compared_with_our_plain_decoding_or_its_row_has_the_reason():
    def answers(arm, seconds, **given):
        return [record(arm, prompt, seconds, **given) for prompt in range(2)]

    records = [
        *answers("plain", 1.0),
        *answers("specexp, prompt lookup and Token Recycling", 0.5),
        *answers("vLLM, plain", 2.0),
        *answers("vLLM, n-grams", 1.0, error="EngineError: it exited with status 1"),
        *answers("llama.cpp, n-grams", 0.5, token_ids=(5, 9)),
    ]
    rows = [re.split(" {2,}", line) for line in engines(records).splitlines()]
    assert rows[1:5] == [
        ["specexp", "1", "2.00x [2.00, 2.00]"],
        ["vLLM", "0.50x [0.50, 0.50]", "EngineError: it exited with status 1"],
        ["vLLM, our drafts", "0.50x [0.50, 0.50]", "not installed"],
        ["llama.cpp", "not installed", "2 of 2 outputs differ"],
    ]
