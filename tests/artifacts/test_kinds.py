"""All kinds: wrong content, the candidates of a study that a kind holds, and adding a new kind."""

from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from helpers import made_artifacts as made

from specexp.artifacts import ArtifactError, StudyKind, all_kinds, value_of
from specexp.artifacts.artifact import Artifact, LearnedArtifact
from specexp.builders import DySpecThreshold
from specexp.config.artifacts import LoadedArtifact, load_artifact, save_artifact
from specexp.controllers import QLearning, ThresholdTracker
from specexp.core.latency import LatencyProfile, Overhead
from specexp.core.tree import NodeKind
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, all_formats
from specexp.drafters import DraftModel
from specexp.drafters.phrases import PhraseStore
from specexp.verifiers import RejectionSampling

LEFT_OUT = object()
PATHS = [[0], [1], [0, 0]]
DRAFT = {"temperature": 0.6, "top_k": None, "top_p": 0.9, "coupled": False}
THRESHOLDS = {
    "threshold": 0.03, "max_nodes": 48, "max_depth": 7, "candidates": "drawn", "acceptance_power": 0.4, "draft": DRAFT,
}  # fmt: skip
STRATEGY: dict[str, Any] = {"class_path": "Scheduled", "init_args": {"n": 2, "workers": "thread"}}
DEVICE = LatencyProfile(
    "a device", {1: 10.0, 8: 12.0}, {1: 2.0}, 0.5, prefix_tokens=64, target_prefix_ms=1.5,
    overheads={"plain": Overhead(token_ms=0.25)}, source="published",
)  # fmt: skip
PROFILE = DEVICE.to_dict()
POINT = {"tokens": 1, "prefix": 64, "ms": 10.0, "low": 9.5, "high": 10.5}
ARM = {
    "arm": "plain decoding", "composition": "plain", "tokens": 40, "steps": 40, "nodes": 0,
    "measured_ms": 10.0, "predicted_ms": 10.1,
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "device": "a CPU", "threads": 1, "target_dtype": "bfloat16", "draft_dtype": None, "target": [POINT], "draft": [],
    "arms": [ARM],
}  # fmt: skip
STORE = {
    "counts": np.array([1, 1]), "keys": np.array([7, 2]), "phrases": np.array([[3, 4], [5, -1]]),
    "uses": np.array([0, 2]),
}  # fmt: skip
WHOLE: dict[tuple[str, str], dict[str, Any]] = {
    ("thresholds", "thresholds.json"): THRESHOLDS,
    ("schedule", "schedule.json"): STRATEGY,
    ("latency-profile", "profile.json"): PROFILE,
    ("composition", "parts.json"): made.PARTS,
    ("phrase-cache", "phrases.safetensors"): STORE,
}


def changed(kind: str, file: str, **fields: Any) -> dict[str, Any]:
    """Return the payloads of a kind, with other values of these fields in one file."""
    content = {**WHOLE[kind, file], **fields}
    return {file: {name: value for name, value in content.items() if value is not LEFT_OUT}}


def thresholds(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "thresholds", changed("thresholds", "thresholds.json", **fields)


def schedule(content: Any = None, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "schedule", {
        "schedule.json": content or {"class_path": "Scheduled", "init_args": arguments},
        "parts.json": made.PARTS,
    }


def profile(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "latency-profile", changed("latency-profile", "profile.json", **fields)


def composition(**parts: Any) -> tuple[str, dict[str, Any]]:
    return "composition", changed("composition", "parts.json", **parts)


def phrases(**arrays: Any) -> tuple[str, dict[str, Any]]:
    return "phrase-cache", changed("phrase-cache", "phrases.safetensors", **arrays)


def tree(paths: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "static-tree", {"tree.json": paths, **more}


def matrix(name: str = "matrix", **array: Any) -> tuple[str, dict[str, Any]]:
    return "adjacency-matrix", {"matrix.safetensors": {name: np.full((3, 2), **array)}}


def head(**arrays: Any) -> tuple[str, dict[str, Any]]:
    return "draft-head", {"head.safetensors": arrays, "parts.json": {"drafter": {"class_path": "Medusa"}}}


SAMPLED = {"class_path": "StaticTree", "init_args": {"rank_paths": PATHS, "candidates": "sampled"}}
WRONG: list[tuple[tuple[str, dict[str, Any]], str]] = [
    (("static-tre", {"tree.json": [[0]]}), "did you mean 'static-tree'"),
    (("static-tree", {}), "payloads has no 'tree.json'"),
    (("schedule", {"parts.json": made.PARTS}), r"payloads has no 'schedule\.json', which a schedule needs"),
    (tree([[0]], **{"../up.json": 1}), r"payloads\.\.\./up\.json: must be a plain"),
    (tree([]), "must not be empty"),
    (tree([[0], [0]]), "twice"),
    (tree([[True]]), r"tree\.json: 0\.0 must be an integer, got True"),
    (tree({1, 2}), "tree.json cannot be written"),
    (tree([[0]], **{"parts.json": {"drafter": {"class_path": 3}}}), "drafter.class_path must be a text"),
    (tree(PATHS, **{"parts.json": {"builder": SAMPLED}}), r"candidates must be .*, got 'sampled'"),
    (matrix("m", fill_value=0, dtype=np.int32), "m is unknown; allowed are matrix"),
    (phrases(keys=LEFT_OUT), r"phrases\.safetensors: keys is missing"),
    (phrases(keys=np.zeros(2, np.float32)), "float32"),
    (phrases(keys=np.array([3, 3])), "damaged"),
    (head(weight=np.array([np.nan])), "'weight' has numbers that are not finite"),
    (("draft-head", {"head.safetensors": {}, "parts.json": {}}), "drafter is missing"),
    (("draft-lengths", {"draft_lengths.json": {"nodes": {"a": 1}}, "parts.json": {}}), "nodes.a must be an integer"),
    (
        ("draft-lengths", {"draft_lengths.json": {"nodes": {}}, "parts.json": {"controller": {"class_path": "Fixed"}}}),
        r"parts\.json: controller is recorded; its own payload alone states it",
    ),
    (("engine-settings", {"settings.json": {"engine": "vllm", "version": 1, "settings": {}}}), "version must be"),
    (("plain-decoding", {"verdict.json": {"reason": "no"}, "parts.json": {}}), "best_found is missing"),
    (composition(drafter=None), "drafter must be an object, got null"),
    (composition(builder={"class_path": "Chian"}), "did you mean 'Chain'"),
    (composition(scheduler=None), "scheduler is unknown"),
    (thresholds(threshold=0.0), "threshold must be .*, got 0.0"),
    (thresholds(draft={**DRAFT, "top_p": 1.5}), r"drafter\.init_args\.top_p must be .*, got 1.5"),
    (thresholds(treshold=0.1), "treshold is unknown; did you mean 'threshold'"),
    (("thresholds", {"thresholds.json": [0.03]}), r"thresholds\.json must be a mapping"),
    (schedule({"init_args": {"n": 3}}), "class_path is missing"),
    (schedule({"class_path": "Serial"}), "class_path must be a strategy that drafts, such as Scheduled, got 'Serial'"),
    (schedule({"class_path": "Scheduled", "n": 3}), "n is unknown"),
    (schedule(n=2, verify_batch=3), "verify_batch was 3, but only n=2 sequences draft at a time"),
    (profile(target_ms=LEFT_OUT), "target_ms is missing"),
    (profile(target_ms=[10.0]), r"target_ms must be an object, got \[10\.0\]"),
    (profile(target_ms={"one": 10.0}), "target_ms.one must be an integer, got 'one'"),
    (profile(stepms=1), "stepms is unknown; did you mean 'step_ms'"),
    (profile(modelled=False), "modelled is a key of an experiment"),
    (profile(measured={**MEASURED, "threads": 0}), r"measured\.threads must be >= 1, got 0"),
    (profile(measured={**MEASURED, "target": [{**POINT, "ms": None}]}), r"target\.0\.ms must be a number, got null"),
]  # fmt: skip


def test_the_content_that_is_changed_below_is_right(tmp_path):
    for kind, file in WHOLE:
        alone = kind in ("latency-profile", "thresholds") or file == "parts.json"
        parts = {} if alone else {"parts.json": made.PARTS}
        assert save_artifact(tmp_path / kind, kind, {file: WHOLE[kind, file], **parts}).kind == kind


@pytest.mark.parametrize(("artifact", "sentence"), WRONG, ids=[row[1][:40] for row in WRONG])
def test_wrong_content_is_one_sentence_and_nothing_is_left_behind(tmp_path, artifact, sentence):
    with pytest.raises(ArtifactError, match=sentence) as caught:
        save_artifact(tmp_path / "a", *artifact)
    assert str(caught.value).startswith(str(tmp_path / "a"))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def candidate(**families: Any) -> dict[str, Any]:
    return {"drafter": None, "builder": None, "verifier": None, "controller": None, **families}


def part(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": arguments}


DRAWN = {"rank_paths": PATHS, "candidates": "drawn"}
REPLACED = {"rank_paths": PATHS, "candidates": "drawn with replacement"}
MODEL, CHAIN = part("DraftModel", temperature=0.6), part("Chain", length=3)
BATCHED = {"execution": part("Batched", n=3, threads=None)}
TABLE = {"learned": {"controller": QLearning(draft_cost=0.1).state_dict(), "drafter": {}}}


def stored() -> dict[str, Any]:
    store = PhraseStore(5, 10, 3)
    store.insert(1, [2, 3])
    return {"learned": {"drafter": store.state_dict()}}


@pytest.mark.parametrize(
    ("kind", "parts", "attributes", "held"),
    [
        ("static-tree", candidate(drafter=MODEL, builder=CHAIN), DRAWN, True),
        ("static-tree", candidate(drafter=MODEL, builder=CHAIN), REPLACED, False),
        ("thresholds", candidate(drafter=MODEL, builder=CHAIN), REPLACED, False),
        ("composition", candidate(drafter=MODEL, builder=CHAIN), {}, True),
        ("composition", candidate(builder=CHAIN), {}, False),
        ("schedule", candidate(drafter=MODEL, builder=CHAIN), BATCHED, True),
        ("schedule", candidate(drafter=MODEL), {"execution": part("Serial", threads=1)}, False),
        ("schedule", candidate(), BATCHED, False),
        ("q-table", candidate(controller=part("QLearning")), TABLE, True),
        ("q-table", candidate(controller=part("QLearning")), {}, False),
        ("q-table", candidate(controller=part("Fixed")), TABLE, False),
        ("adjacency-matrix", candidate(drafter=MODEL), DRAWN, False),
        ("phrase-cache", candidate(drafter=part("PhraseCache")), stored(), True),
        ("phrase-cache", candidate(drafter=MODEL), stored(), False),
        ("suffix-corpus", candidate(drafter=part("SuffixAutomaton")), stored(), False),
    ],
)  # fmt: skip
def test_a_candidate_is_held_by_its_kind_alone(tmp_path, kind, parts, attributes, held):
    payloads = all_kinds()[kind].payloads_of(deepcopy(parts), attributes)
    assert (payloads is not None) == held
    if payloads is not None:
        saved = save_artifact(tmp_path / "a", kind, payloads)
        assert kind in get_args(StudyKind)
        assert kind != "static-tree" or saved.builder.kind is NodeKind.DRAWN


def saved_profile(folder: Path, **fields: Any) -> LoadedArtifact:
    return save_artifact(folder / "a", *profile(**fields))


def test_a_profile_is_the_one_that_was_saved_and_may_hold_its_measurements(tmp_path):
    by_hand = saved_profile(tmp_path)
    assert by_hand.profile == DEVICE
    assert by_hand.profile.label == "modelled: a device (published)"
    assert by_hand.measured is None
    with pytest.raises(ArtifactError, match="records no drafter"):
        _ = by_hand.parts
    measured = saved_profile(tmp_path, measured=MEASURED, source="measured")
    assert measured.measured.target[0].high == 10.5
    assert measured.measured.arms[0].predicted_ms == 10.1


def test_a_profile_is_read_once_and_an_alias_that_moves_is_followed(tmp_path):
    best = str(saved_profile(tmp_path).folder.parent / "best")
    first = value_of("latency-profile", best)
    assert value_of("latency-profile", best) is first
    saved_profile(tmp_path, step_ms=7.0)
    assert value_of("latency-profile", best).step_ms == 7.0


def test_every_threshold_reaches_its_part(tmp_path):
    tracked = part("ThresholdTracker", budget=24, initial=0.03)
    parts = {"verifier": part("RejectionSampling", temperature=0.6), "controller": tracked}
    payloads = {"thresholds.json": THRESHOLDS, "parts.json": parts}
    saved = save_artifact(tmp_path / "a", "thresholds", payloads)
    drafter, builder, verifier, controller = load_artifact(saved.folder).parts
    assert isinstance(builder, DySpecThreshold)
    assert (builder.threshold, builder.max_nodes, builder.max_depth) == (0.03, 48, 7)
    assert (builder.acceptance_power, builder.kind) == (0.4, NodeKind.DRAWN)
    assert isinstance(drafter, DraftModel)
    assert (drafter.temperature, drafter.top_k, drafter.top_p, drafter.coupled) == (0.6, None, 0.9, False)
    assert isinstance(verifier, RejectionSampling)
    assert isinstance(controller, ThresholdTracker)
    assert (controller.budget, controller.threshold) == (24, pytest.approx(0.03))


def test_a_kind_and_a_format_are_a_row_each(tmp_path, monkeypatch):
    class Ngrams(LearnedArtifact):
        kind = "n-grams"
        fields: ClassVar[dict[str, Any]] = {"n_grams.safetensors": ("max_ngram",)}
        learned = family = "drafter"
        made_by = "specexp.drafters.prompt_lookup.PromptLookup"
        argument = "max_ngram"

        def read(self, payloads: Any) -> None:
            super().read(payloads)
            self.value = int(self.value["max_ngram"][0])

    class Longest(ExportFormat):
        name, kinds, read_for = "longest", ("n-grams",), "this test"

        def export(self, artifact: Any, **options: str) -> ExportedFile:
            return ExportedFile({"longest": artifact.value})

    formats: dict[str, type] = {**all_formats(), "longest": Longest}
    kinds: dict[str, type[Artifact]] = {**all_kinds(), "n-grams": Ngrams}
    monkeypatch.setattr("specexp.artifacts.store.all_kinds", lambda: kinds)
    monkeypatch.setattr("specexp.deploy.export.command.all_formats", lambda: formats)
    from specexp.deploy.export.command import export

    parts = candidate(drafter=part("PromptLookup", min_ngram=2))
    payloads = Ngrams.payloads_of(parts, {"learned": {"drafter": {"max_ngram": [4]}}})
    saved = save_artifact(tmp_path / "a", "n-grams", payloads or {})
    assert (saved.drafter.min_ngram, saved.drafter.max_ngram) == (2, 4)
    assert export(saved.folder, "longest") == ({"longest": 4}, "")
