"""The fidelity of a replayed composition, by the declarations of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from specexp.core.contracts import Controller, Drafter, TreeBuilder
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind, TreeShape
from specexp.drafters.ranking import Scoring
from specexp.replay.format.trie import RecordingError

if TYPE_CHECKING:
    from specexp.replay.format.recording import RecordingManifest

AnyPart = TypeVar("AnyPart", Drafter, TreeBuilder, Controller)


class Grade(StrEnum):
    """The fidelity of a replayed figure."""

    EXACT = "exact"
    """Every count is the live one."""
    IN_LAW = "exact in distribution"
    """Given the output, acceptance is certain: the counts are those of a live run that drew this output."""
    MODELLED = "modelled seconds decide"
    """A controller learns from seconds, which are the profile's here and measured ones live."""
    APPROXIMATE = "approximate"
    """Drafters learn from nodes that were recorded only in part, or do not declare what they learn from."""


@dataclass(frozen=True)
class Fidelity:
    """The worst grade of the parts, and the reason as a clause, which is empty for an exact one."""

    grade: Grade
    why: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.grade.value} ({self.why})" if self.why else self.grade.value


_ORDER = (Grade.EXACT, Grade.IN_LAW, Grade.MODELLED, Grade.APPROXIMATE)


def parts_in(part: AnyPart | None) -> Iterator[AnyPart]:
    """Yield a drafter, builder or controller and all of its kind inside it."""
    if part is not None:
        yield part
        for inner in part.inner:
            yield from parts_in(inner)


def learns(drafter: Drafter | None) -> bool:
    """Return whether drafts depend on more of the target's answers than the committed tokens."""
    return any(one.learns_from != "nothing" for one in parts_in(drafter))


def models_in(drafter: Drafter | None) -> list[Any]:
    """Return the drafters that run a draft model themselves, among a drafter and those inside it.

    Each has a ``scoring`` and a ``source`` (:mod:`specexp.drafters.draft_source`), whose candidates are recorded.

    Raises:
        RecordingError: One runs its model in a way of its own.
    """
    found = [
        one
        for one in parts_in(drafter)
        if one.runs_model and not any(inner.runs_model for inner in one.inner)
    ]
    for one in found:
        if one.scoring is None:
            raise RecordingError(
                f"{type(one).__name__} runs its draft model in a way of its own, which cannot be recorded: draft with "
                "DraftModel, or with a drafter that has its scoring and source"
            )
    return found


def scoring_of(drafter: Drafter | None) -> Scoring | None:
    """Return the scoring of the draft model inside a drafter; None if there is none.

    Raises:
        RecordingError: There are several with different scorings, or one runs its model in a way of its own.
    """
    found = {one.scoring for one in models_in(drafter)}
    if len(found) > 1:
        raise RecordingError("several draft models with different arguments cannot be recorded together")
    return next(iter(found), None)


def is_model_alone(drafter: Drafter | None) -> bool:
    """Return whether a drafter is a draft model alone, whose candidates depend only on the tokens before."""
    return (
        drafter is not None and not learns(drafter) and not drafter.inner and scoring_of(drafter) is not None
    )


def fidelity(parts: Parts) -> Fidelity:
    """Return the fidelity of a replay of these parts; raises RecordingError if they cannot be replayed."""
    found = [*_of_verifier(parts), *_of_drafter(parts.drafter), *_of_controller(parts.controller)]
    return max(found, key=lambda one: _ORDER.index(one.grade), default=Fidelity(Grade.EXACT))


def _of_verifier(parts: Parts) -> Iterator[Fidelity]:
    verifier, builder = parts.verifier, parts.builder
    name = type(verifier).__name__
    if verifier.sampling_settings is None:
        raise RecordingError(
            f"the output of {name} may depend on what is drafted, so a recording cannot replay it"
        )
    if any(one.kind is not NodeKind.POINT_MASS for one in parts_in(builder)):
        raise RecordingError(
            f"{type(builder).__name__} draws its candidates, and a recording holds ranked ones: set candidates to top-k"
        )
    if verifier.sampling != "deterministic":
        yield Fidelity(Grade.IN_LAW, f"{name} accepts a ranked candidate exactly where it is the output")


def _of_drafter(drafter: Drafter | None) -> Iterator[Fidelity]:
    for one in parts_in(drafter):
        name = type(one).__name__
        if one.learns_from == "all-nodes":
            yield Fidelity(Grade.APPROXIMATE, f"{name} learns from nodes that were recorded only in part")
        elif one.learns_from not in ("nothing", "accepted"):
            yield Fidelity(Grade.APPROXIMATE, f"{name} may learn from what was not recorded")


def _of_controller(controller: Controller) -> Iterator[Fidelity]:
    for one in parts_in(controller):
        name = type(one).__name__
        if one.needs_foresight:
            raise RecordingError(
                f"the {name} controller decodes every prompt beforehand, so a recording cannot replay it"
            )
        if one.uses_seconds:
            yield Fidelity(Grade.MODELLED, f"{name} learns from seconds")


def fixed_shape_of(builder: TreeBuilder | None) -> TreeShape | None:
    """Return the one shape of all trees of a builder; None if it has several or does not state it."""
    return None if builder is None else builder.shape


def is_plain_static(parts: Parts) -> bool:
    """Return whether a composition is a fixed tree of ranked candidates of one draft model, so nothing is decided."""
    drafter, builder, _, controller = parts
    if builder is None or builder.kind is not NodeKind.POINT_MASS or not controller.changes_nothing:
        return False
    if fixed_shape_of(builder) is None or not is_model_alone(drafter):
        return False
    scoring = scoring_of(drafter)
    return scoring is not None and scoring.top_k is None and scoring.top_p is None


def fidelity_note(fidelity: str, manifest: RecordingManifest) -> str:
    """Return the text of a :class:`Fidelity` as a clause for tables, with the error in the live sample."""
    dtype = manifest.made_of["pair"]["target_dtype"]
    off = manifest.live_error(fidelity)
    if fidelity == Grade.EXACT.value:
        if dtype == "float32":
            return fidelity
        fidelity += (
            f" except near ties, which a target in {dtype} decides otherwise in passes of another size"
        )
    elif off is None and fidelity.startswith(Grade.APPROXIMATE.value):
        return f"{fidelity}; its error is unknown, since the recording's live sample has no such composition"
    if off is None:
        return fidelity
    return (
        f"{fidelity}; in the recording's live sample the error of such compositions was at most {100 * off:+.2f} % "
        "tokens per step"
    )


def recorded_scoring(made_of: Mapping[str, Any]) -> Scoring | None:
    """Return the scoring in ``made_of`` of a manifest; None without a draft model."""
    scoring = made_of.get("scoring")
    try:
        return None if scoring is None else Scoring(**scoring)
    except TypeError as error:
        raise RecordingError(
            f"recording: made_of.scoring is damaged, got {scoring!r}: record again"
        ) from error
