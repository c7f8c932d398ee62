"""The first time lines of every arm, as pictures and traces."""

import json

from helpers.made_groups import overlapping

from experiments.papers.seed.time_lines import TimeLines
from specexp.testing.analyses import AnalysisContract


class TestTimeLines(AnalysisContract):
    def make_analysis(self):
        return TimeLines()


def watched(arms, prompts, window_ms=250.0):
    analysis = TimeLines()
    analysis.window_ms = window_ms
    analysis.begin(dict.fromkeys(arms))
    for prompt in prompts:
        for arm in arms:
            analysis.observe_run(arm, prompt, overlapping())
    return analysis.report([])


def test_an_arm_has_a_trace_of_the_first_prompt():
    report = watched(["engine", "SEED, n=3"], ["p0", "p1"])
    assert list(report.files) == ["time_lines_trace_engine.json", "time_lines_trace_seed_n_3.json"]
    events = json.loads(report.files["time_lines_trace_seed_n_3.json"])["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["SEED, n=3: p0"]


def test_arms_are_drawn_below_each_other():
    (figure,) = watched(["engine", "seed"], ["p0", "p1"], window_ms=1001).figures.values()
    assert len(figure.axes) == 2


def test_a_window_is_drawn_beside_the_whole():
    report = watched(["engine"], ["p0"], window_ms=200)
    assert list(report.figures) == ["time_lines", "time_lines_whole"]
    assert [round(figure.axes[0].get_xlim()[1]) for figure in report.figures.values()] == [200, 1000]


def test_a_run_shorter_than_the_window_is_drawn_once():
    assert list(watched(["engine"], ["p0"], window_ms=2000).figures) == ["time_lines"]


def test_of_several_samples_of_a_prompt_the_first_is_kept():
    analysis = TimeLines()
    analysis.begin({"engine": None})
    first = overlapping()
    for line in (first, overlapping(200.0)):
        analysis.observe_run("engine", "p0", line)
    (row,) = analysis.report([]).tables["time_lines"].records()
    assert row == {
        "arm": "engine",
        "prompt": "p0",
        "ms": first.seconds * 1000,
        "target passes": 2,
        "sequences/pass": 1,
        "target busy": first.utilisation(),
    }
