"""``python -m specexp.profile``, from a file to an artifact that another experiment is modelled by."""

import csv
import json
import re

import pytest
import transformers

from specexp.bench.record import read_records
from specexp.commands.run import main as run_main
from specexp.config.artifacts import load_artifact
from specexp.profile.command import main

SHORT = {"max_tokens": 4, "prefixes": [8, 175], "repeats": 2, "prompts": 2, "max_new_tokens": 10}
ARMS = {
    "recycling": {"title": "recycling", "grid": {"builder.init_args.length": [1, 3]}},
    "chain": {"title": "a chain", "drafter": {"class_path": "DraftModel", "init_args": {"coupled": True}}},
    "lookup": {"reference": "hf-prompt-lookup"},
}


@pytest.fixture
def profiled(experiment, tmp_path, capsys):
    """The artifact, and the printed text."""
    path = experiment(arms=ARMS, profile={**SHORT, "lanes": [2], "to": str(tmp_path / "artifacts" / "profile")})
    assert main([path]) == 0
    return load_artifact(tmp_path / "artifacts" / "profile" / "best"), capsys.readouterr().out


@pytest.mark.slow
def test_it_leaves_an_artifact_tables_and_a_picture(profiled, tmp_path):
    artifact, shown = profiled
    profile, measured = artifact.profile, artifact.measured
    assert profile.source == "measured"
    assert profile.target_ms.keys() == profile.draft_ms.keys() == profile.lanes_ms[2].keys() == {1, 2, 3, 4}
    assert set(profile.overheads) == {
        "plain", "TokenRecycling + StaticTree", "coupled DraftModel + StaticTree",
    }  # fmt: skip
    assert (measured.threads, measured.target_dtype, measured.draft_dtype) == (1, "float32", "float32")
    assert {point.prefix for point in measured.target} == {8, 175}
    assert len(measured.target) == len(measured.draft) == 8
    assert measured.roofline.weight_bytes == 4 * measured.roofline.parameters
    assert artifact.fingerprint["model"]
    assert set(artifact.metrics) == {
        "target_pass_ms", "draft_pass_ms", "largest_error_live",
    }  # fmt: skip
    verdict = re.search(r"The profile (is within|differs from live decoding by more than) 10 %", shown)
    assert verdict
    assert verdict.start() < shown.index("Passes on")
    for arm in ("plain decoding", "a chain"):  # wide intervals of a busy machine may break the cells that follow
        assert re.search(rf"{arm} +│ +[\d.]+", shown)
    assert artifact.provenance["config"]["profile"]["repeats"] == 2

    folder = tmp_path / "runs" / "tiny"
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "environment.json", "profile.md", "profile.csv", "profile.png", "report.html",
    }  # fmt: skip
    rows = list(csv.DictReader((folder / "profile.csv").read_text().splitlines()))
    assert len(rows) == 16
    assert float(rows[0]["ms"]) == measured.target[0].ms
    for part in (
        "of 2 lanes",
        "Step overhead outside the passes",
        "rows cost",
        "over the limit",
        str(artifact.folder.name),
    ):
        assert part in shown
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_experiment_takes_it_as_its_clock(profiled, experiment, tmp_path):
    artifact, _ = profiled
    path = experiment(latency={"artifact": str(artifact.folder)}, baselines=["plain"])
    assert run_main([path, "--data.max_prompts", "1"]) == 0
    records = read_records(tmp_path / "runs" / "tiny" / "records.jsonl")
    assert {record.clock for record in records} == {f"modelled: {artifact.profile.name} (measured)"}
    engine = next(record for record in records if record.arm == "plain")
    assert engine.decode_seconds > 0
    stored = json.loads((artifact.folder / "profile.json").read_text())
    assert stored["source"] == "measured"


@pytest.mark.slow
def test_without_a_draft_or_arms_it_is_of_the_target_alone(experiment, model_folder, tmp_path):
    path = experiment(
        profile={**SHORT, "to": str(tmp_path / "alone")},
        pair={"target": model_folder, "target_dtype": "float32"},
        drafter=None,
        builder=None,
    )
    assert main([path]) == 0
    artifact = load_artifact(tmp_path / "alone")
    assert artifact.profile.draft_ms == {}
    assert list(artifact.profile.overheads) == ["plain"]


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"profile": {"repeats": 1}}, "profile.repeats must be >= 2, got 1"),
        ({"profile": {"prefixes": []}}, "profile.prefixes must have at least one prefix length, got none"),
        (
            {"profile": {**SHORT, "prefixes": [8, 176]}},
            "profile.prefixes.1 must be at most 175, so that a pass of 4 tokens (profile.max_tokens) fits the context "
            "of 192 tokens, got 176",
        ),
        ({"pair": {"target": "./nowhere"}}, "pair.target"),
        ({"profile": {"token": 3}}, "profile.token is unknown"),
        ({"execution": "SerialSpeculative"}, "execution decodes several sequences per prompt"),
        ({"latency": {"artifact": "nowhere"}}, "latency.artifact: nowhere"),
    ],
)
def test_what_cannot_be_profiled_is_one_sentence(experiment, capsys, sections, sentence):
    assert main([experiment(**sections), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "tiny.yaml" in error
    assert error.count("\n") == 1


def test_a_dry_run_lists_what_would_be_measured_and_loads_no_weights(experiment, tmp_path, capsys, monkeypatch):
    load = transformers.PreTrainedModel.from_pretrained.__func__

    def outline(cls, *args, **kwargs):
        assert kwargs.get("device_map") == "meta", "weights were loaded"
        return load(cls, *args, **kwargs)

    path = experiment(arms=ARMS, profile=SHORT)
    before = set(tmp_path.rglob("*"))
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(outline))
    assert main([path, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "new tokens: 1, 2, 3, 4", "prefixes: 8, 175", "plain decoding", "a chain", "recycling, length=1",
        "recycling, length=3",
        "Next: the same command without --dry-run",
    ]  # fmt: skip
    assert set(tmp_path.rglob("*")) == before
