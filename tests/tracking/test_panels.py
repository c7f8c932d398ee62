"""What the dashboard asks for is in the files of an offline run, panel by panel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.made_records import PHASES, record
from helpers.offline_runs import forget_account, offline_runs, records
from matplotlib.figure import Figure

from specexp.bench.metrics import figures_of
from specexp.bench.page.sections import folding_tree, prompts_shown
from specexp.bench.publish import Report, publish
from specexp.tracking import Tracker
from specexp.tracking.dashboard import TRIAL_TABLE, describe_dashboard


class Letters:
    def decode(self, ids) -> str:
        return "".join("abcdefghi"[one] for one in ids)


@pytest.mark.slow
def test_every_panel_finds_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_account(monkeypatch, tmp_path)
    tracker = Tracker("shapes", tmp_path, mode="offline")
    decoded = record("tree", 0, sources=(0, 1, -1, -2), drafted_nodes=4, seconds=dict.fromkeys(PHASES, 0.1))
    figures = figures_of([decoded])
    with tracker.trial(0, {"builder.init_args.nodes": 4}) as run:
        run.summary({**figures, "speedup": 1.5, "nodes": 4})  # as a row of trials has it
    page = prompts_shown({"p0": "Why?"}, [decoded], {"tree": "Tree"}, Letters())  # type: ignore[arg-type]
    tree = Report(
        figures={"tree": Figure()}, fragments={"tree": folding_tree([(0,)], {(0,): 0.5}, "The tree")}
    )
    publish(Report(parts=[page, tree]), tmp_path, tracker, kind="study")
    trial, whole = sorted(offline_runs(tmp_path), key=lambda found: "speedup" not in found["summary"])
    logged = {key for line in records(whole["folder"], "history") for key in line["item"]}
    shown = {re.split(r"[./]", key)[0] for key in logged} | {TRIAL_TABLE}
    dashboard = describe_dashboard("shapes", ["builder.init_args.nodes"], "me", "specexp")
    for panels in dashboard.sections.values():
        for panel in panels:
            options = panel.options
            wanted = {options[name] for name in ("x", "y", "with_respect_to") if name in options}
            assert wanted | set(options.get("metrics", ())) <= trial["summary"].keys(), panel
            media = {*options.get("media_keys", ()), *filter(None, [options.get("table_name")])}
            assert media <= shown, panel
