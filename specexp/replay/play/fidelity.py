"""The fidelity of a replay, derived from the properties that the composition's parts declare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.core.contracts import Drafter
from specexp.core.parts import Parts, parts_in
from specexp.core.tree import NodeKind, TreeShape
from specexp.drafters.ranking import Scoring
from specexp.replay.format.trie import RecordingError

if TYPE_CHECKING:
    from specexp.replay.format.recording import RecordingManifest


class Grade(StrEnum):
    """The grades of a replay's fidelity, best first."""

    EXACT = "exact"
    """Every count equals that of a live run."""
    IN_LAW = "exact in distribution"
    """Every count equals that of a live run with the same sampled output, since the output determines acceptance."""
    MODELLED = "modelled seconds decide"
    """A controller learns from timings, which are modelled in a replay and measured in a live run."""
    APPROXIMATE = "approximate"
    """Drafters learn from nodes that were only partly recorded, or do not declare what they learn from."""


@dataclass(frozen=True)
class Fidelity:
    """The worst grade of any part, and the reason for it as a clause (empty for ``EXACT``)."""

    grade: Grade
    why: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.grade.value} ({self.why})" if self.why else self.grade.value


def learns(drafter: Drafter | None) -> bool:
    """Return whether drafts depend on any target predictions other than the committed tokens."""
    return any(one.learns_from != "nothing" for one in parts_in(drafter))


def models_in(drafter: Drafter | None) -> list[Any]:
    """Return the drafters, among ``drafter`` and those nested in it, that run a draft model themselves.

    Each has a ``scoring`` and a ``source`` of recorded candidates (:mod:`specexp.drafters.draft_source`). Raises
    RecordingError if one has no scoring, since its model cannot be recorded.
    """
    found = [one for one in parts_in(drafter) if one.runs_model and not any(inner.runs_model for inner in one.inner)]
    for one in found:
        if one.scoring is None:
            raise RecordingError(
                f"{type(one).__name__} cannot be recorded, since it runs its draft model without a scoring and source: "
                "use DraftModel, or a drafter with both"
            )
    return found


def scoring_of(drafter: Drafter | None) -> Scoring | None:
    """Return the scoring of a drafter's draft model, or None if it has no draft model.

    Raises RecordingError if its draft models have different scorings, or if one has none.
    """
    found = {one.scoring for one in models_in(drafter)}
    if len(found) > 1:
        raise RecordingError("several draft models with different arguments cannot be recorded together")
    return next(iter(found), None)


def is_model_alone(drafter: Drafter | None) -> bool:
    """Return whether a drafter is just a draft model, so that its candidates depend only on the preceding tokens."""
    return drafter is not None and not learns(drafter) and not drafter.inner and scoring_of(drafter) is not None


def fidelity(parts: Parts) -> Fidelity:
    """Return the fidelity of a replay with these parts. Raises RecordingError if they cannot be replayed."""
    return max(_fidelities(parts), key=lambda one: list(Grade).index(one.grade), default=Fidelity(Grade.EXACT))


def _fidelities(parts: Parts) -> Iterator[Fidelity]:
    """Yield the fidelity of each part that cannot be replayed exactly."""
    verifier, name = parts.verifier, type(parts.verifier).__name__
    if verifier.sampling_settings is None:
        raise RecordingError(f"the output of {name} may depend on the drafts, so a recording cannot replay it")
    if parts.controller.reads_states:
        raise RecordingError("the controller reads a draft model's states, which no recording holds")
    if any(one.kind is not NodeKind.POINT_MASS for one in parts_in(parts.builder)):
        raise RecordingError(
            f"{type(parts.builder).__name__} draws its candidates, but a recording holds ranked candidates: set "
            "candidates to top-k"
        )
    if verifier.sampling != "deterministic":
        yield Fidelity(Grade.IN_LAW, f"{name} accepts a ranked candidate exactly where it is the output")
    for drafter in parts_in(parts.drafter):
        name = type(drafter).__name__
        if drafter.learns_from == "all-nodes":
            yield Fidelity(Grade.APPROXIMATE, f"{name} learns from nodes that were recorded only in part")
        elif drafter.learns_from not in ("nothing", "accepted"):
            yield Fidelity(Grade.APPROXIMATE, f"{name} may learn from what was not recorded")
    for controller in parts_in(parts.controller):
        if controller.uses_seconds:
            yield Fidelity(Grade.MODELLED, f"{type(controller).__name__} learns from seconds")


def static_shape(parts: Parts) -> TreeShape | None:
    """Return a composition's tree if it is fixed and holds ranked candidates of one draft model, otherwise None.

    The controller must leave all drafts unchanged, and the candidates must not be truncated by top-k or top-p.
    """
    drafter, builder, _, controller = parts
    if builder is None or builder.kind is not NodeKind.POINT_MASS or not controller.changes_nothing:
        return None
    if builder.shape is None or not is_model_alone(drafter):
        return None
    scoring = scoring_of(drafter)
    is_whole = scoring is not None and scoring.top_k is None and scoring.top_p is None
    return builder.shape if is_whole else None


def fidelity_note(fidelity: str, manifest: RecordingManifest) -> str:
    """Return a :class:`Fidelity` as text for tables, with the replay error measured in the live sample."""
    dtype = manifest.made_of["pair"]["target_dtype"]
    off = manifest.live_error(fidelity)
    if fidelity == Grade.EXACT.value:
        if dtype == "float32":
            return fidelity
        fidelity += f" except near ties, which a target in {dtype} may decide otherwise in passes of another size"
    elif off is None and fidelity.startswith(Grade.APPROXIMATE.value):
        return f"{fidelity}; its error is unknown, since the recording's live sample has no such composition"
    if off is None:
        return fidelity
    return (
        f"{fidelity}; in the recording's live sample the largest error of such compositions was {100 * off:+.2f} % "
        "tokens per step"
    )
