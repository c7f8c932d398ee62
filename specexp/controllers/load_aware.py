"""Draft sizes that depend on how many sequences are decoded together: learned while decoding, or given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

_STATE = ("accepted", "drafting", "steps")


class LoadAware(Controller):
    """Drafts as many nodes as give the most tokens per second at the current load, or none if no draft pays.

    The load is the number of lanes, that is, of sequences decoded together. A step of ``b`` lanes that draft ``n``
    nodes each gives ``b (1 + a[n])`` tokens in ``T(b, n) + b D[n]`` seconds. ``T`` follows from the latency profile.
    The accepted nodes ``a[n]`` and the draft seconds ``D[n]`` are learned. The first ``n`` nodes of a draft count as a
    smaller draft, so one step updates ``a[n]`` and ``D[n]`` for every ``n`` up to its own size. ``D[n]`` covers the
    draft passes down to the depth of node ``n``. Until enough steps are known, and at every ``explore``-th step later,
    the builder's own budget is drafted.

    Draft passes are counted separately for each lane. A draft model that serves all lanes in one pass per level costs
    less than that, so the drafts may be too small, but never too large. Without a latency profile this controller
    changes nothing.

    Args:
        explore: one in this many steps of a sequence drafts the builder's own budget.
        least_steps: number of observed steps before drafts are made smaller.
        window: effective number of remembered steps; older steps lose weight.
        state: ``carry`` keeps what was learned from sequence to sequence, ``cold`` starts each anew.
    """

    sees_load = True
    _sums: NDArray[np.float64]

    def __init__(
        self,
        explore: Annotated[int, Field(ge=2)] = 16,
        least_steps: Annotated[int, Field(ge=1)] = 8,
        window: Annotated[int, Field(ge=2)] = 1000,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        self.explore = explore
        self.least_steps = least_steps
        self.window = window
        self.state = state
        self._profile: LatencyProfile | None = None
        self.reset()

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile
        self._best: dict[int, int] = {}

    @override
    def plan(self, context: Context) -> Plan:
        if self._profile is None or context.steps % self.explore == self.explore - 1:
            return Plan()
        most = self.nodes(context.lanes)
        return Plan() if most is None else Plan(max_nodes=most, max_depth=0 if most == 0 else None)

    @override
    def observe(self, outcome: Outcome) -> None:
        nodes = outcome.tree.num_nodes
        if nodes == 0 or self._profile is None:
            return
        if nodes >= self._sums.shape[1]:
            self._sums = np.pad(self._sums, ((0, 0), (0, nodes + 1 - self._sums.shape[1])))
        first = np.arange(nodes + 1)  # the draft of the first n nodes, for every n
        rows, depths = np.asarray(outcome.accepted, dtype=np.int64), outcome.tree.shape.depths
        passes = np.cumsum([0.0, *(self._profile.draft_seconds(fed) for fed in outcome.pass_tokens)])
        taken = np.minimum(np.maximum.accumulate(depths), passes.size - 1)  # one draft pass per level
        accepted = (rows[:, np.newaxis] <= first).sum(axis=0)  # [nodes + 1]
        self._sums[:, : nodes + 1] *= 1 - 1 / self.window
        self._sums[:, : nodes + 1] += np.stack((accepted, passes[taken], np.ones(nodes + 1)))
        self._best.clear()

    def nodes(self, lanes: int) -> int | None:
        """Return the number of nodes with the most tokens per second for so many lanes; None while unknown."""
        steps = self._sums[2]
        if self._profile is None or steps.size < 2 or steps[1:].max() < self.least_steps:
            return None
        if lanes not in self._best:
            known = np.flatnonzero(steps >= min(self.least_steps, steps.max()))
            self._best[lanes] = max(
                (0, *known.tolist()), key=lambda count: (self.tokens_a_second(count, lanes), -count)
            )
        return self._best[lanes]

    def table(self, most_lanes: int) -> dict[int, int | None]:
        """Return the argument of :class:`DraftLengths`: the best numbers of nodes, by their fewest lanes."""
        found: dict[int, int | None] = {}
        for lanes in range(1, most_lanes + 1):
            nodes = self.nodes(lanes)
            if not found or nodes != found[max(found)]:
                found[lanes] = nodes
        return found

    def tokens_a_second(self, nodes: int, lanes: int) -> float:
        """Return the expected tokens per second of all lanes together, if each drafts this many nodes."""
        assert self._profile is not None
        accepted, drafting = self._sums[:2, nodes] / self._sums[2, nodes] if nodes else (0.0, 0.0)
        beside = self._profile.beside_seconds(1 + nodes, int(drafting > 0), 1 + accepted)
        # b (1 + a[n]) / (T(b, n) + b D[n])
        together = self._profile.lanes_seconds(1 + nodes, lanes)
        return float(lanes * (1 + accepted) / (together + lanes * (drafting + beside)))

    @override
    def watched(self) -> dict[str, float]:
        lanes = (1, 4, 16)
        return {
            f"nodes_at_{one}_lanes": float(most) for one in lanes if (most := self.nodes(one)) is not None
        }

    @override
    def reset(self) -> None:
        self._sums = np.zeros((len(_STATE), 1))  # [3, n + 1], by number of nodes
        self._best = {}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: value.copy() for name, value in zip(_STATE, self._sums, strict=True)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_entries(state, _STATE)
        arrays: list[NDArray[np.float64]] = [np.array(state[name], dtype=np.float64) for name in _STATE]
        if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1 or not arrays[0].size:
            raise ValueError(
                f"the state of LoadAware must have arrays [n] of equal length, got {[one.shape for one in arrays]}"
            )
        self._sums = np.stack(arrays)
        self._best = {}


class DraftLengths(Controller):
    """Limits the nodes of a draft by the number of lanes. The limits are set by hand or by :class:`LoadAware`.

    Args:
        nodes: most nodes of a draft, by the fewest lanes that the limit holds for, starting with 1. A limit of 0 drafts
            nothing, None keeps the builder's budget.

    Raises:
        ValueError: ``nodes`` has no entry for 1 lane.

    Example:
        >>> controller = DraftLengths({1: None, 4: 3, 8: 0})
    """

    uses_seconds = False
    learns = False
    sees_load = True

    def __init__(self, nodes: dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)] | None]) -> None:
        if 1 not in nodes:
            raise ValueError(f"DraftLengths: nodes must have an entry for 1 lane, got {nodes}")
        self.nodes = dict(sorted(nodes.items()))

    @override
    def plan(self, context: Context) -> Plan:
        most = next(self.nodes[lanes] for lanes in reversed(self.nodes) if lanes <= context.lanes)
        return Plan(max_nodes=most, max_depth=0 if most == 0 else None)
