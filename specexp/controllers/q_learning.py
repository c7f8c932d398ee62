"""Q-learning decides when to end a draft: CONTINUE or STOP before each draft pass (Post-use & Pre-cut, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Reference
from specexp.base.messages import type_and_line
from specexp.controllers.costs import Costs
from specexp.controllers.q_table import CONTINUE, STOP, Decision, DraftSummary, Episode, QTable, StepMeans
from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

Signal = Literal["acceptance", "cache_hits", "cost_slope"]
COST_BINS: list[float] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20]
CONFIDENCE_BINS: list[float] = [0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7]
SIGNAL_BINS: dict[Signal, list[float]] = {
    "acceptance": [0.4, 0.7],
    "cache_hits": [0.1, 0.4],
    "cost_slope": [0.9, 1.1],
}


class QLearning(Controller):
    """Chooses CONTINUE or STOP before each draft pass, using a table of learned values.

    The table's states are bins of (draft cost so far, product of the draft's confidences). After the target pass, the
    table learns from the episode's decisions in reverse order. STOP is terminal and gets the reward. CONTINUE gets
    reward 0 plus ``gamma`` times the value that follows. A *virtual trial* also rewards STOP at every point where
    drafting continued, based on the tokens and the cost that stopping there would have had.

    The defaults are ours. ``configs/post_use_pre_cut/published.yaml`` has the paper's value for every argument.

    With ``first_decision="before"`` (our variant), the table is consulted before every draft pass. The first decision
    comes at the start of a step, where STOP means plain decoding with reward 0. With ``after``, as published (algorithm
    1, lines 6 to 18), the table is consulted after every pass that generated a token. The first pass always runs, and
    drafting always continues after a pass that reused a phrase (lines 8 to 10).

    ``backup`` sets the value that follows CONTINUE. As published (``bootstrap``, eq. 5), it is the best value of the
    next state, and ``alpha`` is constant. But a state does not show whether the draft is already wrong, so wrong drafts
    get credit for the values of correct ones. With finer bins, drafts then become too long. ``return`` (our variant)
    uses the same episode's reward at the point where the table would have stopped, which virtual trials provide. The
    first visits to each value are averaged.

    ``exploration`` sets what is randomized. As published (``decision``, section 3.2), a share ``epsilon`` of the
    decisions is random, which stops nearly all drafts early. With ``step`` (our variant), a share ``epsilon`` of the
    steps explores. These steps draft to the end, and virtual trials give the value of STOP at each point. Without
    virtual trials, every decision in such a step is random.

    Rewards (drafting nothing gives 0):

    - ``output``: (accepted drafts + 1) / cost - 1, with the cost in plain steps. This is the gain over plain decoding.
    - ``useful``: (drafts matching the target, even beyond the first mismatch) / cost - 1, as published in section 5.2.
    - ``utilisation``: accepted drafts / draft length - 1, as published in algorithm 1, line 30.
    - ``goodput`` (our variant): accepted drafts + 1 - rate * cost, minus the same for a plain step (Dinkelbach's rule
      for a ratio). ``rate`` is the running mean of tokens per cost. This maximizes the speed of the whole output.
      ``output`` averages the speed of steps instead, so it ends confident drafts too early and uncertain ones too late.

    Grafted phrases are added after the last decision. A draft's reward therefore includes running means of their
    accepted tokens and of their rows in the target pass. These tokens count only if the draft was accepted down to the
    phrases' anchors.

    Args:
        signals: additional parts of the state, as running means over recent steps. ``acceptance``: accepted share of
            the drafted path. ``cache_hits``: share of steps in which a phrase helped (a pass gave several tokens, or a
            graft was accepted). ``cost_slope``: recent draft cost per token, relative to its long-term mean.
        cost_bins: bin edges for the number of draft passes so far.
        confidence_bins: bin edges for the product of confidences.
        alpha: learning rate.
        gamma: discount factor for each CONTINUE.
        epsilon: share of steps or decisions that explore during warm-up.
        epsilon_decay: factor applied to epsilon after each learned step once warm-up is over.
        warm_up: number of learned steps before epsilon decays.
        continue_bias: initial value of CONTINUE; STOP starts at 0.
        max_depth: depth at which every draft stops.
        first_decision: see above.
        exploration: see above.
        reward: one of the rewards above.
        unit: cost unit for ``useful``: a plain step (``target``), or, as published, a draft pass (``draft``).
        virtual_trials: ``warm-up`` uses them only during warm-up, as published; ``always`` uses them in all steps.
        backup: see above.
        learn: If False, freeze the table: no exploration, no updates; ``warm-up`` freezes it after warm-up.
        state: ``carry`` keeps what was learned across prompts, ``cold`` discards it before every prompt, ``preloaded``
            starts every prompt from ``table``.
        table: a :meth:`state_dict` to start from, required with ``preloaded`` and optional with ``carry``; in a
            configuration, the path to a ``q-table`` artifact.
        draft_cost: cost of a draft pass relative to a plain step. None uses the run's latency profile; if there is
            none, costs are measured once.
        calibrate: number of steps in that measurement.

    Raises:
        ValueError: bin edges do not increase, ``unit`` is invalid for ``reward``, or ``table`` does not match ``state``
            or the bins.

    Example:
        >>> QLearning(draft_cost=0.14).rewarded(accepted=3, useful=3, nodes=4, pass_tokens=(1, 1, 1, 1))
        1.564...
    """

    def __init__(
        self,
        signals: list[Signal] | None = None,
        cost_bins: list[Annotated[float, Field(gt=0)]] = COST_BINS,
        confidence_bins: list[Annotated[float, Field(gt=0, le=1)]] = CONFIDENCE_BINS,
        alpha: Annotated[float, Field(ge=0, le=1)] = 0.1,
        gamma: Annotated[float, Field(ge=0, le=1)] = 0.99,
        epsilon: Annotated[float, Field(ge=0, le=1)] = 0.5,
        epsilon_decay: Annotated[float, Field(gt=0, le=1)] = 0.98,
        epsilon_min: Annotated[float, Field(ge=0, le=1)] = 0.01,
        warm_up: Annotated[int, Field(ge=0)] = 200,
        continue_bias: Annotated[float, Field(ge=0)] = 0.01,
        max_depth: Annotated[int, Field(ge=1)] = 24,
        first_decision: Literal["before", "after"] = "before",
        exploration: Literal["step", "decision"] = "step",
        reward: Literal["output", "useful", "utilisation", "goodput"] = "output",
        unit: Literal["target", "draft"] = "target",
        virtual_trials: Literal["warm-up", "always"] = "always",
        backup: Literal["return", "bootstrap"] = "return",
        learn: bool | Literal["warm-up"] = True,
        state: Literal["carry", "cold", "preloaded"] = "carry",
        table: Annotated[Mapping[str, Any], Reference("q-table")] | None = None,
        draft_cost: Annotated[float, Field(gt=0)] | None = None,
        calibrate: Annotated[int, Field(ge=4)] = 40,
    ) -> None:
        if unit == "draft" and reward != "useful":
            raise ValueError(f"QLearning: reward must be 'useful' with unit 'draft', got {reward!r}")
        if (state == "preloaded" and table is None) or (state == "cold" and table is not None):
            raise ValueError(
                "QLearning: a table must be given with state 'preloaded' and must not be given with 'cold', got state "
                f"{state!r} {'without' if table is None else 'with'} a table"
            )
        self.alpha = alpha
        self.gamma = gamma
        self.initial_epsilon = epsilon
        self.epsilon_decay = epsilon_decay
        self.epsilon_min = epsilon_min
        self.warm_up = warm_up
        self.max_depth = max_depth
        self.first_decision = first_decision
        self.exploration = exploration
        self.reward = reward
        self.unit = unit
        self.reads_answers = reward == "useful"
        self.virtual_trials = virtual_trials
        self.backup = backup
        self.learn = learn
        self.learns = bool(learn)
        self.state = state
        self.signals = list(signals or ())
        signal_bins: dict[str, list[float]] = {name: SIGNAL_BINS[name] for name in self.signals}
        self.table = QTable(cost_bins, confidence_bins, signal_bins, continue_bias)
        self.costs = Costs(draft_cost, calibrate)
        self._initial = table
        self.reset()

    @property
    @override
    def uses_seconds(self) -> bool:  # type: ignore[override]
        return not self.costs.known  # seconds are measured until costs are known

    @property
    @override
    def exploring(self) -> float:  # type: ignore[override]
        """The current share of steps, or of decisions, that explore."""
        if not self._learning:
            return 0.0
        decayed = self.initial_epsilon * self.epsilon_decay ** max(self.steps - self.warm_up, 0)
        return max(min(self.epsilon_min, self.initial_epsilon), decayed)

    @override
    def watched(self) -> dict[str, float]:
        return {"epsilon": self.exploring, "q_change": self._means["change"]}

    @override
    def learned(self) -> str:
        visited = sum(any(visits) for visits in self.table.visits)
        return (
            f"{visited} of {self.table.rows} states were visited, epsilon is {self.exploring:.3g}, the learned gain of "
            f"drafting over plain decoding is {self.table.values[0][0]:+.3f}"
        )

    @override
    def plan(self, context: Context) -> Plan:
        if self._calibrating:
            return Plan(max_depth=0 if self.costs.wants_plain else None)
        episode = self._episodes[context] = self._starting(context)
        return Plan(max_depth=None if episode.points[0].action == CONTINUE else 0)

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        if state.depth >= self.max_depth:
            return False
        if self._calibrating:
            return True
        episode = self._episodes.get(context) or self._starting(context)
        passes = len(state.pass_tokens)
        if passes == 0 and state.depth == 0:
            return episode.points[0].action == CONTINUE
        reused = state.depth > episode.depth + 1
        episode.depth = state.depth
        if reused and self.first_decision == "after":
            return True  # algorithm 1, line 9: after a reuse, drafting continues without a decision
        row = self.table.row(episode.block, passes, exp(min(state.log_prob, 0.0)))
        action = self._decide(context, row, (passes, state.depth), episode.explores)
        if episode.points[-1].action == CONTINUE:
            episode.points.append(Decision(row, state.depth, state.nodes, state.pass_tokens, action))
        return action == CONTINUE

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self.costs.use_latency(profile)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.state != "carry" and not context.continued:
            self._start()

    @override
    def observe(self, outcome: Outcome) -> None:
        episode = self._episodes.pop(outcome.context, None)
        if self._calibrating:
            self.costs.observe(outcome)
            return
        block = self._block() if episode is None else episode.block
        points = [Decision(block, 0, 0, (), CONTINUE)] if episode is None else episode.points
        if outcome.tree.num_nodes == 0 and points[0].action == CONTINUE:
            return  # the last step of an output, or a drafter without an answer: nothing was decided
        drafted = DraftSummary(outcome)
        if self._learning:
            if drafted.nodes:
                self._means.remember_grafts(drafted)
            new_tokens = len(outcome.new_token_ids)
            cost = self.costs.step(outcome.tree.num_nodes + 1, outcome.pass_tokens, new_tokens)
            self._means.remember_step(new_tokens, cost)
            self._learn(points, drafted, block)
            self.steps += 1
        self._means.remember_signals(drafted, self.costs)

    @override
    def reset(self) -> None:
        self.costs.reset()
        self._episodes: PerSequence[Episode] = PerSequence()
        self._start()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            **self.table.state_dict(),
            "bins": self.table.bins(),
            "steps": self.steps,
            "means": self._means.state_dict(),
            "costs": self.costs.state_dict(),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._take(state)
        self._episodes.clear()

    def rewarded(self, accepted: float, useful: int, nodes: float, pass_tokens: tuple[int, ...]) -> float:
        """Return the reward for stopping with this draft, including the mean cost of grafts; 0 if nothing was drafted.

        Args:
            accepted: number of drafts that would have been accepted.
            useful: number of drafts that match the target.
        """
        graft_rows = self._means["graft_rows"]
        cost = self.costs.step(1 + round(nodes + graft_rows), pass_tokens, accepted + 1)
        if nodes == 0 and not pass_tokens and graft_rows < 0.5:
            return 0.0
        if self.reward == "useful":
            if self.unit == "draft":  # as published: useful tokens per cost in draft passes
                cost /= max(self.costs.draft((1,)), 1e-9)
            return useful / cost - 1
        if self.reward == "utilisation":
            return accepted / max(nodes, 1) - 1
        tokens = accepted + 1
        if self.reward == "output":
            return tokens / cost - 1
        # Dinkelbach: tokens - rate * cost, minus the same for a plain step (1 token at cost 1)
        return tokens - 1 - self._means.rate * (cost - 1)

    @property
    def _learning(self) -> bool:
        return bool(self.learn) and (self.learn != "warm-up" or self.steps < self.warm_up)

    @property
    def _virtual(self) -> bool:
        return self.virtual_trials == "always" or self.steps < self.warm_up

    @property
    def _calibrating(self) -> bool:
        return bool(self.learn) and not self.costs.known

    def _start(self) -> None:
        self.steps = 0
        self._means = StepMeans()
        self.table.clear()
        if self._initial is not None:
            self._take(self._initial)

    def _take(self, state: Mapping[str, Any]) -> None:
        self.check_entries(state, ("q", "visits", "bins", "steps", "means", "costs"))
        try:
            self.table.load(state)
            self.steps = int(state["steps"])
            self._means = StepMeans(state["means"])
            self.costs.load_state_dict(state["costs"])
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the state must be of a QLearning ({type_and_line(error)})") from error

    def _block(self) -> int:
        signals = self._means.signals
        return self.table.block([signals[name] for name in self.signals])

    def _starting(self, context: Context) -> Episode:
        explores = self.exploration == "step" and self._chance(context, ()) < self.exploring
        block = self._block()
        return Episode(block, explores, [Decision(block, 0, 0, (), self._decide(context, block, (0, 0), explores))])

    def _decide(self, context: Context, row: int, place: tuple[int, int], explores: bool) -> int:
        if place == (0, 0) and self.first_decision == "after":
            return CONTINUE
        continues = self._virtual
        if self.exploration == "decision":  # with probability epsilon an action at random (section 3.2)
            chance = self._chance(context, place)
            explores, continues = chance < self.exploring, chance < self.exploring / 2
        elif explores and not continues:
            continues = self._chance(context, place) < 0.5
        made, random = self.decisions
        self.decisions = made + 1, random + explores
        return self.table.best(row) if not explores else CONTINUE if continues else STOP

    @staticmethod
    def _chance(context: Context, place: tuple[int, ...]) -> float:
        return float(context.uniforms("explore", len(context) - 1, place, size=1)[0])

    def _learn(self, points: list[Decision], drafted: DraftSummary, block: int) -> None:
        virtual = self._virtual
        stopped = points[-1].action == STOP
        if not stopped:  # the builder had ended, or there was no room: STOP was the only action left
            row = self.table.row(block, len(drafted.pass_tokens), drafted.confidence)
            points = [*points, Decision(row, drafted.depth, drafted.nodes, drafted.pass_tokens, STOP)]
        # Q(last, STOP) takes the reward; backwards, Q(s, CONTINUE) moves toward gamma * V of the next state (eq. 5)
        *earlier, last = points
        following = self._reward(last, drafted)
        averaged = self.backup == "return"
        change = self.table.learn(last.row, STOP, following, self.alpha, averaged)
        if self.backup == "bootstrap":
            following = max(self.table.values[last.row]) if stopped else self.table.values[last.row][STOP]
        for point in reversed(earlier):
            change += self.table.learn(point.row, CONTINUE, self.gamma * following, self.alpha, averaged)
            following *= self.gamma
            if virtual:  # the value of STOP here, although drafting continued
                reward = self._reward(point, drafted)
                change += self.table.learn(point.row, STOP, reward, self.alpha, averaged)
                if self.table.best(point.row) == STOP:
                    following = reward  # this episode's return, had it followed the table from here on
            if self.backup == "bootstrap":
                following = max(self.table.values[point.row])
        self._means.remember_change(change)

    def _reward(self, point: Decision, drafted: DraftSummary) -> float:
        """Return the reward for stopping at a point in the episode; 0 for a plain step."""
        if point.row % self.table.block_size == 0:
            return 0.0
        accepted: float = min(drafted.accepted, point.depth)
        # the draft reached a phrase's anchor
        if drafted.accepted >= point.depth - self._means["graft_reach"]:
            accepted += self._means["graft_gain"]
        useful = drafted.useful_up_to(point.depth) if self.reads_answers else 0
        return self.rewarded(accepted, useful, point.nodes, point.pass_tokens)
