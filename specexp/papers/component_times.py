"""Wall-clock of single operations: passes, roll-back, phrase cache, graft, controller (Post-use & Pre-cut, table 9)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report
from specexp.builders import Graft
from specexp.builders.graft import grafted
from specexp.controllers import Fixed, Oracle
from specexp.core.parts import Controller, Drafter, DraftState, Request
from specexp.core.tree import TokenTree
from specexp.drafters import PhraseCache

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.phases import Breakdown
    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Cell, Table
    from specexp.core.context import Context
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts

Milliseconds = Annotated[float, Field(gt=0)]
Answer = TypeVar("Answer")

CACHE, GRAFT, INSERTION = "cache look-up", "graft", "cache insertion"
DECISION, LEARNING = "controller decision", "controller learning"
OPERATIONS = (CACHE, GRAFT, INSERTION, DECISION, LEARNING)
"""What is timed on copies of the parts; what is timed by the run is in its records."""


@dataclass(frozen=True)
class PublishedTimes:
    """A row of a paper's table, not run here.

    Attributes:
        method: what was measured, and on what.
        draft_ms: of a draft pass.
        target_ms: of a target pass.
        cache_ms: of fetching and verifying phrases, a step.
        roll_back_ms: a step.
        controller_ms: a step.
    """

    method: str
    draft_ms: Milliseconds | None = None
    target_ms: Milliseconds | None = None
    cache_ms: Milliseconds | None = None
    roll_back_ms: Milliseconds | None = None
    controller_ms: Milliseconds | None = None


class ComponentTimes(Analysis):
    """Milliseconds of a draft pass, of a target pass and of roll-back, from the run's phases; and of cache look-up,
    graft, cache insertion and controller, which no phase tells apart.

    Those are timed on copies that live through the same steps: a phrase cache without a drafter that is asked for the
    phrases of the tree's anchors and learns from the outcome, and a copy of the controller that plans, decides once a
    draft pass and learns. They are measured, also where the run's seconds are modelled, and have no figure in arms
    without such parts.

    Args:
        published: rows of a paper's table to show beside it.
    """

    name: ClassVar[str] = "component_times"
    needs_models: ClassVar[bool] = True

    def __init__(self, published: list[PublishedTimes] | None = None) -> None:
        self.published = published or []
        self._copies: dict[str, _Copies] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Copy the parts, and forget the times."""
        self._copies = {arm: _Copies.of(strategy) for arm, strategy in drafting(arms).items()}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Time the copies on this step."""
        if arm in self._copies:
            self._copies[arm].step(outcome)

    def milliseconds(self, arm: str) -> dict[str, NDArray[np.float64]]:
        """``[steps]`` of every operation of :data:`OPERATIONS` that the arm has parts for."""
        return {
            operation: 1e3 * np.array(seconds)
            for operation, seconds in self._copies[arm].seconds.items()
            if seconds
        }

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if anything was decoded."""
        from specexp.bench.phases import breakdown
        from specexp.bench.statistics import arm_names

        parts = [part for arm in arm_names(records) if (part := breakdown(records, arm)) is not None]
        times = {part.arm: self._times(part) for part in parts}
        table = self._table(parts, times)
        return Report({self.name: table}, {self.name: self._draw(parts, times)} if times else {})

    def _times(self, part: "Breakdown") -> "dict[str, float | None]":
        """Milliseconds by column."""
        phases = {phase: 1e3 * share * part.step_seconds for phase, share in part.shares.items()}
        own = self.milliseconds(part.arm) if part.arm in self._copies else {}
        medians = {
            operation: float(np.median(own[operation])) for operation in OPERATIONS if operation in own
        }
        measured = not _modelled(part)
        return {
            "draft forward": phases.get("draft", 0.0) / part.draft_passes if part.draft_passes else None,
            "target forward": phases.get("target"),
            **{operation: medians.get(operation) for operation in (CACHE, GRAFT, INSERTION)},
            "roll back": phases.get("commit") if measured else None,
            **{operation: medians.get(operation) for operation in (DECISION, LEARNING)},
        }

    def _table(
        self, parts: "Sequence[Breakdown]", times: "Mapping[str, Mapping[str, float | None]]"
    ) -> "Table":
        from specexp.bench import clock
        from specexp.bench.table import Column, Table

        clocks = {part.clock for part in parts}
        shared = clocks.pop() if len(clocks) == 1 else "measured"
        word = clock.word(shared)
        table = Table(
            clock.title("Milliseconds of single operations", shared),
            [
                Column("arm"),
                Column("draft passes/step", 1),
                Column(f"{word}draft forward", 2, " ms"),
                Column(f"{word}target forward", 2, " ms"),
                Column(CACHE, 3, " ms"),
                Column(GRAFT, 3, " ms"),
                Column(INSERTION, 3, " ms"),
                Column("roll back", 3, " ms"),
                Column(DECISION, 3, " ms"),
                Column(LEARNING, 3, " ms"),
                Column(f"{word}step", 2, " ms"),
                Column(f"cache, graft and controller of a {word}step", 2, "%"),
            ],
            notes=[
                "Forward: of one pass, the ranking of a draft pass's answer and phrases riding in it included; mean of "
                "the run. Roll back: keeping the accepted rows, of a step. The others: of a step, median, measured on "
                "copies of the parts; a decision is the plan and one answer a draft pass.",
            ],
        )
        for part in parts:
            own = times[part.arm]
            extra = [own[operation] for operation in OPERATIONS]
            spent = sum(ms for ms in extra if ms is not None) if any(extra) else None
            step = 1e3 * part.step_seconds
            label = f"{part.arm} (modelled)" if _modelled(part) and not word else part.arm
            share = None if spent is None else spent / step
            table.rows.append([label, part.draft_passes, *own.values(), step, share])
        for row in self.published:
            cells: list[Cell] = [f"{row.method} (not run here)", None, row.draft_ms, row.target_ms]
            cells += [row.cache_ms, None, None, row.roll_back_ms, row.controller_ms, None, None, None]
            table.rows.append(cells)
        if self.published:
            table.notes.append("Not run here: figures as published by the paper, on its models and device.")
        return table

    def _draw(
        self, parts: "Sequence[Breakdown]", times: "Mapping[str, Mapping[str, float | None]]"
    ) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import CURVE_COLOURS, GREY, INK

        columns = [
            column for column in next(iter(times.values())) if any(own[column] for own in times.values())
        ]
        told = {part.arm: _modelled(part) for part in parts}
        figure = Figure(
            figsize=(8.5, 1.6 + 0.34 * len(columns) + 0.2 * len(times)), dpi=130, layout="constrained"
        )
        FigureCanvasAgg(figure)
        figure.suptitle("Milliseconds of single operations", fontsize=11, color=INK)
        axes = figure.subplots()
        for number, (arm, own) in enumerate(times.items()):
            shift = 0.5 * (number + 0.5) / len(times) - 0.25  # so that equal times are all seen
            given = [(own[column], place + shift) for place, column in enumerate(columns) if own[column]]
            colour = CURVE_COLOURS[number % len(CURVE_COLOURS)]
            label = f"{arm} (modelled passes)" if told[arm] else arm
            marker = "osD^v"[number // len(CURVE_COLOURS) % 5]
            axes.plot(*zip(*given, strict=True), marker, color=colour, ms=6, alpha=0.85, label=label)
        for row in self.published:
            known = {
                "draft forward": row.draft_ms,
                "target forward": row.target_ms,
                CACHE: row.cache_ms,
                "roll back": row.roll_back_ms,
                DECISION: row.controller_ms,
            }
            given = [(known[column], place) for place, column in enumerate(columns) if known.get(column)]
            if given:
                axes.plot(
                    *zip(*given, strict=True),
                    "o",
                    mfc="none",
                    color=GREY,
                    ms=8,
                    label=f"{row.method} (not run here)",
                )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_yticks(range(len(columns)), columns, fontsize=8)
        axes.invert_yaxis()
        axes.margins(y=0.1)
        axes.grid(axis="both", color="#e3e8ec", lw=0.7)
        axes.set_axisbelow(True)
        axes.set_xlabel("ms (forward: a pass; the others: a step)", fontsize=9)
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        return figure


@dataclass
class _Copies:
    """Parts of an arm that live through its steps outside the clock.

    Attributes:
        cache: without a drafter; None if the arm has none.
        graft: the arm's, if its builder is one.
        controller: a copy; None where it decides nothing itself.
        context: of the steps being seen.
        seconds: of every step, by operation.
    """

    cache: PhraseCache | None
    graft: Graft | None
    controller: Controller | None
    context: "Context | None" = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in OPERATIONS})

    @classmethod
    def of(cls, strategy: "Parts") -> "_Copies":
        """Copies of a strategy's parts as they are now."""
        assert strategy.drafter is not None
        cache = _phrase_cache(strategy.drafter)
        graft = strategy.builder if isinstance(strategy.builder, Graft) else None
        decides = not isinstance(strategy.controller, Fixed | Oracle)  # an oracle is told before a prompt
        return cls(
            None if cache is None else _alone(cache),
            graft,
            deepcopy(strategy.controller) if decides else None,
        )

    def step(self, outcome: "Outcome") -> None:
        """Do what the parts did in this step, with a clock beside it."""
        if outcome.context is not self.context:
            self.context = outcome.context
            for part in (self.cache, self.controller):
                if part is not None:
                    part.begin(outcome.context, None)
        if self.controller is not None:
            controller = self.controller
            self._timed(DECISION, lambda: _decide(controller, outcome))
            self._timed(LEARNING, lambda: controller.observe(outcome))
        if self.cache is not None:
            cache = self.cache
            if self.graft is not None:
                self._graft(cache, self.graft, outcome)
            unread = replace(
                outcome, _top=None
            )  # the first part that asks what the target said ranks its logits
            self._timed(INSERTION, lambda: cache.observe(unread))

    def _graft(self, cache: PhraseCache, graft: Graft, outcome: "Outcome") -> None:
        tree = _without_grafts(outcome.tree)
        anchors = (0, *tree.best_path())[: -graft.num_anchors - 1 : -1]
        request = Request(
            tree.tokens,
            tree.shape.parents,
            tree.shape.ranks,
            np.array(anchors, dtype=np.int64),
            graft.phrases_per_anchor,
            length=graft.length,
        )
        answer = self._timed(CACHE, lambda: cache.propose(outcome.context, request))
        phrases = [
            (anchor, phrase)
            for anchor, below in zip(anchors, answer.tokens.tolist(), strict=True)
            for phrase in below
        ]
        self._timed(GRAFT, lambda: grafted(tree, phrases, graft.max_nodes))

    def _timed(self, operation: str, run: Callable[[], Answer]) -> Answer:
        started = perf_counter()
        answer = run()
        self.seconds[operation].append(perf_counter() - started)
        return answer


def _modelled(part: "Breakdown") -> bool:
    from specexp.bench.record import MEASURED

    return part.clock != MEASURED


def _phrase_cache(drafter: Drafter) -> PhraseCache | None:
    """A drafter's phrase cache, or that of one it is made of."""
    if isinstance(drafter, PhraseCache):
        return drafter
    inner = getattr(drafter, "drafters", ())
    return next((found for part in inner if (found := _phrase_cache(part)) is not None), None)


def _alone(cache: PhraseCache) -> PhraseCache:
    """A phrase cache of the same size and content that drafts with nobody."""
    twin = PhraseCache(
        None,
        cache.phrase_length,
        cache.store.max_keys,
        cache.store.max_phrases,
        ride=0,
        initialisation=cache.initialisation,
        state="cold" if cache.state == "cold" else "carry",
    )
    twin.store = cache.store.copy()
    return twin


def _decide(controller: Controller, outcome: "Outcome") -> None:
    """A plan, and one decision before each draft pass of the step, or against the first."""
    plan = controller.plan(outcome.context)
    tree = outcome.tree
    path = tree.best_path()
    passes = outcome.draft_passes or int(plan.max_depth != 0)
    for number in range(passes):
        depth = number * len(path) // passes
        log_probs = [] if tree.log_probs is None else tree.log_probs[list(path[:depth])].tolist()
        state = DraftState(
            depth, depth, outcome.pass_tokens[:number], sum(log_probs), log_probs[-1] if log_probs else 0.0
        )
        controller.keep_drafting(outcome.context, state)


def _without_grafts(tree: TokenTree) -> TokenTree:
    """The tree as it was before phrases were hung onto it."""
    if tree.grafted is None:
        return tree
    return tree.select(~tree.grafted)
