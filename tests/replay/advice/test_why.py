"""``python -m specexp.why``: where a composition's time goes, and what each change would bring by replay."""

import re

import pytest
import yaml

from specexp.config import load_config
from specexp.core.latency import LatencyProfile
from specexp.replay.advice.why import costs_that_could_go, explain, main
from specexp.replay.advice.why_report import answer_of
from specexp.replay.record.command import main as record

DEAR_DRAFT = {"name": "dear draft", "target_ms": {1: 4.0, 8: 4.4}, "draft_ms": {1: 2.0}, "step_ms": 0.5}
DEAR_ROWS = {
    "name": "dear rows",
    "target_ms": {1: 4.0, 8: 40.0},
    "draft_ms": {1: 0.1},
    "lanes_ms": {2: {1: 4.1, 8: 80.0}},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A recording of the embedded pair, and the experiment it was made of."""
    folder = tmp_path_factory.mktemp("why")
    content = {
        "name": "tiny",
        "pair": {"target_dtype": "float32"},
        "data": {
            "prompts": {"class_path": "StdlibFunctions", "init_args": {"split": "validation"}},
            "max_prompts": 10,
        },
        "drafter": {"class_path": "DraftModel"},
        "builder": {"class_path": "Chain", "init_args": {"length": 4}},
        "verifier": {"class_path": "Greedy"},
        "generation": {"max_new_tokens": 16, "threads": 1},
        "latency": DEAR_DRAFT,
        "record": {
            "to": str(folder / "recording"),
            "coverage": [{"class_path": "Chain", "init_args": {"length": 8}}],
            "candidates": 4,
            "live_sample": 0,
        },
        "output": str(folder / "runs"),
        "tracking": {"mode": "disabled"},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    assert record([str(path)]) == 0
    replayed = {key: value for key, value in content.items() if key != "record"}
    return {**replayed, "backend": "replay", "recording": str(folder / "recording")}


@pytest.fixture
def file(written, tmp_path):
    def write(**sections):
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump({**written, "output": str(tmp_path / "runs"), **sections}))
        return str(path)

    return write


def test_a_cost_that_goes_leaves_all_others_as_they_are() -> None:
    profile = LatencyProfile(**DEAR_DRAFT)
    found = {change.name: change.latency.step_seconds(5, [1, 1, 1, 1]) for change in costs_that_could_go(profile, "")}
    whole = profile.step_seconds(5, [1, 1, 1, 1])
    assert whole - found["draft passes"] == pytest.approx(8e-3)
    assert whole - found["outside the passes"] == pytest.approx(0.5e-3)
    assert whole - found["rows beyond the first"] == pytest.approx(0.4e-3 * 4 / 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("latency", "cost", "length"),
    [
        (DEAR_DRAFT, "draft passes", 1),
        (DEAR_ROWS, "rows beyond the first", 1),
        ({**DEAR_DRAFT, "draft_ms": {1: 3.0}, "buckets": True}, "draft passes", 7),  # 8 rows fill a bucket
    ],
)
def test_the_largest_cost_and_the_best_setting_come_first(latency, cost, length, file) -> None:
    found = explain(load_config(file(latency=latency)))
    assert found.costs[0].name == cost
    ranked = [effect.over_now.ratio for effect in found.settings]
    assert ranked == sorted(ranked, reverse=True)
    by_name = {effect.name: effect for effect in found.settings}
    assert by_name["builder.init_args.length: 1"].over_now.ratio > 1
    assert f"builder.init_args.length: {length}" in by_name
    assert by_name["drafter: null (no speculation)"].over_plain.ratio == pytest.approx(1.0)
    assert f"its largest cost ({cost})" in answer_of(found)
    assert ("passes here; drafting is nearly free up to" in answer_of(found)) == (cost == "rows beyond the first")
    assert found.settings[0].name in answer_of(found)


def test_the_report_names_every_share_and_its_setting(file, tmp_path, capsys) -> None:
    path = file(latency=DEAR_ROWS)
    assert main([path, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("tiny, from its recording\n")
    assert main([path]) == 0
    following = r"\nNext: python -m specexp.run .*tiny.yaml --backend live .*  # measures its speedup"
    assert re.search(following, capsys.readouterr().out)
    page = (tmp_path / "runs" / "tiny" / "why" / "why.md").read_text()
    for words in ("rows beyond the first", "fewer nodes (builder)", "Acceptance by position", "Under load"):
        assert words in page
    assert (tmp_path / "runs" / "tiny" / "why" / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"drafter": None, "builder": None}, "drafter: must be set, since plain decoding does not speculate"),
        ({"arms": {"one": {}}}, "arms: must be left out, since why explains one composition"),
        ({"recording": "nowhere"}, "recording"),
        (
            {"backend": "live", "recording": None, "verifier": {"class_path": "helpers.lossy.Lossy"}},
            "Lossy may depend on",
        ),
    ],
)
def test_an_experiment_that_cannot_be_explained_is_refused(changes, sentence, file, capsys) -> None:
    assert main([file(**changes), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
