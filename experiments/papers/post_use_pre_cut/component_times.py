"""Wall-clock of single operations: passes, roll-back, phrase cache, graft, controller (Post-use & Pre-cut, table 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from time import perf_counter
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, Row, add_rows, check_rows, report_of, table_of
from specexp.bench import clock
from specexp.bench.analysis import grafted_rows
from specexp.bench.publish import Report
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import Breakdown, arm_names, breakdown
from specexp.bench.table import Table
from specexp.core.context import Context
from specexp.core.contracts import Controller, TreeBuilder
from specexp.core.dialogue import DraftState, Plan
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.drafters.phrase_cache import PhraseCache

Answer = TypeVar("Answer")
Times = Mapping[str, Mapping[str, float | None]]
"""Milliseconds by arm and operation."""

DRAFT, TARGET, ROLL_BACK = "draft forward", "target forward", "roll back"
CACHE, GRAFT, INSERTION = "cache look-up", "graft", "cache insertion"
DECISION, LEARNING = "controller decision", "controller learning"
OPERATIONS = (CACHE, GRAFT, INSERTION, DECISION, LEARNING)
"""Timed on copies of the parts; the others are in the run's records."""
ORDER = (DRAFT, TARGET, CACHE, GRAFT, INSERTION, ROLL_BACK, DECISION, LEARNING)
PUBLISHED = {
    "draft_ms": DRAFT,
    "target_ms": TARGET,
    "cache_ms": CACHE,
    "roll_back_ms": ROLL_BACK,
    "controller_ms": DECISION,
}


class Copies:
    """Copies of an arm's parts that do the same steps outside the clock of the run.

    Attributes:
        cache: The phrase cache without its inner drafter; None if there is none.
        controller: None where the controller decides nothing itself.
        seconds: Seconds of every step, by operation.
    """

    def __init__(self, parts: Parts) -> None:
        decides = not (parts.controller.same_plan or parts.controller.needs_foresight)
        drafters = () if parts.drafter is None else (parts.drafter, *parts.drafter.inner)
        caches = [one.without_drafter() for one in drafters if isinstance(one, PhraseCache)]
        self.cache = caches[0] if caches else None
        self.builder = parts.builder
        self.controller = deepcopy(parts.controller) if decides else None
        self.context: Context | None = None
        self.seconds: dict[str, list[float]] = {name: [] for name in OPERATIONS}

    def step(self, outcome: Outcome) -> None:
        """Do and time the operations of a step."""
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
                self._graft(self.builder, outcome)
            unread = replace(outcome, top=None)  # the first reader of ``top`` ranks the logits
            self._timed(INSERTION, lambda: cache.observe(unread))

    def _graft(self, builder: TreeBuilder, outcome: Outcome) -> None:
        extension = builder.extend(outcome.tree.select(~grafted_rows(outcome.tree)), Plan())
        request, cache = next(extension, None), self.cache
        if request is not None and cache is not None:
            answer = self._timed(CACHE, lambda: cache.propose(outcome.context, request))
            self._timed(GRAFT, lambda: _finish(lambda: extension.send(answer)))

    def _timed(self, operation: str, run: Callable[[], Answer]) -> Answer:
        started = perf_counter()
        answer = run()
        self.seconds[operation].append(perf_counter() - started)
        return answer


def _finish(send: Callable[[], object]) -> None:
    """Run a generator to its end."""
    try:
        send()
    except StopIteration:
        return


def _decide(controller: Controller, outcome: Outcome) -> None:
    """Make a plan, and one decision before each draft pass of the step, or against the first."""
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


class ComponentTimes(DraftingAnalysis[Copies]):
    """Milliseconds of a draft pass, a target pass and roll-back, from the run's phases, and of cache look-up, graft,
    cache insertion and controller, which no phase separates.

    The latter are timed on copies of the parts that do the same steps. They are measured even where the run's seconds
    are modelled, and empty in arms without such parts.

    Args:
        published: Rows of a paper's table: ``method``, and any of ``draft_ms``, ``target_ms`` (of a pass),
            ``cache_ms``, ``roll_back_ms`` and ``controller_ms`` (of a step).
    """

    name: ClassVar[str] = "component_times"
    needs_models: ClassVar[bool] = True

    def __init__(self, published: list[Row] | None = None) -> None:
        super().__init__(Copies)
        self.published = check_rows(published, PUBLISHED)

    @override
    def watch(self, arm: str, state: Copies, outcome: Outcome) -> None:
        state.step(outcome)

    def milliseconds(self, arm: str) -> dict[str, NDArray[np.float64]]:
        """``[steps]`` of every operation of :data:`OPERATIONS` that the arm has parts for."""
        seconds = self.states[arm].seconds if arm in self.states else {}
        return {operation: 1e3 * np.array(taken) for operation, taken in seconds.items() if taken}

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        parts = [part for arm in arm_names(records) if (part := breakdown(records, arm)) is not None]
        times = {part.arm: self._times(part) for part in parts}
        return report_of(self, self._table(parts, times))

    def _times(self, part: Breakdown) -> dict[str, float | None]:
        """Milliseconds by operation, in the table's order."""
        phases = {phase: 1e3 * share * part.step_seconds for phase, share in part.shares.items()}
        found: dict[str, float | None] = {**dict.fromkeys(ORDER), TARGET: phases.get("target")}
        if part.draft_passes:
            found[DRAFT] = phases.get("draft", 0.0) / part.draft_passes
        if part.clock == MEASURED:
            found[ROLL_BACK] = phases.get("commit")
        return found | {name: float(np.median(own)) for name, own in self.milliseconds(part.arm).items()}

    def _table(self, parts: Sequence[Breakdown], times: Times) -> Table:
        clocks = {part.clock for part in parts}
        shared = clocks.pop() if len(clocks) == 1 else MEASURED
        word = clock.adjective(shared)
        names = {operation: operation for operation in ORDER}
        names |= {DRAFT: f"{word}{DRAFT}", TARGET: f"{word}{TARGET}"}
        heads = [
            f"{name}:.{2 if operation in (DRAFT, TARGET) else 3} ms" for operation, name in names.items()
        ]
        table = table_of(
            clock.titled("Milliseconds of single operations", shared),
            f"arm | draft passes/step:.1 | {' | '.join(heads)} | {word}step:.2 ms"
            f" | cache, graft and controller of a {word}step:.2%",
            "Forward: of one pass, the ranking of a draft pass's answer and phrases riding in it included; mean of "
            "the run. Roll back: keeping the accepted rows, of a step. The others: of a step, median, measured on "
            "copies of the parts; a decision is the plan and one answer a draft pass.",
        )
        for part in parts:
            own, step = times[part.arm], 1e3 * part.step_seconds
            extra = [taken for operation in OPERATIONS if (taken := own[operation])]
            name = f"{part.arm} (modelled)" if part.clock != MEASURED and not word else part.arm
            share = sum(extra) / step if extra else None
            table.rows.append([name, part.draft_passes, *own.values(), step, share])
        add_rows(table, self.published, {key: names[operation] for key, operation in PUBLISHED.items()})
        return table
