"""Draft sizes that depend on the sequences decoded together: one budget of nodes for all, or given lengths."""

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

_WINDOW, _OWN_WINDOW, _COST_WINDOW = 1000, 16, 200  # effective numbers of remembered steps
_PROBE = 2  # nodes that a probe adds
_OFF = Plan(max_nodes=0, max_depth=0)


class _Lane:
    """The accepted and drafted counts of a sequence by node, and the last step in which it was decoded."""

    def __init__(self, step: int) -> None:
        self.sums = np.zeros((2, 0))
        self.step = step


class NodeBudget(Controller):
    """Gives each node of the next target pass to the lane (sequence decoded together) where it is worth most.

    A node is worth its probability of acceptance in its own lane, and costs the seconds that one more row and its draft
    take. Nodes are added over all lanes, most probable first, as long as the tokens per second of the whole pass grow:
    (lanes + sum of values) / seconds. A lane without gain drafts nothing, and probes now and then. Goodput rules
    (SmartSpec, https://arxiv.org/abs/2406.14066) give all lanes the same length.

    The value of a lane's node is learned from the lane, and from all lanes as long as its own steps are few. Seconds of
    a pass follow from the latency profile. Without one they are measured: a line over the rows of passes, for each
    number of lanes. Until enough is known, the builder's own budget and plain decoding alternate.

    Args:
        shared_steps: weight, in steps, of the acceptance of all lanes in a lane's values. With a large weight all lanes
            draft the same length, as by a goodput rule.
        least_steps: number of drafting steps before drafts are limited.
        probe_every: one in this many steps of a lane drafts two nodes more.
        margin: least relative gain over plain decoding; with less, no lane drafts.
    """

    sees_load = True
    state = "carry"
    _sums: NDArray[np.float64]
    _drafting: NDArray[np.float64]
    _pass: NDArray[np.float64]
    _step: int

    def __init__(
        self,
        shared_steps: Annotated[float, Field(gt=0)] = 8.0,
        least_steps: Annotated[int, Field(ge=1)] = 8,
        probe_every: Annotated[int, Field(ge=2)] = 32,
        margin: Annotated[float, Field(ge=0)] = 0.02,
    ) -> None:
        self.shared_steps = shared_steps
        self.least_steps = least_steps
        self.probe_every = probe_every
        self.margin = margin
        self._profile: LatencyProfile | None = None
        self._budgets: dict[Context, int] | None = None  # nodes of the next step, once computed
        self.reset()

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile
        self._budgets = None

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        self._lanes[context] = _Lane(self._step)
        self._budgets = None

    @override
    def plan(self, context: Context) -> Plan:
        if not self.knows(context.lanes):
            return Plan() if self._profile is not None or context.steps % 2 == 0 else _OFF
        if self._budgets is None or context not in self._budgets:
            now = [
                one for one, lane in self._lanes.items() if lane.step >= self._step - 1 and one is not context
            ]
            together = [*now[: -context.lanes : -1], context]  # the latest ones; the others have ended
            values = [self._values(self._lanes.get(one)) for one in together]
            self._budgets = dict(zip(together, self.share(values), strict=True))
        nodes = self._budgets[context]
        if context.steps % self.probe_every == self.probe_every - 1:
            nodes += _PROBE
        return Plan(max_nodes=nodes) if nodes else _OFF

    @override
    def observe(self, outcome: Outcome) -> None:
        self._budgets = None
        context, nodes = outcome.context, outcome.tree.num_nodes
        lane = self._lanes.setdefault(context, _Lane(self._step))
        lane.step = self._step
        if nodes:
            hits = np.zeros(nodes)
            hits[[row - 1 for row in outcome.accepted]] = 1
            self._sums = _added(self._sums, hits, _WINDOW)
            lane.sums = _added(lane.sums, hits, _OWN_WINDOW)
        seconds = outcome.seconds
        drafting = seconds.get("draft", 0.0) + seconds.get("build", 0.0)
        if nodes:
            self._drafting = (1 - 1 / _WINDOW) * self._drafting + (nodes, outcome.draft_passes, drafting)
        # the whole step, once all of its lanes were observed
        self._pass += (1, nodes + 1, sum(seconds.values()) - drafting)
        if self._pass[0] >= context.lanes:
            self._add_cost(context.lanes, *self._pass[1:].tolist())
            self._pass = np.zeros(3)
            self._step += 1

    def knows(self, lanes: int) -> bool:
        """Return whether acceptance and costs are known well enough to limit drafts."""
        drafted = self._sums[1].max(initial=0) >= self.least_steps
        return bool(drafted and (self._profile is not None or self._costs[0][0] >= self.least_steps))

    def share(self, values: Sequence[NDArray[np.float64]]) -> list[int]:
        """Return the number of nodes of each lane, given the values ``[n]`` of each lane's nodes, which never rise."""
        lanes = len(values)
        worth = np.concatenate(values)
        owners = np.repeat(np.arange(lanes), [one.size for one in values])
        order = np.argsort(-worth, kind="stable")
        tokens = lanes + np.cumsum([0.0, *worth[order]])
        rates = tokens / self.seconds(lanes, np.arange(tokens.size))
        best = int(rates.argmax())
        if rates[best] < (1 + self.margin) * rates[0]:
            best = 0
        nodes: list[int] = np.bincount(owners[order[:best]], minlength=lanes).tolist()
        return nodes

    def seconds(self, lanes: int, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds of steps of so many lanes, which draft these numbers of nodes together."""
        found: NDArray[np.float64]
        drafted, passes, drafting = self._drafting
        profile = self._profile
        if profile is not None:
            each = passes / drafted * profile.draft_seconds(1) if passes else 0.0
            each += profile.node_ms / 1e3
            rows = (lanes + nodes) / lanes
            found = np.array([profile.lanes_seconds(one, lanes) for one in rows]) + each * nodes
            return found
        fixed, row = self._line(lanes)
        found = np.maximum(fixed + row * (lanes + nodes), 1e-6) + drafting / max(drafted, 1.0) * nodes
        return found

    def _values(self, lane: _Lane | None) -> NDArray[np.float64]:
        """Return the probability of acceptance of each node of a lane, in the order of the builder."""
        accepted, drafted = self._sums
        values: NDArray[np.float64] = accepted / np.maximum(drafted, 1e-9)
        if lane is not None and lane.sums.size:
            hits, tries = lane.sums
            own, known = self.shared_steps, slice(hits.size)
            values[known] = (hits + own * values[known]) / (tries + own)
        return np.minimum.accumulate(values)

    def _add_cost(self, lanes: int, rows: float, seconds: float) -> None:
        for key in (0, lanes):  # 0: all passes
            known = self._costs.setdefault(key, np.zeros(5))
            if known[0] >= self.least_steps:
                seconds = min(seconds, 3 * known[2] / known[0])  # a pause of the machine
            known *= 1 - 1 / _COST_WINDOW
            known += (1, rows, seconds, rows * rows, rows * seconds)

    def _line(self, lanes: int) -> tuple[float, float]:
        """Return the seconds of a pass without rows, and those of a row."""
        slope = 0.0
        for key in (0, lanes):
            known = self._costs.get(key, self._costs[0])
            rows, seconds, squares, products = known[1:] / known[0]
            # the slope over all passes counts as much as a variance of one row
            slope = max(0.0, (products - rows * seconds + slope) / (squares - rows * rows + 1))
        return seconds - slope * rows, slope

    @override
    def watched(self) -> dict[str, float]:
        lanes = [one for one in (1, 4, 16) if self.knows(one)]
        return {f"nodes_at_{one}_lanes": sum(self.share([self._values(None)] * one)) / one for one in lanes}

    @override
    def reset(self) -> None:
        self._sums = np.zeros((2, 0))  # [2, n]
        self._drafting = np.zeros(3)  # drafted nodes, draft passes, seconds of drafting
        # by number of lanes: passes, rows, seconds, rows^2, rows * seconds
        self._costs: dict[int, NDArray[np.float64]] = {0: np.zeros(5)}
        self._pass = np.zeros(3)  # lanes, rows and seconds observed in this step
        self._step = 0
        self._lanes: PerSequence[_Lane] = PerSequence()
        self._budgets = None

    @override
    def state_dict(self) -> dict[str, Any]:
        costs = {str(lanes): known.copy() for lanes, known in self._costs.items()}
        return {"sums": self._sums.copy(), "drafting": self._drafting.copy(), "costs": costs}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_entries(state, ("sums", "drafting", "costs"))
        sums = np.array(state["sums"], dtype=np.float64)
        if sums.ndim != 2 or sums.shape[0] != 2:
            raise ValueError(f"the state of NodeBudget must have sums [2, n], got {list(sums.shape)}")
        self._sums, self._drafting = sums, np.array(state["drafting"], dtype=np.float64)
        self._costs = {int(lanes): np.array(known, dtype=float) for lanes, known in state["costs"].items()}
        self._budgets = None


def _added(sums: NDArray[np.float64], hits: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return decayed sums ``[2, n]`` with a draft's accepted nodes added; ``n`` grows with the draft."""
    if hits.size > sums.shape[1]:
        sums = np.pad(sums, ((0, 0), (0, hits.size - sums.shape[1])))
    sums[:, : hits.size] *= 1 - 1 / window
    sums[:, : hits.size] += (hits, np.ones(hits.size))
    return sums


class DraftLengths(Controller):
    """Limits the nodes of a draft by the number of lanes.

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
