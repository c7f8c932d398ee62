"""A row made by hand, and the results that a run of it leaves."""

import json

import pytest

from experiments.reproduce import row_record
from experiments.reproduce.paper_row import PaperRow
from specexp.bench.record import PromptRecord, write_records

ENVIRONMENT = {
    "time": "2026-01-01T00:00:00+00:00", "git_commit": None, "git_dirty": None, "device": "cpu", "device_name": "a CPU",
    "cpu_count": 2, "threads": 1, "packages": {"torch": "2", "transformers": "5"},
}  # fmt: skip
TABLE = "arm,nodes,share,share low,share high\ntree,32,0.9,0.8,1.0\ntree,64,0.5 %,,\n"


@pytest.fixture
def row_of(monkeypatch):
    """Make a row, with what is given in place of its own fields. The files of its runs do not exist."""
    monkeypatch.setattr(row_record, "pair_of_run", lambda _: {"target": "stdlib", "digest": "4567"})

    def make(**fields):
        declared = {
            "name": "dyspec.made",
            "paper": "DySpec",
            "place": "Table 0",
            "claim": "Trees give more.",
            "published": "3 and 2",
            "runs": "experiments/made.yaml",
            "test": (
                "figure('tokens_per_step', 'tree') > figure('tokens_per_step', 'plain')",
                "figure('speedup', 'tree', 'b') > 1.5",
                "figure('sizes: share', 'tree / 32') > 0.4",
            ),
            "tables": ("sizes",),
        }
        return PaperRow.model_validate(declared | fields)

    return make


@pytest.fixture
def leave_results():
    """Write what a run leaves: the tree takes a third of the steps, half the time; its table has a row of each size."""

    def leave(run):
        run.mkdir(parents=True, exist_ok=True)
        records = [
            PromptRecord(
                arm, str(prompt), "ab"[prompt % 2], token_ids=tuple(range(12)), turn_tokens=(12,), steps=steps,
                decode_tokens=12, decode_seconds=seconds, dtype="float32", device="cpu", verifier="Greedy",
            )
            for prompt in range(6)
            for arm, steps, seconds in (("plain", 12, 2.0), ("tree", 4, 1.0))
        ]  # fmt: skip
        write_records(run / "records.jsonl", records)
        (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
        (run / "sizes.csv").write_text(TABLE + '"tree, C4 (not run here)",64,0.1,,\n')
        (run / "figure.png").write_bytes(b"picture")
        return run

    return leave
