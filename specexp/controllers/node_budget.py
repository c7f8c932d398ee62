"""Draft sizes that depend on how many sequences are decoded together: a shared node budget, or given limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

_WINDOW, _OWN_WINDOW, _COST_WINDOW = 1000, 16, 1000  # effective numbers of remembered steps
_LEAST_STEPS = 8  # drafting steps before drafts are limited
_PROBE = 2  # nodes that a probe adds
_PROBE_EVERY = 32  # one pass in this many is a probe
_MARGIN = 0.15  # relative amount by which a node's value must exceed the value of the time it costs
_FEW = 8  # a lane's values change fast until it has this many drafts
_REFIT = 8  # passes after which costs and plans are recomputed
_SOON = 4  # passes after which plans are recomputed if a lane has few drafts
_KNEES = np.array([0, 4, 6, 8, 12, 16, 24, 32])
"""Row counts above which the cost of a pass may jump and the cost of each additional row may grow."""
_OFF = Plan(max_nodes=0, max_depth=0)


class _Lane:
    """A sequence's counts of accepted and drafted nodes, and the last pass in which it was decoded."""

    def __init__(self, step: int) -> None:
        self.sums = np.zeros((2, 0))
        self.step = step


class NodeBudget(Controller):
    """Assigns each node of the next target pass to the lane (a sequence decoded with others) where it is worth most.

    A node is worth its acceptance probability in its own lane, and costs the time to draft it and to process one more
    row. Nodes are added across all lanes, most probable first, to maximize the pass's tokens per second: (lanes + sum
    of values) / seconds. A lane with nothing to gain does not draft. Now and then, one lane probes a larger draft.
    Goodput rules (SmartSpec, https://arxiv.org/abs/2406.14066) give all lanes the same length instead.

    The value of a lane's nodes is learned from that lane, and from all lanes while it has few steps of its own. The
    time of a pass comes from the latency profile. Without one, it is fitted to measurements: a function of the number
    of rows, with jumps, plus a constant per lane and one for drafting. Until enough is known, one lane drafts with the
    builder's own budget in every other pass.

    Args:
        shared_steps: number of steps that the acceptance pooled over all lanes counts for in each lane's estimate. With
            a large number, all lanes draft the same length, as with a goodput rule.
        from_lanes: with fewer lanes, drafts are the builder's own.
    """

    sees_load = True
    state = "carry"

    def __init__(
        self,
        shared_steps: Annotated[float, Field(gt=0)] = 8.0,
        from_lanes: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        self.shared_steps = shared_steps
        self.from_lanes = from_lanes
        self._profile: LatencyProfile | None = None
        self.reset()

    @override
    def reset(self) -> None:
        self._sums = np.zeros((2, 0))  # [2, n]
        self._drafting = np.zeros(4)  # drafted nodes, draft passes, seconds of drafting, planned nodes
        # least squares: matrix and right-hand side
        self._costs = np.zeros((2 + 2 * _KNEES.size, 3 + 2 * _KNEES.size))
        self._weights: NDArray[np.float64] | None = None
        self._passes: list[tuple[int, int, float]] = []
        self._step = self._fitted = 0  # passes so far, and at the last fit
        self._observed = self._drafted = False  # since the last plan; the latter means to replan soon
        self._lanes: PerSequence[_Lane] = PerSequence()
        self._plans: dict[Context, Plan] = {}  # of the next pass, once computed

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile
        self._plans = {}

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self._profile is None:
            import scipy.optimize  # noqa: F401 - takes a second, too long for a step
        self._lanes[context] = _Lane(self._step)
        self._plans = {}

    @override
    def plan(self, context: Context) -> Plan:
        if context.lanes < self.from_lanes:
            return Plan()
        if self._observed:  # the first plan of a pass
            self._observed = False
            self._step += 1
            begins = self._step % _PROBE_EVERY == 0  # after a probe
            if self._probes or begins or self._step % (_SOON if self._drafted else _REFIT) == 0 or not self.knows:
                self._plans = {}
                self._drafted = False
        if context not in self._plans:
            recent = [one for one, lane in self._lanes.items() if lane.step >= self._step - 1 and one is not context]
            together = [*recent[: -context.lanes : -1], context]  # the latest ones; the others have ended
            self._plans = dict(zip(together, self._planned(together, context.lanes), strict=True))
        return self._plans[context]

    def _planned(self, together: Sequence[Context], lanes: int) -> list[Plan]:
        """Return the lanes' plans for the next pass."""
        turn = self._step // (_PROBE_EVERY if self.knows else 2) % len(together)
        if not self.knows:
            return [_OFF if number != turn or self._step % 2 else Plan() for number in range(len(together))]
        nodes = self.share(self._values([self._lanes.get(one) for one in together]), lanes)
        if self._probes:
            nodes[turn] += _PROBE
        return [Plan(max_nodes=number) if number else _OFF for number in nodes]

    @override
    def observe(self, outcome: Outcome) -> None:
        context, nodes, seconds = outcome.context, outcome.tree.num_nodes, outcome.seconds
        planned = self._plans.get(context, _OFF).max_nodes or nodes
        lane = self._lanes.get(context) or self._lanes.setdefault(context, _Lane(self._step))
        lane.step = self._step
        drafting = seconds.get("draft", 0.0) + seconds.get("build", 0.0)
        if nodes:
            hits = np.zeros(nodes)
            hits[[row - 1 for row in outcome.accepted]] = 1
            self._sums = _added(self._sums, hits, _WINDOW)
            lane.sums = _added(lane.sums, hits, _OWN_WINDOW)
            self._drafted |= bool(lane.sums[1, 0] < _FEW)
        if planned:
            counts = nodes, outcome.draft_passes, drafting, max(nodes, planned)
            self._drafting = (1 - 1 / _WINDOW) * self._drafting + counts
        whole = context.lanes * (sum(seconds.values()) - drafting)  # lanes have equal shares of a pass
        if not self._observed and whole > 0 and self._profile is None:
            self._passes.append((context.lanes, context.rows or nodes + 1, whole))
        self._observed = True

    @property
    def knows(self) -> bool:
        """True once acceptance and costs are known well enough to limit drafts."""
        measured = self._profile is not None or self._step >= 2 * _LEAST_STEPS
        return measured and bool(self._sums[1].max(initial=0) >= _LEAST_STEPS - 0.5)

    @property
    def _probes(self) -> bool:
        return self._step % _PROBE_EVERY == _PROBE_EVERY - 1

    def share(self, values: Sequence[NDArray[np.float64]] | NDArray[np.float64], lanes: int) -> list[int]:
        """Return the number of nodes for each sequence, given the values ``[n]`` of its nodes in descending order.

        All other ``lanes`` of the pass draft nothing. A node for which the drafter has no candidate costs nothing.
        """
        drafted, _, _, planned = self._drafting
        used = drafted / planned if planned else 1.0
        worth = used * np.concatenate(values) / (1 + _MARGIN)
        owners = np.repeat(np.arange(len(values)), [one.size for one in values])
        order = np.argsort(-worth, kind="stable")
        tokens = lanes + np.cumsum([0.0, *worth[order]])
        nodes = used * np.arange(tokens.size)
        # standard deviation of the node count for drafts of two nodes; costs may jump within it
        spread = np.sqrt(2 * (1 - used) * nodes)
        less, more = (self.seconds(lanes, np.maximum(nodes + by, 0)) for by in (-spread, spread))
        best = int((tokens / (less + more)).argmax())
        found: list[int] = np.bincount(owners[order[:best]], minlength=len(values)).tolist()
        return found

    def seconds(self, lanes: int, nodes: NDArray[Any]) -> NDArray[np.float64]:
        """Return how many seconds a step with this many lanes takes, for each mean total number of drafted nodes."""
        found: NDArray[np.float64]
        drafted, passes, drafting, _ = self._drafting
        profile = self._profile
        if profile is not None:
            each = passes / drafted * profile.draft_seconds(1) if passes else 0.0
            each += profile.node_ms / 1e3
            found = np.array([profile.lanes_seconds(rows, lanes) for rows in (lanes + nodes) / lanes]) + each * nodes
            return found
        if self._weights is None or self._step - self._fitted >= _REFIT:
            self._weights = self._fit()
            self._fitted = self._step
        found = np.maximum(self._terms(lanes, lanes + nodes) @ self._weights, 1e-6)
        found += drafting / max(drafted, 1.0) * nodes
        return found

    @staticmethod
    def _terms(lanes: int | NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return terms ``[n, t]`` for passes with these numbers of rows; their weighted sums are the seconds."""
        beyond = np.maximum(0, rows[:, None] - _KNEES)
        begun = np.column_stack([np.full(rows.size, lanes), rows > lanes])  # a pass with drafts may cost more
        return np.hstack([begun, beyond > 0, beyond]).astype(np.float64)

    def _fit(self) -> NDArray[np.float64]:
        """Fit non-negative weights ``[t]`` by least squares on the passes' relative errors, and return them."""
        from scipy.optimize import nnls

        self._add_passes()
        squares, products = self._costs[:, :-1], self._costs[:, -1]
        root = np.linalg.cholesky(squares + 1e-9 * (np.trace(squares) + 1e-9) * np.eye(products.size))
        weights: NDArray[np.float64] = nnls(root.T, np.linalg.solve(root, products))[0]
        return weights

    def _add_passes(self) -> None:
        """Add the passes since the last fit to the least-squares sums."""
        if self._passes:
            lanes, rows, seconds = np.array(self._passes).T
            terms = self._terms(lanes, rows) / seconds[:, None]  # [n, t]
            self._costs *= (1 - 1 / _COST_WINDOW) ** seconds.size
            self._costs += terms.T @ np.column_stack([terms, np.ones(seconds.size)])
            self._passes = []

    def _values(self, lanes: Sequence[_Lane | None]) -> NDArray[np.float64]:
        """Return the acceptance probabilities ``[lanes, n]`` of the lanes' nodes, in the builder's order."""
        accepted, drafted = self._sums
        # all lanes at once, since planning adds to the time of a step
        sums = np.zeros((2, len(lanes), drafted.size))
        for number, lane in enumerate(lanes):
            if lane is not None:
                sums[:, number, : lane.sums.shape[1]] = lane.sums
        hits, tries = sums
        values = hits + self.shared_steps * (accepted / np.maximum(drafted, 1e-9))
        values /= tries + self.shared_steps
        return np.minimum.accumulate(values, axis=1)

    @override
    def watched(self) -> dict[str, float]:
        lanes = [one for one in (1, 4, 16) if self.knows]
        return {f"nodes_at_{one}_lanes": sum(self.share(self._values([None] * one), one)) / one for one in lanes}

    @override
    def state_dict(self) -> dict[str, Any]:
        self._add_passes()
        own = {"sums": self._sums.copy(), "drafting": self._drafting.copy(), "costs": self._costs.copy()}
        return own | {"passes": self._step + self._observed}  # the next plan begins another pass

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_entries(state, ("sums", "drafting", "costs", "passes"))
        sums, costs = (np.array(state[name], dtype=np.float64) for name in ("sums", "costs"))
        if sums.ndim != 2 or sums.shape[0] != 2:
            raise ValueError(f"the state of NodeBudget must have sums [2, n], got {list(sums.shape)}")
        if costs.shape != self._costs.shape:
            shapes = f"costs {list(self._costs.shape)}, got {list(costs.shape)}"
            raise ValueError(f"the state of NodeBudget must have {shapes}")
        passes = int(state["passes"])
        drafting = np.array(state["drafting"], dtype=np.float64)
        self._sums = sums
        self._costs = costs
        self._step = passes
        self._drafting = drafting
        self._weights = None
        self._passes = []
        self._plans = {}


def _added(sums: NDArray[np.float64], hits: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the decayed sums ``[2, n]`` plus a draft's accepted and drafted nodes. A larger draft increases ``n``."""
    if hits.size > sums.shape[1]:
        sums = np.pad(sums, ((0, 0), (0, hits.size - sums.shape[1])))
    sums[:, : hits.size] *= 1 - 1 / window
    sums[:, : hits.size] += (hits, np.ones(hits.size))
    return sums


class DraftLengths(Controller):
    """Limits the number of draft nodes according to the number of lanes.

    Args:
        nodes: maximum number of draft nodes, keyed by the smallest number of lanes it applies to, starting with 1. With
            0, nothing is drafted; None keeps the builder's budget.

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
