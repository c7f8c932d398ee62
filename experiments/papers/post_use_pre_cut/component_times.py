"""Wall-clock of single operations: passes, roll-back, phrase cache, graft, controller (Post-use & Pre-cut, table 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import override

from experiments.papers.published import NOT_RUN, Row, add_rows, check_rows, label_of
from specexp.bench import clock
from specexp.bench.analysis import Analysis, drafting, grafted_rows
from specexp.bench.phases import Breakdown, breakdown
from specexp.bench.pictures import CURVE_COLOURS, GREY, legend_below, name_rows, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import arm_names
from specexp.bench.table import Table, columns
from specexp.core.context import Context
from specexp.core.controller import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.drafter import Drafter
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree_builder import TreeBuilder

Answer = TypeVar("Answer")
Times = Mapping[str, Mapping[str, float | None]]
"""Milliseconds by arm and operation."""

DRAFT, TARGET, ROLL_BACK = "draft forward", "target forward", "roll back"
CACHE, GRAFT, INSERTION = "cache look-up", "graft", "cache insertion"
DECISION, LEARNING = "controller decision", "controller learning"
OPERATIONS = (CACHE, GRAFT, INSERTION, DECISION, LEARNING)
"""What is timed on copies of the parts; what is timed by the run is in its records."""
PUBLISHED = {
    "draft_ms": DRAFT,
    "target_ms": TARGET,
    "cache_ms": CACHE,
    "roll_back_ms": ROLL_BACK,
    "controller_ms": DECISION,
}
"""Operation of each figure a paper's row may have."""


class ComponentTimes(Analysis):
    """Milliseconds of a draft pass, of a target pass and of roll-back, from the run's phases; and of cache look-up,
    graft, cache insertion and controller, which no phase tells apart.

    Those are timed on copies that live through the same steps: a phrase cache without a drafter that is asked for the
    phrases of the tree's anchors and learns from the outcome, and a copy of the controller that plans, decides once a
    draft pass and learns. They are measured, also where the run's seconds are modelled, and have no figure in arms
    without such parts.

    Args:
        published: Rows of a paper's table to show beside it: ``method``, and any of ``draft_ms``, ``target_ms`` (of a
            pass), ``cache_ms``, ``roll_back_ms`` and ``controller_ms`` (of a step).
    """

    name: ClassVar[str] = "component_times"
    needs_models: ClassVar[bool] = True

    def __init__(self, published: list[Row] | None = None) -> None:
        self.published = check_rows(published, PUBLISHED)
        self._copies: dict[str, _Copies] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._copies = {arm: _Copies.of(parts) for arm, parts in drafting(arms).items()}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm in self._copies:
            self._copies[arm].step(outcome)

    def milliseconds(self, arm: str) -> dict[str, NDArray[np.float64]]:
        """``[steps]`` of every operation of :data:`OPERATIONS` that the arm has parts for."""
        seconds = self._copies[arm].seconds
        return {operation: 1e3 * np.array(taken) for operation, taken in seconds.items() if taken}

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        parts = [part for arm in arm_names(records) if (part := breakdown(records, arm)) is not None]
        times = {part.arm: self._times(part) for part in parts}
        table = self._table(parts, times)
        return Report({self.name: table}, {self.name: self._draw(parts, times)} if times else {})

    def _times(self, part: Breakdown) -> dict[str, float | None]:
        """Milliseconds by operation, in the table's order."""
        phases = {phase: 1e3 * share * part.step_seconds for phase, share in part.shares.items()}
        own = self.milliseconds(part.arm) if part.arm in self._copies else {}
        found: dict[str, float | None] = dict.fromkeys((DRAFT, TARGET, CACHE, GRAFT, INSERTION, ROLL_BACK))
        found |= dict.fromkeys((DECISION, LEARNING))
        if part.draft_passes:
            found[DRAFT] = phases.get("draft", 0.0) / part.draft_passes
        found[TARGET] = phases.get("target")
        if part.clock == MEASURED:
            found[ROLL_BACK] = phases.get("commit")
        return found | {operation: float(np.median(times)) for operation, times in own.items()}

    def _table(self, parts: Sequence[Breakdown], times: Times) -> Table:
        clocks = {part.clock for part in parts}
        shared = clocks.pop() if len(clocks) == 1 else MEASURED
        word = clock.adjective(shared)
        table = Table(
            clock.titled("Milliseconds of single operations", shared),
            columns(
                f"arm | draft passes/step:.1 | {word}{DRAFT}:.2 ms | {word}{TARGET}:.2 ms | {CACHE}:.3 ms"
                f" | {GRAFT}:.3 ms | {INSERTION}:.3 ms | {ROLL_BACK}:.3 ms | {DECISION}:.3 ms | {LEARNING}:.3 ms"
                f" | {word}step:.2 ms | cache, graft and controller of a {word}step:.2%"
            ),
            notes=[
                "Forward: of one pass, the ranking of a draft pass's answer and phrases riding in it included; mean of "
                "the run. Roll back: keeping the accepted rows, of a step. The others: of a step, median, measured on "
                "copies of the parts; a decision is the plan and one answer a draft pass.",
            ],
        )
        for part in parts:
            own, step = times[part.arm], 1e3 * part.step_seconds
            extra = [taken for operation in OPERATIONS if (taken := own[operation])]
            label = f"{part.arm} (modelled)" if part.clock != MEASURED and not word else part.arm
            share = sum(extra) / step if extra else None
            table.rows.append([label, part.draft_passes, *own.values(), step, share])
        modelled = {DRAFT: f"{word}{DRAFT}", TARGET: f"{word}{TARGET}"}
        headings = {key: modelled.get(operation, operation) for key, operation in PUBLISHED.items()}
        add_rows(table, self.published, headings)
        if self.published:
            table.notes.append(NOT_RUN)
        return table

    def _draw(self, parts: Sequence[Breakdown], times: Times) -> Figure:
        first = next(iter(times.values()))
        shown = [operation for operation in first if any(own[operation] for own in times.values())]
        height = 1.6 + 0.34 * len(shown) + 0.2 * len(times)
        figure, [[axes]] = new_figure(8.5, height, "Milliseconds of single operations")
        for number, part in enumerate(parts):
            shift = 0.5 * (number + 0.5) / len(times) - 0.25  # so that equal times are all seen
            label = part.arm if part.clock == MEASURED else f"{part.arm} (modelled passes)"
            marker = "osD^v"[number // len(CURVE_COLOURS) % 5]
            colour = CURVE_COLOURS[number % len(CURVE_COLOURS)]
            points = [
                (own, place + shift) for place, name in enumerate(shown) if (own := times[part.arm][name])
            ]
            axes.plot(*zip(*points, strict=True), marker, color=colour, ms=6, alpha=0.85, label=label)
        hollow: dict[str, Any] = {"mfc": "none", "color": GREY, "ms": 8}
        for row in self.published:
            known = {PUBLISHED[key]: value for key, value in row.items() if key in PUBLISHED}
            theirs = [(known[name], place) for place, name in enumerate(shown) if name in known]
            if theirs:
                axes.plot(*zip(*theirs, strict=True), "o", label=label_of(row), **hollow)
        name_rows(axes, shown)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        rule(axes, "both")
        axes.set_xlabel("ms (forward: a pass; the others: a step)", fontsize=9)
        legend_below(figure, 2)
        return figure


@dataclass
class _Copies:
    """Parts of an arm that live through its steps outside the clock.

    Attributes:
        cache: Drafter without those it asks; None if the arm has none that says anything by itself.
        builder: Builder of the arm, which may hang phrases onto a tree.
        controller: A copy; None where it decides nothing itself.
        context: Text of the steps being seen.
        seconds: Seconds of every step, by operation.
    """

    cache: Drafter | None
    builder: TreeBuilder | None
    controller: Controller | None
    context: Context | None = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in OPERATIONS})

    @classmethod
    def of(cls, parts: Parts) -> _Copies:
        """Copies of an arm's parts as they are now."""
        assert parts.drafter is not None
        controller = parts.controller
        decides = not (controller.same_plan or controller.needs_foresight)
        return cls(parts.drafter.alone(), parts.builder, deepcopy(controller) if decides else None)

    def step(self, outcome: Outcome) -> None:
        """Do what the parts did in this step, with a clock beside it."""
        if outcome.context is not self.context:
            self.context = outcome.context
            for part in (self.cache, self.controller):
                if part is not None:
                    part.begin(outcome.context, None)
        if (controller := self.controller) is not None:
            self._timed(DECISION, lambda: _decide(controller, outcome))
            self._timed(LEARNING, lambda: controller.observe(outcome))
        if (cache := self.cache) is not None:
            if self.builder is not None:
                self._graft(cache, self.builder, outcome)
            # the first part that asks what the target said ranks its logits
            unread = replace(outcome, top=None)
            self._timed(INSERTION, lambda: cache.observe(unread))

    def _graft(self, cache: Drafter, builder: TreeBuilder, outcome: Outcome) -> None:
        extension = builder.extend(outcome.tree.select(~grafted_rows(outcome.tree)), Plan())
        request = next(extension, None)
        if request is not None:
            answer = self._timed(CACHE, lambda: cache.propose(outcome.context, request))
            self._timed(GRAFT, lambda: _finish(lambda: extension.send(answer)))

    def _timed(self, operation: str, run: Callable[[], Answer]) -> Answer:
        started = perf_counter()
        answer = run()
        self.seconds[operation].append(perf_counter() - started)
        return answer


def _finish(send: Callable[[], object]) -> None:
    """Let a generator come to its end."""
    try:
        send()
    except StopIteration:
        return


def _decide(controller: Controller, outcome: Outcome) -> None:
    """A plan, and one decision before each draft pass of the step, or against the first."""
    plan = controller.plan(outcome.context)
    tree = outcome.tree
    path = tree.best_path()
    passes = outcome.draft_passes or int(plan.max_depth != 0)
    for number in range(passes):
        depth = number * len(path) // passes
        log_probs = [] if tree.log_probs is None else tree.log_probs[list(path[:depth])].tolist()
        last = log_probs[-1] if log_probs else 0.0
        state = DraftState(depth, depth, outcome.pass_tokens[:number], sum(log_probs), last)
        controller.keep_drafting(outcome.context, state)
