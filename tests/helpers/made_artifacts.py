"""One artifact of every kind, and changes to them with corrected hashes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specexp.artifacts import ArtifactError
from specexp.artifacts.manifest import canonical_json, sha256
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.controllers import SpecDecPlusPlus
from specexp.drafters.phrases import PhraseStore
from specexp.drafters.suffix_index import corpus_arrays

PARTS: dict[str, Any] = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 4}},
    "builder": {"class_path": "StaticTree", "init_args": {"rank_paths": [[0], [1], [0, 0]]}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}
NESTED: dict[str, Any] = {
    "drafter": {
        "class_path": "PhraseCache",
        "init_args": {
            "drafter": {
                "class_path": "Union",
                "init_args": {"drafters": [{"class_path": "PromptLookup"}, PARTS["drafter"]]},
            }
        },
    },
    "builder": {"class_path": "Choice", "init_args": {"builders": [{"class_path": "Chain"}, PARTS["builder"]]}},
    "verifier": {"class_path": "Greedy"},
    "controller": {
        "class_path": "RuleBandit",
        "init_args": {"controllers": [{"class_path": "Heuristic"}, {"class_path": "Fixed"}]},
    },
}


def phrases() -> dict[str, Any]:
    store = PhraseStore(phrase_length=5, max_keys=10, max_phrases=3)
    store.insert(7, [1, 2])
    store.insert(3, [4, 5, 6])
    return {name: tensor.numpy() for name, tensor in store.state_dict().items()}


def q_table() -> dict[str, Any]:
    bins = {"actions": ["CONTINUE", "STOP"], "cost_bins": [2.0], "confidence_bins": [0.5], "signal_bins": {}}
    content = {"bins": bins, "costs": {"profile": None, "samples": []}, "means": {"change": 0.1}, "steps": 3}
    values = {"q": np.zeros((5, 2)), "visits": np.zeros((5, 2), dtype=np.int64)}
    return {"q.safetensors": values, "bins.json": content}


def payloads() -> dict[str, dict[str, Any]]:
    """Return the payloads of each kind."""
    tree = {"threshold": 0.1, "max_nodes": 8, "max_depth": None, "candidates": "top-k", "acceptance_power": 1.0}
    draft = {"temperature": None, "top_k": None, "top_p": None, "coupled": False}
    profile = {"name": "a", "source": "assumed", "target_ms": {"1": 20.0, "8": 24.0}, "draft_ms": {"1": 3.0}}
    room = {"phrase_length": 5, "max_keys": 10, "max_phrases": 4}
    cache = {"class_path": "PhraseCache", "init_args": room}
    rules = {name: PARTS[name] for name in ("verifier", "controller")}
    matrix = np.arange(40, dtype=np.int32).reshape(10, 4) % 10
    return {
        "static-tree": {"tree.json": [[0], [1], [0, 0]], "parts.json": PARTS},
        "thresholds": {"thresholds.json": {**tree, "draft": draft}, "parts.json": rules},
        "composition": {"parts.json": NESTED},
        "adjacency-matrix": {"matrix.safetensors": {"matrix": matrix}, "parts.json": PARTS},
        "phrase-cache": {"phrases.safetensors": phrases(), "parts.json": {**PARTS, "drafter": cache}},
        "q-table": {**q_table(), "parts.json": PARTS},
        "schedule": {
            "schedule.json": {"class_path": "Scheduled", "init_args": {"n": 2, "policy": {"class_path": "FirstCome"}}},
            "parts.json": PARTS,
            "state.json": {"drafter": {"matrix": {"tensor": "drafter.matrix"}}},
            "state.safetensors": {"drafter.matrix": matrix},
        },
        "plain-decoding": {
            "verdict.json": {"reason": "nothing is faster", "best_found": "v1", "several_sequences": True},
            "parts.json": {"verifier": PARTS["verifier"]},
        },
        "latency-profile": {"profile.json": profile},
        "acceptance-head": {
            "head.safetensors": SpecDecPlusPlus().state_dict(),
            "parts.json": {**PARTS, "drafter": {"class_path": "DraftModel"}},
        },
        "draft-head": {
            "head.safetensors": {
                "weight": np.zeros((1, 2, 4, 4), np.float32),
                "bias": np.zeros((1, 2, 4), np.float32),
                "target": np.zeros(8, np.float32),
            },
            "parts.json": {**PARTS, "drafter": {"class_path": "Medusa"}},
        },
        "suffix-corpus": {
            "corpus.safetensors": corpus_arrays([[3, 1, 2], [1, 2]]),
            "parts.json": {**PARTS, "drafter": {"class_path": "SuffixAutomaton", "init_args": {"candidates": 4}}},
        },
    }


KINDS = tuple(payloads())


def save(folder: Path, kind: str) -> Path:
    """Write an artifact of a kind; return the folder of its version."""
    return save_artifact(folder / kind, kind, payloads()[kind]).folder


def rehash(folder: Path) -> None:
    """Correct size and hash of every declared payload, and the manifest's own hash, as a forger would."""
    file = folder / "artifact.json"
    fields = json.loads(file.read_text())
    for name in fields["payloads"]:
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            fields["payloads"][name] = {"sha256": sha256(data), "bytes": len(data)}
    fields.pop("sha256", None)
    file.write_text(json.dumps({**fields, "sha256": sha256(canonical_json(fields))}))


def rewrite(folder: Path, file: str, content: Any) -> None:
    """Replace a payload's content by JSON or bytes."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / file).write_bytes(data)
    rehash(folder)


def refuses(folder: Path, sentence: str) -> None:
    """Check that an artifact is refused in this one sentence, which names the folder."""
    with pytest.raises(ArtifactError, match=sentence) as caught:
        load_artifact(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed
