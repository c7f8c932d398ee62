"""Decoding with loaded artifacts: compositions, schedules, phrase caches, and the runtime of the study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import made_artifacts as made
from helpers.small_models import small_model

from specexp import Decoder, load_artifact, load_pair
from specexp.artifacts import ArtifactError, fingerprint, value_of
from specexp.artifacts.parts import STATE_FILES, state_payloads
from specexp.builders import Chain
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.controllers import ConfidenceThreshold
from specexp.core.language_model import LanguageModel
from specexp.deploy.hugging_face.custom_generate import custom_generate
from specexp.deploy.server.loading import decoding_thread_of
from specexp.drafters import PhraseCache, TokenRecycling
from specexp.models.compiled import CompiledModel
from specexp.scheduling import Job, LeastProgress, Scheduled, Serial
from specexp.testing.fakes import hashed_model

SAMPLED: dict[str, Any] = {
    "drafter": {"class_path": "DraftModel"},
    "builder": {"class_path": "Chain", "init_args": {"length": 3}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}
STOPPED = {"class_path": "ConfidenceThreshold", "init_args": {"threshold": 0.3}}
CHAIN = {**SAMPLED, "drafter": {"class_path": "DraftModel", "init_args": {"coupled": True}}, "controller": STOPPED}


def test_every_part_is_made_and_decodes_as_it_was_tuned(tmp_path):
    artifact = load_artifact(save_artifact(tmp_path / "a", "composition", {"parts.json": CHAIN}).folder)
    assert isinstance(artifact.builder, Chain)
    assert isinstance(artifact.controller, ConfidenceThreshold)
    assert artifact.controller.threshold == 0.3

    target, draft = small_model("Qwen2"), small_model("Llama")
    plain = Decoder(target, None, None, artifact.verifier)
    prompt = [3, 1, 4, 1, 5]
    result = artifact.decoder(target, draft).generate(prompt, max_new_tokens=24, seed=0)
    assert result.token_ids == plain.generate(prompt, max_new_tokens=24, seed=0).token_ids
    assert 0 < result.drafted_nodes <= 3 * result.steps
    with pytest.raises(ValueError, match="DraftModel needs a draft model"):
        load_artifact(artifact.folder).decoder(target)


def test_the_learned_state_of_the_parts_is_saved_with_them(tmp_path):
    recycling = {"class_path": "TokenRecycling", "init_args": {"k": 2, "state": "carry"}}
    heuristic = {"class_path": "Heuristic"}
    matrix = np.array([[1, 2], [2, -1], [0, 1]], dtype=np.int32)
    learned = {"drafter": {"matrix": torch.from_numpy(matrix)}, "controller": {"length": 7}}
    saved = save_artifact(
        tmp_path / "warm",
        "composition",
        {"parts.json": {**CHAIN, "drafter": recycling, "controller": heuristic}, **state_payloads(learned)},
    )
    assert saved.state_bytes == sum((saved.folder / file).stat().st_size for file in STATE_FILES)
    for parts in (load_artifact(saved.folder).parts, saved.new_parts(), saved.new_parts()):
        assert parts.drafter is not None
        assert parts.drafter.state_dict()["matrix"].tolist() == matrix.tolist()
        assert parts.controller.state_dict() == {"length": 7}


SCHEDULE: dict[str, Any] = {
    "class_path": "Scheduled",
    "init_args": {"n": 2, "verify_batch": 2, "policy": {"class_path": "LeastProgress"}, "workers": "thread"},
}
JOBS = [Job((3, 1, 4, 1, 5), sequence=f"sample {number}", max_new_tokens=12) for number in range(3)]


def scheduled(folder: Path, parts: Any = SAMPLED, **more: Any) -> LoadedArtifact:
    payloads = {"schedule.json": SCHEDULE, "parts.json": parts}
    return save_artifact(folder / "a", "schedule", payloads, **more)


def test_every_argument_of_a_schedule_reaches_the_strategy(tmp_path):
    artifact = load_artifact(scheduled(tmp_path).folder)

    execution = artifact.execution
    assert isinstance(execution, Scheduled)
    assert (execution.n, execution.verify_batch, execution.workers) == (2, 2, "thread")
    assert isinstance(execution.policy, LeastProgress)
    assert artifact.execution_spec["init_args"]["draft_threads"] == 1, "defaults are filled in"


def test_a_schedule_opens_with_the_deployments_draft_and_equals_plain_decoding(tmp_path):
    model, draft = LanguageModel(small_model("Qwen2")), small_model("Llama")
    artifact = scheduled(tmp_path)
    with pytest.raises(ValueError, match="DraftModel needs a draft model"):
        artifact.open(model)

    with Serial().open(model, artifact.new_parts(draft)) as plain:
        expected = [result.token_ids for result in plain.run(JOBS, seed=5).results]
    with artifact.open(model, draft) as executor:
        run = executor.run(JOBS, seed=5)
    assert [result.token_ids for result in run.results] == expected
    assert sum(result.drafted_nodes for result in run.results) > 0
    assert artifact.new_parts(draft).drafter is not artifact.new_parts(draft).drafter


def test_a_schedule_opens_on_no_other_model(tmp_path):
    artifact = scheduled(tmp_path, fingerprint=fingerprint(small_model("Qwen2")))
    with pytest.raises(ArtifactError, match=r"fingerprint\.model\.model_type is qwen2"):
        artifact.open(small_model("Llama"), small_model("Llama"))


CARRYING = {**SAMPLED, "drafter": {"class_path": "TokenRecycling", "init_args": {"state": "carry"}}}


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({**CARRYING, "verifier": {"class_path": "RejectionSampling"}}, "TokenRecycling shares what it learns"),
        ({"verifier": SAMPLED["verifier"]}, "the artifact records no drafter"),
    ],
)
def test_a_schedule_with_impossible_parts_is_refused_when_it_is_opened(tmp_path, parts, error):
    artifact = scheduled(tmp_path, parts=parts)
    with pytest.raises(ValueError, match=error):
        artifact.open(small_model("Qwen2"))


@pytest.fixture
def measured(tmp_path):
    def write(**provenance: Any) -> LoadedArtifact:
        return save_artifact(tmp_path / "tuned", "composition", {"parts.json": SAMPLED}, provenance)

    return write


@pytest.mark.variants(1)
@pytest.mark.parametrize(("recorded", "kind"), [("compiled", "compiled"), ("eager", "eager"), (None, "compiled")])
def test_the_recorded_runtime_decodes_and_drafts(measured, caplog, recorded, kind):
    pair = load_pair("stdlib")
    artifact = measured(runtime=recorded, dtype=recorded and "bfloat16")
    if recorded is None:  # as in artifacts before runtimes were recorded
        file = artifact.folder / "artifact.json"
        fields = json.loads(file.read_text())
        del fields["provenance"]["runtime"], fields["provenance"]["dtype"]
        file.write_text(json.dumps(fields))
        made.rehash(artifact.folder)
        artifact = load_artifact(artifact.folder)
    decoder = artifact.decoder(pair.target, pair.draft)
    thread = decoding_thread_of(artifact, pair, lanes=1, waiting=1)
    for target, parts in ((decoder.model, decoder.parts), (thread.target, thread.parts)):
        assert parts.drafter is not None
        assert [model.kind for model in (target, *parts.drafter.models)] == [kind, kind]
    assert caplog.messages == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loaded", "runs"),
    [({"mode": "eager"}, "eager and bfloat16"), ({"target_dtype": "float32"}, "compiled and float32")],
)
def test_another_runtime_or_dtype_works_with_one_warning(measured, caplog, loaded, runs):
    pair = load_pair("stdlib", **loaded)
    artifact = measured(runtime="compiled", dtype="bfloat16")
    for _ in range(2):
        decoder = artifact.decoder(pair.target, pair.draft)
        assert decoder.generate([5, 6, 7], max_new_tokens=4).token_ids
    assert caplog.messages == [
        f"{artifact.folder} was measured with runtime compiled and dtype bfloat16, and the target runs with {runs}: "
        "its measured speed does not apply"
    ]


def test_a_model_that_cannot_be_compiled_runs_by_its_own_code_with_the_reason_in_the_warning(measured, caplog):
    pair = load_pair("stdlib", target_dtype="float32")
    target = pair.target.double()
    artifact = measured(runtime="compiled", dtype="float32")
    assert isinstance(artifact.runtime(target), LanguageModel)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith(
        "and the target runs with eager and float64: its measured speed does not apply (running in eager mode, since "
        "the llama model is float64, not bfloat16, float16 or float32, so there is no compiled pass of it)"
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("recorded", ["eager", "compiled"])
def test_generate_runs_as_measured(measured, monkeypatch, recorded):
    pair = load_pair("stdlib")
    passes = []
    for kind in (LanguageModel, CompiledModel):

        def counted(self: Any, *given: Any, run: Any = kind.tree_pass) -> Any:
            passes.append(self.kind)
            return run(self, *given)

        monkeypatch.setattr(kind, "tree_pass", counted)
    artifact = measured(runtime=recorded, dtype="bfloat16")
    fast = custom_generate(artifact, draft=pair.draft)
    pair.target.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, custom_generate=fast)
    assert set(passes) == {recorded}


def taught():
    """Return a phrase cache that was taught by forty tokens."""
    drafter = PhraseCache(phrase_length=4, initialisation="prompt", state="carry")
    Decoder(hashed_model(11), drafter, Chain(3)).generate([1, 2, 3, 1, 2], max_new_tokens=35, seed=0)
    return drafter


def saved(folder, teacher, **parts):
    payloads = {"phrases.safetensors": teacher.store.state_dict()}
    return save_artifact(folder / "phrases", "phrase-cache", payloads | ({"parts.json": parts} if parts else {}))


def content(drafter):
    return {key: drafter.store.lookup(key, 99) for key in range(11)}


def test_every_prompt_starts_from_the_saved_phrases(tmp_path):
    teacher = taught()
    artifact = saved(tmp_path, teacher)
    drafter = PhraseCache(phrase_length=5, state="preloaded", phrases=value_of("phrase-cache", str(artifact.folder)))
    assert content(drafter) == content(teacher)
    decoder = Decoder(hashed_model(11, seed=3), drafter, Chain(3))
    for _ in range(2):
        decoder.generate([4], max_new_tokens=9, seed=0)
        assert content(drafter) != content(teacher)
        drafter.reset()
        assert content(drafter) == content(teacher)


def test_the_recorded_phrase_cache_is_made(tmp_path):
    inner = {"class_path": "TokenRecycling", "init_args": {"k": 3}}
    arguments = {"drafter": inner, "phrase_length": 4, "ride": 2, "state": "carry"}
    recorded = {"class_path": "PhraseCache", "init_args": arguments}
    drafter = saved(tmp_path, taught(), drafter=recorded).drafter
    assert isinstance(drafter.drafter, TokenRecycling)
    assert (drafter.drafter.k, drafter.ride, drafter.state) == (3, 2, "preloaded")


@pytest.mark.parametrize("parts", [{}, {"drafter": {"class_path": "PromptLookup"}}])
def test_phrases_of_no_recorded_cache_draft_alone(tmp_path, parts):
    teacher = taught()
    drafter = saved(tmp_path, teacher, **parts).drafter
    assert drafter.drafter is None
    assert content(drafter) == content(teacher)
