"""What QLearning learned: the value of CONTINUE and STOP in every state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, instantiate

if TYPE_CHECKING:
    from specexp.core.parts import Controller

Q = "q.safetensors"
BINS = "bins.json"
_FIELDS = ("bins", "costs", "means", "steps")


class QTableArtifact(Artifact):
    """``q.safetensors``: ``q`` (float64) and ``visits`` (int64), ``[states, 2]``; ``bins.json``: ``bins`` (edges and
    actions), ``steps`` learned, running ``means`` and measured ``costs``: all of ``QLearning.state_dict()``.

    Attributes:
        q: value of CONTINUE and STOP.
        visits: how often each was learned.
        bins: edges by name, and the names of the actions.
        steps: learned so far.
        means: running means.
        costs: as measured.
    """

    kind = "q-table"
    required = (Q, BINS)
    learned = "controller"
    made_by = ("QLearning", "specexp.controllers.QLearning", "specexp.controllers.q_learning.QLearning")

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of a candidate whose controller learned a table before it was measured."""
        learned = (attributes.get("learned") or {}).get("controller")
        if learned is None or (parts.get("controller") or {}).get("class_path") not in cls.made_by:
            return None
        return {**payloads_of_state(learned), PARTS: dict(parts)}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Both tensors must have a row for every state of the bins."""
        content, arrays = payloads[BINS], payloads[Q]
        where = self._where(BINS)
        if not isinstance(content, dict) or sorted(content) != sorted(_FIELDS):
            raise ArtifactError(f"{where} must be an object with {', '.join(_FIELDS)}")
        if set(arrays) != {"q", "visits"}:
            raise ArtifactError(
                f"{self._where(Q)} holds {sorted(arrays)}; tensors 'q' and 'visits' are expected"
            )
        from specexp.controllers.costs import Costs
        from specexp.controllers.q_table import QTable, same_bins

        try:
            bins = content["bins"]
            table = QTable(bins["cost_bins"], bins["confidence_bins"], bins["signal_bins"], 0.0)
            same_bins(table.bins(), bins, "the file")
            Costs(None, 4).load_state_dict(content["costs"])
            self.steps = int(content["steps"])
            self.means = {str(name): float(value) for name, value in content["means"].items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtifactError(
                f"{where}: not the bins of a Q-table ({type(error).__name__}: {error})"
            ) from error
        try:
            table.load(arrays["q"], arrays["visits"])
        except ValueError as error:
            raise ArtifactError(f"{self._where(Q)}: {error}") from error
        if not np.isfinite(arrays["q"]).all():
            raise ArtifactError(f"{self._where(Q)}: q holds values that are not finite")
        self.q: NDArray[np.float64] = arrays["q"]
        self.visits: NDArray[np.int64] = arrays["visits"]
        self.bins: dict[str, Any] = bins
        self.costs: dict[str, Any] = content["costs"]

    @property
    def value(self) -> dict[str, Any]:
        """``QLearning.state_dict()``."""
        return {name: getattr(self, name) for name in ("q", "visits", *_FIELDS)}

    @cached_property
    def controller(self) -> Controller:
        """Recorded QLearning with this table, frozen."""
        recorded = self.part_specs.get("controller") or {}
        known = (
            recorded.get("init_args", {}) if recorded.get("class_path") in self.made_by else self._own_bins()
        )
        arguments = {**known, "learn": False, "state": "preloaded", "table": str(self.folder)}
        spec = {"class_path": "specexp.controllers.QLearning", "init_args": arguments}
        controller: Controller = instantiate("controller", spec, self._where(PARTS))
        return controller

    def _own_bins(self) -> dict[str, Any]:
        edges = {name: self.bins[name] for name in ("cost_bins", "confidence_bins")}
        signal_bins = self.bins["signal_bins"]
        names = {
            "acceptance": "acceptance_bins",
            "cache_hits": "cache_hit_bins",
            "cost_slope": "cost_slope_bins",
        }
        return {
            **edges,
            "signals": list(signal_bins),
            **{names[name]: signal_bins[name] for name in signal_bins},
        }


def payloads_of_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The payloads that hold ``QLearning.state_dict()``."""
    arrays = {name: np.asarray(state[name]) for name in ("q", "visits")}
    return {Q: arrays, BINS: {name: state[name] for name in _FIELDS}}
