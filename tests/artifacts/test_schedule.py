"""A schedule is loaded as the strategy that was measured, and opens; a field that is wrong is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.small_models import small_model

from specexp.artifacts import Artifact, ArtifactError, fingerprint
from specexp.artifacts.kinds.compositions import ScheduleArtifact
from specexp.config.artifacts import LoadedArtifact, load_artifact, save_artifact
from specexp.core.language_model import LanguageModel
from specexp.scheduling import Batched, Job, LeastProgress, Scheduled, Serial

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
    saved = save_artifact(folder / "a", "schedule", {"schedule.json": schedule, "parts.json": parts}, **more)
    return saved


def test_every_argument_reaches_the_strategy(tmp_path: Path) -> None:
    artifact = load_artifact(save(tmp_path).folder)

    execution = artifact.execution
    assert isinstance(execution, Scheduled)
    assert (execution.n, execution.verify_batch, execution.workers) == (2, 2, "thread")
    assert isinstance(execution.policy, LeastProgress)
    assert artifact.execution_spec["init_args"]["draft_threads"] == 1, "defaults are filled in"
    assert artifact.parts.builder is not None
    assert artifact.parts.builder.max_nodes == 4


def test_it_opens_with_the_deployments_own_draft_and_says_what_plain_decoding_says(tmp_path: Path) -> None:
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


def test_executors_share_no_parts(tmp_path: Path) -> None:
    artifact, draft = save(tmp_path), small_model("Llama")
    first, second = artifact.new_parts(draft), artifact.new_parts(draft)
    assert first.drafter is not second.drafter
    assert first.drafter is not artifact.parts.drafter


def test_it_opens_on_no_other_model(tmp_path: Path) -> None:
    artifact = save(tmp_path, fingerprint=fingerprint(small_model("Qwen2")))
    with pytest.raises(ArtifactError, match=r"fingerprint\.model\.model_type is 'qwen2'"):
        artifact.open(small_model("Llama"), small_model("Llama"))


def test_parts_that_cannot_work_so_are_refused_when_opened(tmp_path: Path) -> None:
    carrying = {"class_path": "TokenRecycling", "init_args": {"state": "carry"}}
    drawing = {"class_path": "RejectionSampling", "init_args": {"temperature": 0.7}}
    artifact = save(tmp_path, parts={**PARTS, "drafter": carrying, "verifier": drawing})
    with pytest.raises(ValueError, match="TokenRecycling shares what it learns"):
        artifact.open(small_model("Qwen2"))


def test_without_a_drafter_there_is_nothing_to_open(tmp_path: Path) -> None:
    artifact = save(tmp_path, parts={"verifier": PARTS["verifier"]})
    with pytest.raises(ArtifactError, match="the artifact records no drafter"):
        artifact.open(small_model("Qwen2"))


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ([SCHEDULE], "must be an object"),
        ("Scheduled", "must be an object, got 'Scheduled'"),
        ({"init_args": {"n": 3}}, "class_path is missing"),
        (
            {"class_path": "Schedule"},
            "class_path: no Execution is called 'Schedule'; did you mean 'Scheduled'",
        ),
        ({"class_path": "Serial"}, "class_path is 'Serial', plain decoding; a strategy that drafts is"),
        ({"class_path": "specexp.drafters.DraftModel"}, "'specexp.drafters.DraftModel' is no Execution"),
        ({"class_path": "specexp.scheduling.Execution"}, "is only the contract of its family"),
        ({"class_path": "no.such.Thing"}, "'no.such.Thing' is no Execution of specexp"),
        ({"class_path": "Scheduled", "n": 3}, "n is unknown"),
        (
            {"class_path": "Scheduled", "init_args": [3]},
            r"init_args must be an object, got \[3\]",
        ),
    ],
)
def test_what_is_no_strategy_is_one_sentence(tmp_path: Path, schedule: Any, sentence: str) -> None:
    refuses(tmp_path, schedule, sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n": 0}, "init_args.n is 0; allowed is an integer of at least 1"),
        ({"n": "three"}, "init_args.n is 'three'; allowed is"),
        ({"verify_batch": 0}, "init_args.verify_batch is 0; allowed is"),
        ({"n": 2, "verify_batch": 3}, "verify_batch was 3, but only n=2 sequences draft at a time"),
        ({"workers": "fiber"}, "init_args.workers is 'fiber'; allowed is"),
        ({"threads": 0}, "init_args.threads is 0; allowed is"),
        (
            {"verify_bach": 2},
            "unknown key 'execution.init_args.verify_bach' of Scheduled; did you mean .*verify_batch'",
        ),
        (
            {"policy": {"class_path": "FirstCame"}},
            "init_args.policy.class_path: no QueuePolicy is called 'FirstCame'",
        ),
        ({"policy": 3}, "init_args.policy is 3; allowed is a QueuePolicy"),
    ],
)
def test_an_argument_that_is_wrong_is_one_sentence(
    tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    refuses(tmp_path, {"class_path": "Scheduled", "init_args": arguments}, sentence)


def refuses(folder: Path, schedule: Any, sentence: str) -> None:
    with pytest.raises(ArtifactError, match=sentence) as raised:
        save(folder, schedule)
    assert str(raised.value).startswith(f"{folder / 'a'}: schedule.json")
    assert "\n" not in str(raised.value)
    assert ": :" not in str(raised.value)
    assert list(folder.iterdir()) == [], "nothing is left behind"


def test_a_file_that_was_cut_short_or_is_missing(tmp_path: Path) -> None:
    file = save(tmp_path).folder / "schedule.json"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"payload schedule\.json is .* changed or truncated"):
        load_artifact(file.parent)
    file.unlink()
    with pytest.raises(ArtifactError, match=r"payload schedule\.json is missing"):
        load_artifact(file.parent)
    with pytest.raises(ArtifactError, match=r"payloads has no 'schedule\.json', which a schedule needs"):
        save_artifact(tmp_path / "b", "schedule", {"parts.json": PARTS})


def test_a_candidate_is_a_schedule_where_something_is_drafted(tmp_path: Path) -> None:
    batched = {"class_path": "Batched", "init_args": {"n": 3, "threads": None}}
    payloads = ScheduleArtifact.payloads_of(PARTS, {"execution": batched, "nodes": 4})
    assert payloads is not None
    saved: Artifact = save_artifact(tmp_path / "a", "schedule", payloads)
    assert isinstance(saved.execution, Batched)
    assert saved.recorded == {family: spec for family, spec in PARTS.items() if spec is not None}

    plain = {"class_path": "Serial", "init_args": {"threads": 1}}
    assert ScheduleArtifact.payloads_of(PARTS, {"nodes": 4}) is None, "of a study of one sequence at a time"
    assert ScheduleArtifact.payloads_of(PARTS, {"execution": plain}) is None
    nothing = {**PARTS, "drafter": None, "builder": None}
    assert ScheduleArtifact.payloads_of(nothing, {"execution": batched}) is None
