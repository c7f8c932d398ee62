"""A recording of the golden pair holds the same answers, and its replay gives the same counts."""

import json
from pathlib import Path

import pyarrow.parquet as pq
from helpers.golden import ROOT, check, command

SMALL = (
    *("--data.max_prompts", "2", "--generation.max_new_tokens", "12", "--record.live_sample", "1"),
    *("--record.candidates", "4", "--record.target_top_k", "4", "--record.coverage.0.init_args.length", "6"),
)
VOLATILE = ("provenance", "files")
"""Fields of the manifest with times, versions and hashes of compressed files."""


def test_a_recording_holds_the_same_answers(setup: Path) -> None:
    """Tokens and ranks are compared exactly, scores to a relative 1e-4."""
    file = str(ROOT / "experiments/replay/record.yaml")
    result = command("record", file, "--compose", str(setup), *SMALL, "--record.to", "recorded")
    assert result.code == 0, result.err

    manifest = json.loads(Path("recorded/recording.json").read_text())
    target = manifest["made_of"]["pair"].pop("target")
    draft = manifest["made_of"]["pair"].pop("draft")
    assert (Path(target).name, Path(draft).name) == ("target", "draft")
    content = {name: value for name, value in manifest.items() if name not in VOLATILE}
    turns = [turn for file in sorted(Path("recorded").glob("*.parquet")) for turn in pq.read_table(file).to_pylist()]
    check("recording", {"manifest": content, "turns": turns}, relative=1e-4)
