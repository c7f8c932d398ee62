"""A tree threshold that adapts to the text, which DySpec leaves as an open question (Xiong et al. 2024, B.1)."""

from __future__ import annotations

from math import exp, log
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile, outcome_seconds
from specexp.core.outcome import Outcome

_LOWEST, _HIGHEST = 1e-6, 0.5
_RATE = 0.1  # fraction of the error by which each step moves the threshold's logarithm
_WINDOW = 200  # effective number of steps in a running mean
_SUMS = ("weight", "tokens", "seconds", "accepted", "value", "nodes", "squares", "products")


class ThresholdTracker(Controller):
    """Adapts the threshold of :class:`~specexp.builders.DySpecThreshold` after every step.

    A fixed threshold spends few nodes where the draft is confident and many where it is not. There are two aims:

    - ``budget``: a mean tree size of ``budget`` nodes. Each step moves the threshold's logarithm by a tenth of the
      relative error of its tree size, so unspent nodes are spent later. The builder's ``max_nodes`` remains the hard
      limit. Set it to at least twice the budget, so that large trees can spend the nodes that small trees saved.
    - ``goodput``: the most tokens per second. A node of value ``v`` adds ``rho * v`` accepted tokens and costs the time
      of one node. It pays off while ``v >= seconds per node * tokens per second / rho``. The threshold moves toward
      this bound (Dinkelbach's rule for a ratio). ``rho`` (accepted tokens per unit of value) and tokens per second are
      running means over about 200 steps, and the time of a node is fitted to these steps. Seconds come from the run's
      latency profile if there is one, and otherwise from the clock.

    Args:
        budget: mean number of nodes per step, for the aim ``budget``.
        initial: initial threshold; 1 / ``budget`` if None.
        state: ``carry`` keeps the threshold across prompts, ``cold`` resets it before every prompt.
    """

    plans_threshold = True

    def __init__(
        self,
        aim: Literal["budget", "goodput"] = "budget",
        budget: Annotated[int, Field(ge=1, le=4096)] = 64,
        initial: Annotated[float, Field(gt=0, le=1)] | None = None,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        self.aim = aim
        self.reads_answers = False
        self.uses_seconds = aim == "goodput"
        self.budget = budget
        self.initial = 1 / budget if initial is None else initial
        self.state = state
        self._profile: LatencyProfile | None = None
        self.reset()

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile

    @property
    def threshold(self) -> float:
        """The threshold for the next step."""
        return exp(self._log_threshold)

    @override
    def plan(self, context: Context) -> Plan:
        return Plan(threshold=self.threshold)

    @override
    def observe(self, outcome: Outcome) -> None:
        nodes = outcome.tree.num_nodes
        if nodes == 0:
            return
        if self.aim == "budget":
            # a proportional controller of log threshold: larger trees raise it
            self._move(_RATE * (nodes - self.budget) / self.budget)
        else:
            self._remember(outcome)
            wanted = self._paying_threshold()
            if wanted is not None:
                self._move(_RATE * (log(wanted) - self._log_threshold))

    @override
    def reset(self) -> None:
        self._log_threshold = log(self.initial)
        self._sums = dict.fromkeys(_SUMS, 0.0)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"log_threshold": self._log_threshold, **self._sums}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("log_threshold", *_SUMS))
        self._log_threshold = float(state["log_threshold"])
        self._sums = {name: float(state[name]) for name in _SUMS}

    def _move(self, by: float) -> None:
        self._log_threshold = min(max(self._log_threshold + by, log(_LOWEST)), log(_HIGHEST))

    def _remember(self, outcome: Outcome) -> None:
        nodes, values = outcome.tree.num_nodes, outcome.tree.values
        assert values is not None  # set by builders that take a threshold
        seconds = outcome_seconds(outcome, self._profile)
        keep, value = 1 - 1 / _WINDOW, float(values[1:].sum())
        tokens, accepted = len(outcome.new_token_ids), len(outcome.accepted)
        new = (1.0, tokens, seconds, accepted, value, nodes, nodes * nodes, nodes * seconds)
        for name, added in zip(_SUMS, new, strict=True):
            self._sums[name] = keep * self._sums[name] + added

    def _paying_threshold(self) -> float | None:
        """Return the lowest value at which another node pays off, or None while too little is known."""
        sums, node_seconds = self._sums, self._node_seconds()
        if sums["weight"] < 5 or sums["accepted"] <= 0 or sums["seconds"] <= 0 or node_seconds is None:
            return None
        rho = sums["accepted"] / sums["value"]
        # rho * v tokens for one node's time are worth as much as the mean rate: v = t_node * rate / rho
        return min(max(node_seconds * (sums["tokens"] / sums["seconds"]) / rho, _LOWEST), _HIGHEST)

    def _node_seconds(self) -> float | None:
        # the slope of the seconds over the tree size: covariance over variance
        weight, nodes, seconds = (self._sums[name] for name in ("weight", "nodes", "seconds"))
        spread = self._sums["squares"] / weight - (nodes / weight) ** 2 if weight else 0.0
        if spread < 1:  # trees of one size do not show the cost of a node
            return None
        slope = (self._sums["products"] / weight - nodes / weight * seconds / weight) / spread
        return slope if slope > 0 else None
