"""How close a replayed composition comes to the live one, told from its parts before anything is replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from specexp.builders import Chain, StaticTree
from specexp.controllers import Bandit, Fixed, Oracle, QLearning, SwitchOff
from specexp.core.parts import Controller, DeterministicVerifier, Drafter, Parts, TreeBuilder, Verifier
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.drafters.draft_source import Scoring
from specexp.replay.format.errors import RecordingError
from specexp.verifiers import RejectionSampling, SampleMatch

if TYPE_CHECKING:
    from specexp.replay.format.recording import Manifest


class Grade(StrEnum):
    """What a replayed figure is worth."""

    EXACT = "exact"
    """Every count is the live one."""
    IN_LAW = "exact in distribution"
    """Given the output, what is accepted is certain: the counts are those of a live run that drew this output."""
    EXPECTED = "expected"
    """Given the output, what is accepted is a matter of chance: the counts are expected values, in closed form."""
    MODELLED = "modelled seconds decide"
    """A controller learns from seconds, which are the profile's here and measured ones live."""
    APPROXIMATE = "approximate"
    """Drafters learn from the target's answers to nodes that were recorded only in part."""


@dataclass(frozen=True)
class Fidelity:
    """A grade and the reason for it.

    Attributes:
        grade: the worst that one of the parts earns.
        why: a clause; empty where the grade is exact.
    """

    grade: Grade
    why: str = ""

    def __str__(self) -> str:
        """For tables."""
        return f"{self.grade.value} ({self.why})" if self.why else self.grade.value


_ORDER = (Grade.EXACT, Grade.IN_LAW, Grade.EXPECTED, Grade.MODELLED, Grade.APPROXIMATE)


def drafters_in(drafter: Drafter | None) -> Iterator[Drafter]:
    """A drafter and all that draft inside it."""
    if drafter is None:
        return
    yield drafter
    for inner in getattr(drafter, "drafters", ()):
        yield from drafters_in(inner)


def learns(drafter: Drafter | None) -> bool:
    """Whether what it drafts depends on what the target said before, beyond the committed tokens."""
    return any(not isinstance(one, DraftModel | PromptLookup | Union) for one in drafters_in(drafter))


def scoring_of(drafter: Drafter | None) -> Scoring | None:
    """Of the draft model inside a drafter; None where there is none.

    Raises:
        RecordingError: there are several with different ones.
    """
    found = {one.scoring for one in drafters_in(drafter) if isinstance(one, DraftModel)}
    if len(found) > 1:
        raise RecordingError("several draft models with different arguments cannot be recorded together")
    return next(iter(found), None)


def law_of(verifier: Verifier) -> dict[str, Any]:
    """The distribution that a verifier's output has: temperature, top-k and top-p."""
    return {
        "temperature": float(getattr(verifier, "temperature", 0.0)),
        "top_k": getattr(verifier, "top_k", None),
        "top_p": getattr(verifier, "top_p", None),
    }


def fidelity(parts: Parts) -> Fidelity:
    """What a replay of these parts is worth.

    Raises:
        RecordingError: a recording cannot say what they would do.
    """
    found = [
        *_of_verifier(parts.verifier, parts.builder, parts.controller),
        *_of_drafter(parts.drafter),
        *_of_controller(parts.controller),
    ]
    return max(found, key=lambda one: _ORDER.index(one.grade), default=Fidelity(Grade.EXACT))


def _of_verifier(
    verifier: Verifier | None, builder: TreeBuilder | None, controller: Controller | None
) -> Iterator[Fidelity]:
    draws = builder is not None and any(one.kind is not NodeKind.POINT_MASS for one in builders_in(builder))
    if verifier is None or isinstance(verifier, DeterministicVerifier):
        if draws:
            raise RecordingError(
                f"{type(builder).__name__} draws its candidates, and a recording holds ranked ones: set candidates to "
                "top-k"
            )
        return
    name = type(verifier).__name__
    if not isinstance(verifier, RejectionSampling | SampleMatch):
        raise RecordingError(
            f"the output of {name} depends on what is drafted, so a recording cannot replay it"
        )
    if not draws:
        yield Fidelity(Grade.IN_LAW, f"{name} accepts a ranked candidate exactly where it is the output")
        return
    fixed = controller is None or isinstance(controller, Fixed)
    if not isinstance(builder, Chain) or type(verifier) is not RejectionSampling or not fixed:
        raise RecordingError(
            f"{type(builder).__name__} draws its candidates under {name}, for which no closed form is known here: set "
            "candidates to top-k, or replay a Chain with RejectionSampling and a Fixed controller"
        )
    yield Fidelity(
        Grade.EXPECTED, "a drawn token that became output was accepted with probability min(1, q/p)"
    )


def _of_drafter(drafter: Drafter | None) -> Iterator[Fidelity]:
    for one in drafters_in(drafter):
        name = type(one).__name__
        if isinstance(one, TokenRecycling):
            if one.update != "accepted":
                yield Fidelity(Grade.APPROXIMATE, f"{name} learns from nodes that were recorded only in part")
        elif isinstance(one, PhraseCache):
            yield Fidelity(Grade.APPROXIMATE, f"{name} stores answers that were recorded only in part")
        elif not isinstance(one, DraftModel | PromptLookup | Union):
            yield Fidelity(Grade.APPROXIMATE, f"{name} may learn from what was not recorded")


def _of_controller(controller: Controller | None) -> Iterator[Fidelity]:
    if controller is not None and learns_from_seconds(controller):
        yield Fidelity(Grade.MODELLED, f"{type(controller).__name__} learns from seconds")
    if isinstance(controller, Oracle):
        raise RecordingError("an Oracle decodes every prompt beforehand, so a recording cannot replay it")


def learns_from_seconds(controller: Controller) -> bool:
    """Whether seconds that live are measured decide what it does."""
    if isinstance(controller, QLearning):
        return not controller.costs.known  # it has a cost, or measures one
    return isinstance(controller, Bandit | SwitchOff) or getattr(controller, "aim", None) == "goodput"


def builders_in(builder: TreeBuilder) -> Iterator[TreeBuilder]:
    """A builder and all that build inside it."""
    yield builder
    for one in (*getattr(builder, "builders", ()), *filter(None, [getattr(builder, "builder", None)])):
        yield from builders_in(one)


def worth(fidelity: str, manifest: Manifest) -> str:
    """What replayed counts are worth, as a clause for tables: the fidelity, what it leaves open, and the live sample.

    Args:
        fidelity: a :class:`Fidelity` as text.
        manifest: of the recording.
    """
    dtype = manifest.made_of["pair"]["target_dtype"]
    off = manifest.live_error(fidelity)
    if fidelity == Grade.EXACT.value:
        if dtype == "float32":
            return fidelity
        fidelity += (
            f" but for near ties, which a target in {dtype} decides otherwise in passes of another size"
        )
    elif off is None and fidelity.startswith(Grade.APPROXIMATE.value):
        return (
            f"{fidelity}; the recording's live sample holds nothing of the kind, so how far off is not known"
        )
    if off is None:
        return fidelity
    return (
        f"{fidelity}; what the recording's live sample holds of the kind was off by at most {100 * off:+.2f} % tokens "
        "per step"
    )


def is_plain_static(parts: Parts) -> bool:
    """Whether nothing is decided at run time: a fixed tree of ranked candidates, all of one draft model."""
    drafter, builder, _, controller = parts
    fixed = controller is None or (isinstance(controller, Fixed) and controller.changes_nothing)
    return (
        fixed
        and type(drafter) is DraftModel
        and drafter.top_k is None
        and drafter.top_p is None
        and isinstance(builder, StaticTree)
        and builder.kind is NodeKind.POINT_MASS
    )


def settings_of(made_of: Mapping[str, Any]) -> Scoring | None:
    """The scoring that a recording was made with.

    Raises:
        RecordingError: it is none.
    """
    scoring = made_of.get("scoring")
    try:
        return None if scoring is None else Scoring(**scoring)
    except TypeError as error:
        raise RecordingError(
            f"recording: made_of.scoring is {scoring!r}, which is damaged: record again"
        ) from error
