"""What QLearning learned: the value of CONTINUE and STOP in every state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec, init_args_of

Q = "q.safetensors"
BINS = "bins.json"
_TENSORS = ("q", "visits")
_FIELDS = ("bins", "costs", "means", "steps")
_SIGNAL_BINS = {
    "acceptance": "acceptance_bins",
    "cache_hits": "cache_hit_bins",
    "cost_slope": "cost_slope_bins",
}


class QTableArtifact(Artifact):
    """``q.safetensors``: ``q`` (float64) and ``visits`` (int64), ``[states, 2]``; ``bins.json``: ``bins`` (edges and
    actions), ``steps`` learned, running ``means`` and measured ``costs``.

    Its value is all of it, ``QLearning.state_dict()``. Its controller is the recorded QLearning, frozen, with
    this table.
    """

    kind = "q-table"
    required = (Q, BINS)
    learned = "controller"
    made_by = "specexp.controllers.q_learning.QLearning"
    made_from: ClassVar[Mapping[str, str]] = {"controller": BINS}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        learned = cls.learned_in(parts, attributes)
        if learned is None:
            return None
        return {
            Q: {name: np.asarray(learned[name]) for name in _TENSORS},
            BINS: {name: learned[name] for name in _FIELDS},
            PARTS: dict(parts),
        }

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        content, arrays = payloads[BINS], payloads[Q]
        if not isinstance(content, dict) or sorted(content) != sorted(_FIELDS):
            raise ArtifactError(f"{self.where(BINS)} must be an object with {', '.join(_FIELDS)}")
        if set(arrays) != set(_TENSORS):
            raise ArtifactError(
                f"{self.where(Q)} holds {sorted(arrays)}; tensors 'q' and 'visits' are expected"
            )
        self.value: dict[str, Any] = {**arrays, **content}

    @override
    def specs(self) -> dict[str, Spec]:
        known = init_args_of(self.recorded.get("controller"), self.made_by)
        start = {"learn": False, "state": "preloaded", "table": self.value}
        arguments = {**(self._own_bins() if known is None else known), **start}
        return {**self.recorded, "controller": {"class_path": self.made_by, "init_args": arguments}}

    def _own_bins(self) -> dict[str, Any]:
        bins = self.value["bins"]
        signals = bins["signal_bins"]
        return {
            "cost_bins": bins["cost_bins"],
            "confidence_bins": bins["confidence_bins"],
            "signals": list(signals),
            **{argument: signals[name] for name, argument in _SIGNAL_BINS.items() if name in signals},
        }
