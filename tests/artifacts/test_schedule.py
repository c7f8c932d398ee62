"""A schedule is loaded as the measured strategy, and opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.small_models import small_model

from specexp.artifacts import ArtifactError, fingerprint
from specexp.config.artifacts import LoadedArtifact, load_artifact, save_artifact
from specexp.core.language_model import LanguageModel
from specexp.scheduling import Job, LeastProgress, Scheduled, Serial

SCHEDULE: dict[str, Any] = {
    "class_path": "Scheduled",
    "init_args": {"n": 2, "verify_batch": 2, "policy": {"class_path": "LeastProgress"}, "workers": "thread"},
}
PARTS: dict[str, Any] = {
    "drafter": {"class_path": "DraftModel", "init_args": {}},
    "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 1]}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}
JOBS = [Job((3, 1, 4, 1, 5), sequence=f"sample {number}", max_new_tokens=12) for number in range(3)]


def save(folder: Path, schedule: Any = SCHEDULE, parts: Any = PARTS, **more: Any) -> LoadedArtifact:
    return save_artifact(folder / "a", "schedule", {"schedule.json": schedule, "parts.json": parts}, **more)


def test_every_argument_reaches_the_strategy(tmp_path):
    artifact = load_artifact(save(tmp_path).folder)

    execution = artifact.execution
    assert isinstance(execution, Scheduled)
    assert (execution.n, execution.verify_batch, execution.workers) == (2, 2, "thread")
    assert isinstance(execution.policy, LeastProgress)
    assert artifact.execution_spec["init_args"]["draft_threads"] == 1, "defaults are filled in"
    assert artifact.parts.builder is not None
    assert artifact.parts.builder.max_nodes == 4


def test_it_opens_with_the_deployments_draft_and_its_output_equals_plain_decoding(tmp_path):
    model, draft = LanguageModel(small_model("Qwen2")), small_model("Llama")
    artifact = save(tmp_path)
    with pytest.raises(ValueError, match="DraftModel needs a draft model"):
        artifact.open(model)

    with Serial().open(model, artifact.new_parts(draft)) as plain:
        expected = [result.token_ids for result in plain.run(JOBS, seed=5).results]
    with artifact.open(model, draft) as executor:
        run = executor.run(JOBS, seed=5)
    assert [result.token_ids for result in run.results] == expected
    assert sum(result.drafted_nodes for result in run.results) > 0
    assert artifact.new_parts(draft).drafter is not artifact.new_parts(draft).drafter


def test_it_opens_on_no_other_model(tmp_path):
    artifact = save(tmp_path, fingerprint=fingerprint(small_model("Qwen2")))
    with pytest.raises(ArtifactError, match=r"fingerprint\.model\.model_type is 'qwen2'"):
        artifact.open(small_model("Llama"), small_model("Llama"))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (
            {
                **PARTS,
                "drafter": {"class_path": "TokenRecycling", "init_args": {"state": "carry"}},
                "verifier": {"class_path": "RejectionSampling", "init_args": {"temperature": 0.7}},
            },
            "TokenRecycling shares what it learns",
        ),
        ({"verifier": PARTS["verifier"]}, "the artifact records no drafter"),
    ],
)
def test_impossible_parts_are_refused_when_it_is_opened(tmp_path, parts, error):
    artifact = save(tmp_path, parts=parts)
    with pytest.raises(ValueError, match=error):
        artifact.open(small_model("Qwen2"))
