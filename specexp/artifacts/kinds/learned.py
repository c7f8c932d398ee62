"""Kinds of artifacts that store the learned state of one part, passed as one argument to the part's constructor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from specexp.artifacts.artifact import LearnedArtifact
from specexp.artifacts.parts import PARTS, Spec, WithDrafter
from specexp.artifacts.validation import ArtifactError

_Fields = Mapping[str, tuple[str, ...] | None]
_PRELOADED = {"state": "preloaded"}
_FROZEN = {"learn": False}
_BY_FIT = "python -m specexp.fit FILE writes artifacts/NAME/best"


class AdjacencyMatrixArtifact(LearnedArtifact):
    """``matrix.safetensors``: the int32 tensor ``matrix`` of ``TokenRecycling.state_dict()``.

    The value is the matrix: candidate token ids ``[V, k]``, best first, padded with -1. The drafter starts every
    prompt with this matrix.
    """

    kind = "adjacency-matrix"
    fields: ClassVar[_Fields] = {"matrix.safetensors": ("matrix",)}
    learned = family = "drafter"
    made_by = "specexp.drafters.token_recycling.TokenRecycling"
    argument = "matrix"
    start = _PRELOADED

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        super().read(payloads)
        self.value = self.value["matrix"]
        k = self.init_args(None)["k"]
        recorded = (self.recorded_init_args("drafter") or {}).get("k", k)
        if recorded != k:
            where = f"{self.where(PARTS)}: drafter.init_args.k"
            raise ArtifactError(f"{where} must be the number of columns of the matrix, {k}, got {recorded!r}")

    @override
    def init_args(self, recorded: dict[str, Any] | None) -> dict[str, Any]:
        # [V, k]; the constructor rejects an array of another rank
        return {"k": self.value.shape[1] if self.value.ndim == 2 else 1, **(recorded or {})}


class PhraseCacheArtifact(LearnedArtifact):
    """``phrases.safetensors``: the tensors ``counts``, ``keys``, ``phrases`` and ``uses`` of
    ``PhraseCache.store.state_dict()``.

    The value maps these names to the tensors. The drafter is the recorded phrase cache (by default one without an inner
    drafter), and starts every prompt with these phrases.
    """

    kind = "phrase-cache"
    fields: ClassVar[_Fields] = {"phrases.safetensors": ("counts", "keys", "phrases", "uses")}
    learned = family = "drafter"
    made_by = "specexp.drafters.phrase_cache.PhraseCache"
    argument = "phrases"
    start = _PRELOADED

    @override
    def init_args(self, recorded: dict[str, Any] | None) -> dict[str, Any]:
        if recorded is not None:
            return recorded
        keys, phrases = self.value["keys"], self.value["phrases"]  # [n], [n, phrase length]
        return {  # the capacity that the stored phrases need
            "phrase_length": max(2, phrases.shape[1] if phrases.ndim > 1 else 0),
            "max_keys": max(1, keys.size),
            "max_phrases": max(1, int(np.max(self.value["counts"], initial=0))),
        }


class QTableArtifact(LearnedArtifact):
    """``q.safetensors``: ``q`` (float64) and ``visits`` (int64), each ``[states, 2]``; ``bins.json``: ``bins`` (edges
    and actions), the number of ``steps`` learned from, running ``means`` and measured ``costs``.

    The value is the entire ``QLearning.state_dict()``. The controller is the recorded QLearning with this table, and it
    no longer learns.
    """

    kind = "q-table"
    written = _BY_FIT
    fields: ClassVar[_Fields] = {
        "bins.json": ("bins", "costs", "means", "steps"),
        "q.safetensors": ("q", "visits"),
    }
    learned = family = "controller"
    made_by = "specexp.controllers.q_learning.QLearning"
    argument = "table"
    start: ClassVar[Mapping[str, Any]] = _FROZEN | _PRELOADED

    @override
    def init_args(self, recorded: dict[str, Any] | None) -> dict[str, Any]:
        if recorded is not None:
            return recorded
        bins = self.value["bins"]
        given = {name: bins[name] for name in ("cost_bins", "confidence_bins")}
        return {**given, "signals": list(bins["signal_bins"])}


class AcceptanceHeadArtifact(LearnedArtifact):
    """``head.safetensors``: the arrays ``weights``, ``squares`` and ``recent`` of
    ``SpecDecPlusPlus.state_dict()``.

    The value maps these names to the arrays. The controller is the recorded one, or one with default arguments, and it
    no longer learns.
    """

    kind = "acceptance-head"
    written = _BY_FIT
    fields: ClassVar[_Fields] = {"head.safetensors": ("recent", "squares", "weights")}
    learned = family = "controller"
    made_by = "specexp.controllers.spec_dec_plus_plus.SpecDecPlusPlus"
    argument = "head"
    start = _FROZEN


class SuffixCorpusArtifact(LearnedArtifact):
    """``corpus.safetensors``: the int32 arrays ``tokens`` and ``suffixes`` of a
    :class:`~specexp.drafters.suffix_index.SuffixArray`, which REST calls a data store.

    The value maps these names to the arrays. The drafter is the recorded suffix automaton, or one with default
    arguments, and drafts from this corpus.
    """

    kind = "suffix-corpus"
    written = _BY_FIT
    fields: ClassVar[_Fields] = {"corpus.safetensors": ("suffixes", "tokens")}
    family = "drafter"
    made_by = "specexp.drafters.suffix_automaton.SuffixAutomaton"
    argument = "corpus"


class DraftHeadArtifact(LearnedArtifact):
    """``head.safetensors``: the arrays of a small network that drafts from one target's hidden states;
    ``parts.json`` names the drafter that uses them.

    The value maps the arrays' names to the arrays.
    """

    kind = "draft-head"
    written = _BY_FIT
    fields: ClassVar[_Fields] = {"head.safetensors": None}
    required: ClassVar[Mapping[str, Any]] = {PARTS: WithDrafter}
    family = "drafter"
    argument = "head"

    @override
    def specs(self) -> dict[str, Spec]:
        drafter = self.recorded["drafter"]
        arguments = {**drafter.get("init_args", {}), "head": self.value}
        return {**self.recorded, "drafter": {**drafter, "init_args": arguments}}
