"""The best draft lengths in hindsight, for evaluation only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.core.tree import NodeKind

if TYPE_CHECKING:
    from specexp.core.contracts import Drafter, TreeBuilder, Verifier

_SEQUENCES_KEPT = 256


class Oracle(Controller):
    """Takes each step's draft length from a schedule that was computed from the finished output.

    No other controller of chains of the same draft model takes less time under the same costs. It cannot be deployed,
    since it needs the output beforehand. An arm of ``python -m specexp.run`` computes the schedule before it decodes a
    prompt, and does not measure that time. If a token differs from the expected one (in bfloat16, at a near tie), the
    schedule continues by position.

    Args:
        step_ms: cost of a target pass in milliseconds; if None, the run's latency profile is used.
        draft_pass_ms: cost of a draft pass in milliseconds; set together with ``step_ms``.

    Raises:
        ValueError: one of ``step_ms`` and ``draft_pass_ms`` is given without the other.
    """

    uses_seconds = False
    learns = False
    needs_foresight = True

    def __init__(
        self,
        max_depth: Annotated[int, Field(ge=0)] = 24,
        step_ms: Annotated[float, Field(gt=0)] | None = None,
        draft_pass_ms: Annotated[float, Field(ge=0)] | None = None,
    ) -> None:
        if (step_ms is None) != (draft_pass_ms is None):
            raise ValueError("Oracle: step_ms and draft_pass_ms must be given together: set both, or neither")
        self.max_depth = max_depth
        self.step_ms = step_ms
        self.draft_pass_ms = draft_pass_ms
        self._profile: LatencyProfile | None = None
        if step_ms is not None and draft_pass_ms is not None:
            self._profile = LatencyProfile("given to the Oracle", {1: step_ms}, {1: draft_pass_ms})
        self._schedules: dict[tuple[int, int | str], Mapping[int, int]] = {}

    @property
    def latency(self) -> LatencyProfile:
        """Costs of target and draft passes; raises ``ValueError`` if they are unknown."""
        if self._profile is None:
            raise ValueError(
                "Oracle needs the costs of passes: compose a latency profile, or give step_ms and draft_pass_ms"
            )
        return self._profile

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        if self.step_ms is None:
            self._profile = profile
            _ = self.latency  # raises if there is none

    @override
    def check_parts(
        self,
        drafter: Drafter | None,
        builder: TreeBuilder | None,
        verifier: Verifier | None,
    ) -> None:
        if drafter is None or drafter.inner or not drafter.runs_model or drafter.learns_from == "unknown":
            given = "plain decoding" if drafter is None else type(drafter).__name__
            raise ValueError(
                f"Oracle needs a DraftModel, since its best tokens depend on the text alone, got {given}: use another "
                "controller"
            )
        paths = None if builder is None else builder.rank_paths
        chain = paths is not None and not any(map(any, paths))
        if builder is None or not chain or builder.kind is not NodeKind.POINT_MASS:
            raise ValueError(
                f"Oracle needs a Chain of top-k candidates, got {type(builder).__name__}: use another controller"
            )
        if verifier is not None and verifier.sampling != "deterministic":
            raise ValueError(
                "Oracle needs an output that does not depend on the drafts, got "
                f"{type(verifier).__name__}: verify with Greedy or KeyedSampling"
            )

    def set_schedule(self, context: Context, depths: Mapping[int, int]) -> None:
        """Set a sequence's schedule: its draft length by number of committed tokens. A reset keeps the schedule."""
        key = context.seed, context.sequence
        self._schedules.pop(key, None)  # it becomes the newest
        if len(self._schedules) >= _SEQUENCES_KEPT:
            del self._schedules[next(iter(self._schedules))]
        self._schedules[key] = dict(depths)

    @override
    def plan(self, context: Context) -> Plan:
        depth = self._schedules.get((context.seed, context.sequence), {}).get(len(context))
        if depth is None:
            raise ValueError(
                f"Oracle has no schedule for sequence {context.sequence!r} after {len(context)} tokens: run it as an "
                "arm of specexp.run"
            )
        return Plan(max_depth=min(depth, self.max_depth))
