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
DEVICE = LatencyProfile(
    "a device", {1: 10.0, 8: 12.0}, {1: 2.0}, 0.5, prefix_tokens=64, target_prefix_ms=1.5,
    overheads={"plain": Overhead(token_ms=0.25)}, source="published",
)  # fmt: skip
POINT = {"tokens": 1, "prefix": 64, "ms": 10.0, "low": 9.5, "high": 10.5}
ARM = {
    "arm": "plain decoding", "composition": "plain", "tokens": 40, "steps": 40, "nodes": 0,
    "measured_ms": 10.0, "predicted_ms": 10.1,
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "device": "a CPU", "threads": 1, "target_dtype": "bfloat16", "draft_dtype": None, "target": [POINT], "draft": [],
    "arms": [ARM],
}  # fmt: skip
TREE, PROFILE, STRATEGY = "tree.json", "profile.json", "schedule.json"
PHRASES, RULES = "phrases.safetensors", "thresholds.json"
SAMPLED = {"class_path": "StaticTree", "init_args": {"rank_paths": PATHS, "candidates": "sampled"}}
TYPO = {"drafter": {"class_path": 3}, "builder": None}
WRONG: list[tuple[str, str, Any, str]] = [
    ("static-tree", TREE, LEFT_OUT, "payloads has no 'tree.json', which a static-tree needs"),
    ("static-tree", "../up.json", 1, r"payloads\.\.\./up\.json: must be a plain"),
    ("static-tree", TREE, [], "must not be empty"),
    ("static-tree", TREE, [[0], [0]], "twice"),
    ("static-tree", TREE, [[True]], r"tree\.json: 0\.0 must be an integer, got True"),
    ("static-tree", TREE, {1, 2}, "tree.json cannot be written"),
    ("static-tree", "parts.json", TYPO, "drafter.class_path must be a text"),
    ("static-tree", "parts.json", {"builder": SAMPLED}, r"candidates must be .*, got 'sampled'"),
    ("adjacency-matrix", "matrix.safetensors", {"m": np.zeros(2)}, "m is unknown; allowed are matrix"),
    ("phrase-cache", PHRASES, {"keys": LEFT_OUT}, r"phrases\.safetensors: keys is missing"),
    ("phrase-cache", PHRASES, {"keys": np.zeros(2, np.float32)}, "float32"),
    ("phrase-cache", PHRASES, {"keys": np.array([3, 3])}, "damaged"),
    ("draft-head", "head.safetensors", {"bias": np.array([np.nan])}, "'bias' has numbers that are not finite"),
    ("draft-head", "parts.json", {"drafter": LEFT_OUT}, "drafter is missing"),
    ("plain-decoding", "verdict.json", {"best_found": LEFT_OUT}, "best_found is missing"),
    ("composition", "parts.json", {"drafter": None}, "drafter must be an object, got null"),
    ("composition", "parts.json", {"builder": {"class_path": "Chian"}}, "did you mean 'Chain'"),
    ("composition", "parts.json", {"scheduler": None}, "scheduler is unknown"),
    ("thresholds", RULES, {"threshold": 0.0}, "threshold must be .*, got 0.0"),
    ("thresholds", RULES, {"draft": {**DRAFT, "top_p": 1.5}}, r"drafter\.init_args\.top_p must be .*, got 1.5"),
    ("thresholds", RULES, {"treshold": 0.1}, "treshold is unknown; did you mean 'threshold'"),
    ("thresholds", RULES, [0.03], r"thresholds\.json must be a mapping"),
    ("schedule", STRATEGY, {"class_path": LEFT_OUT}, "class_path is missing"),
    ("schedule", STRATEGY, {"class_path": "Serial"}, "must be a strategy that drafts, such as Scheduled, got 'Serial'"),
    ("schedule", STRATEGY, {"n": 3}, "n is unknown"),
    ("schedule", STRATEGY, {"init_args": {"n": 2, "verify_batch": 3}}, "verify_batch must be at most n=2"),
    ("latency-profile", PROFILE, {"target_ms": LEFT_OUT}, "target_ms is missing"),
    ("latency-profile", PROFILE, {"target_ms": [10.0]}, r"target_ms must be an object, got \[10\.0\]"),
    ("latency-profile", PROFILE, {"target_ms": {"one": 10.0}}, "target_ms.one must be an integer, got 'one'"),
    ("latency-profile", PROFILE, {"stepms": 1}, "stepms is unknown; did you mean 'step_ms'"),
    ("latency-profile", PROFILE, {"modelled": False}, "modelled is a key of an experiment"),
    ("latency-profile", PROFILE, {"measured": {**MEASURED, "threads": 0}}, r"measured\.threads must be >= 1, got 0"),
]  # fmt: skip


def changed(kind: str, file: str, content: Any) -> dict[str, Any]:
    """Return the payloads of a kind with other content of a file, or other values of its keys."""
    payloads = made.payloads()[kind]
    old = payloads.pop(file, None)
    if isinstance(old, dict) and isinstance(content, dict):
        content = {name: value for name, value in {**old, **content}.items() if value is not LEFT_OUT}
    return payloads if content is LEFT_OUT else {**payloads, file: content}


@pytest.mark.parametrize(("kind", "file", "content", "sentence"), WRONG, ids=[row[-1][:40] for row in WRONG])
def test_wrong_content_is_one_sentence_and_leaves_no_file(tmp_path, kind, file, content, sentence):
    with pytest.raises(ArtifactError, match=sentence) as caught:
        save_artifact(tmp_path / "a", kind, changed(kind, file, content))
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
    return save_artifact(folder / "a", "latency-profile", {"profile.json": {**DEVICE.to_dict(), **fields}})


def test_a_profile_is_the_one_that_was_saved_and_may_hold_its_measurements(tmp_path):
    by_hand = saved_profile(tmp_path)
    assert by_hand.profile == DEVICE
    assert by_hand.profile.label == "modelled: a device (published)"
    assert by_hand.measured is None
    with pytest.raises(ArtifactError, match="records no drafter"):
        _ = by_hand.parts
    measured = saved_profile(tmp_path, measured=MEASURED, source="measured")
    assert measured.measured.target[0].high == 10.5
    assert measured.measured.roofline is None


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
