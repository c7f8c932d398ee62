"""How much to draft by how many sequences are decoded together, learned while they are."""

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
    """Drafts as many nodes as give most tokens a second at the present number of lanes; none where nothing pays.

    Of ``b`` lanes that draft ``n`` nodes each a step gives ``b (1 + a[n])`` tokens in ``T(b, n) + b D[n]`` seconds: the
    target pass and what is beside it by the latency profile, ``a[n]`` and ``D[n]`` learned. A step that drafted ``m``
    nodes tells ``a[n]`` of every ``n`` up to ``m``: how many of its accepted nodes are among the first ``n``, since a
    smaller draft is the beginning of a larger one. Its draft passes are counted down to the depth of node ``n``. Until
    enough steps are known, and every so often later, the builder's own budget is drafted.

    Draft passes are taken to be made lane by lane: of a draft model that drafts for all lanes in one pass a level the
    cost is overstated, so that less is drafted than pays, never more. Without a latency profile it changes nothing.

    Args:
        explore: every how many steps of a sequence the builder's own budget is drafted.
        least_steps: steps to know before anything is left out.
        window: steps it remembers: older ones fade out.
        state: ``carry`` keeps what was learned from sequence to sequence, ``cold`` starts each anew.
    """

    sees_load = True

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
        self._make_room(nodes + 1)
        first = np.arange(nodes + 1)
        rows, depths = np.asarray(outcome.accepted, dtype=np.int64), outcome.tree.shape.depths
        passes = np.cumsum([0.0, *(self._profile.draft_seconds(fed) for fed in outcome.pass_tokens)])
        taken = np.minimum(np.maximum.accumulate(depths), passes.size - 1)
        fading = 1 - 1 / self.window
        for known, seen in (
            (self._accepted, (rows[:, np.newaxis] <= first).sum(axis=0)),
            (self._drafting, passes[taken]),
            (self._steps, 1.0),
        ):
            known[: nodes + 1] = fading * known[: nodes + 1] + seen
        self._best.clear()

    def nodes(self, lanes: int) -> int | None:
        """Most nodes of a draft that pay at so many lanes; None while too little is known."""
        if self._profile is None or self._steps.size < 2 or self._steps[1:].max() < self.least_steps:
            return None
        if lanes not in self._best:
            known = np.flatnonzero(self._steps >= min(self.least_steps, self._steps.max()))
            self._best[lanes] = max(
                (0, *known.tolist()), key=lambda count: (self.tokens_a_second(count, lanes), -count)
            )
        return self._best[lanes]

    def table(self, most_lanes: int) -> dict[int, int | None]:
        """What :class:`DraftLengths` takes: nodes by the number of lanes from which on they pay, up to so many."""
        found: dict[int, int | None] = {}
        for lanes in range(1, most_lanes + 1):
            nodes = self.nodes(lanes)
            if not found or nodes != found[max(found)]:
                found[lanes] = nodes
        return found

    def tokens_a_second(self, nodes: int, lanes: int) -> float:
        """Of so many lanes that draft so many nodes each, by what is known of the steps so far."""
        assert self._profile is not None
        steps = self._steps[nodes] if nodes else 1.0
        accepted, drafting = (
            (self._accepted[nodes] / steps, self._drafting[nodes] / steps) if nodes else (0.0, 0.0)
        )
        beside = self._profile.beside_seconds(1 + nodes, int(drafting > 0), 1 + accepted)
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
        self._accepted, self._drafting, self._steps = (np.zeros(1) for _ in _STATE)
        self._best = {}

    @override
    def state_dict(self) -> dict[str, Any]:
        values = (self._accepted, self._drafting, self._steps)
        return {name: value.copy() for name, value in zip(_STATE, values, strict=True)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_entries(state, _STATE)
        arrays: list[NDArray[np.float64]] = [np.array(state[name], dtype=np.float64) for name in _STATE]
        if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1 or not arrays[0].size:
            raise ValueError(
                f"the state of LoadAware holds arrays of {[array.shape for array in arrays]}; one length"
            )
        self._accepted, self._drafting, self._steps = arrays
        self._best = {}

    def _make_room(self, size: int) -> None:
        if size > self._steps.size:
            more = size - self._steps.size
            self._accepted, self._drafting, self._steps = (
                np.concatenate((known, np.zeros(more)))
                for known in (self._accepted, self._drafting, self._steps)
            )


class DraftLengths(Controller):
    """So many nodes from so many lanes on; what :class:`LoadAware` found, or somebody knows.

    Args:
        nodes: most nodes of a draft by the number of lanes from which on that holds, 1 among them; 0 drafts nothing,
            None leaves the builder's own budget.

    Raises:
        ValueError: nothing is said for 1 lane.

    Example:
        >>> controller = DraftLengths({1: None, 4: 3, 8: 0})
    """

    uses_seconds = False
    learns = False
    sees_load = True

    def __init__(self, nodes: dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)] | None]) -> None:
        if 1 not in nodes:
            raise ValueError(
                f"DraftLengths was given nodes from {min(nodes, default='no')} lanes on: say how many there are for 1"
            )
        self.nodes = dict(sorted(nodes.items()))

    @override
    def plan(self, context: Context) -> Plan:
        most = next(self.nodes[lanes] for lanes in reversed(self.nodes) if lanes <= context.lanes)
        return Plan(max_nodes=most, max_depth=0 if most == 0 else None)
