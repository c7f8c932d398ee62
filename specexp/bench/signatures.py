"""Diagnosis of faulty drafts: finds the likely cause of low acceptance from acceptance by position.

Only drafts from a model are judged. An off-by-one layer is not detected: it lowers acceptance by a few percent at
every position, just like a weaker draft model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import median

from specexp.bench.record import PromptRecord, by_position
from specexp.bench.statistics import arm_names

LEAST, _CHANCE, _RARE = 100, 0.02, 0.15
"""Minimum number of steps for judging a rate, and thresholds below which a rate is too low."""
# standard deviations for bounds (high, as a prompt's steps are dependent); a length that every draft was trained on
_SURE, _LONG = 4.0, 512

Length = tuple[int, int, int]
"""Prompt length, number of steps that drafted position 1, and number of steps that accepted it."""


def likely_cause(
    drafted_at: Sequence[int], accepted_at: Sequence[int], lengths: Sequence[Length] = (), chain: bool = True
) -> str | None:
    """Return a sentence that names the likely mistake in a draft, or None if acceptance looks healthy.

    Args:
        drafted_at: Number of steps that drafted each position, starting with position 1.
        accepted_at: Number of steps that accepted each position.
        lengths: The counts for position 1, by prompt length.
        chain: Whether drafts are chains. In a tree, later positions may have fewer candidates, so only the first one
            is judged.
    """
    accepted = [*accepted_at, *[0] * (len(drafted_at) - len(accepted_at))]
    if not drafted_at or drafted_at[0] < LEAST:
        return None
    rate = accepted[0] / drafted_at[0]
    most = _bounds(accepted[0], drafted_at[0])[1]
    share = f"{100 * rate:.1f} % of {drafted_at[0]:,} first drafts are accepted"
    if most < _RARE and rate < _CHANCE:
        return (
            f"{share}, as by chance: the draft belongs to another target or tokenizer, or some of its weights or its "
            "map of token ids were not loaded"
        )
    if most < _RARE and sum(accepted[1:2]) <= 2 * _RARE * accepted[0]:
        return (
            f"{share}, and few of the later ones: the draft was not trained for this (such as the target's own first "
            "layers), or runs with rotary embeddings, a prompt template or layers that differ from its training"
        )
    return _fall_by_length(lengths) or (_fall_by_position(drafted_at, accepted) if chain else None)


def _fall_by_length(lengths: Sequence[Length]) -> str | None:
    """Compare the longer half of the prompts with the shorter half."""
    ordered = sorted(lengths)
    halves = ordered[: len(ordered) // 2], ordered[(len(ordered) + 1) // 2 :]
    if not all(halves):
        return None
    short, long = (median(one[0] for one in half) for half in halves)
    counts = [(sum(one[2] for one in half), sum(one[1] for one in half)) for half in halves]
    if long < max(2 * short, _LONG) or not _much_lower(counts[1], counts[0]):
        return None
    rates = [f"{100 * part / whole:.0f} %" for part, whole in counts]
    return (
        f"first drafts are accepted in {rates[0]} of the steps of short prompts (median {short:,.0f} tokens) and in "
        f"{rates[1]} of long ones ({long:,.0f}): these are longer than the text that the draft was trained on"
    )


def template_cause(one: tuple[int, int], other: tuple[int, int]) -> str | None:
    """Return a sentence if a chat template greatly changes how often first drafts for the same prompts are accepted.

    Args:
        one: Number of accepted first drafts, and of all first drafts, for the prompts in one form (texts or chats).
        other: The same for the other form.
    """
    for low, high in ((one, other), (other, one)):
        if _much_lower(low, high):
            return (
                f"first drafts are accepted in {100 * low[0] / low[1]:.0f} % of the steps with one of chat template "
                f"and plain text, and in {100 * high[0] / high[1]:.0f} % with the other: the draft was trained with "
                "the template of another model, or thinking mode differs from its training"
            )
    return None


def _fall_by_position(drafted: Sequence[int], accepted: Sequence[int]) -> str | None:
    """Compare each position's acceptance rate, given that the previous one was accepted, with the rate before it."""
    before, after = drafted[0], accepted[0]
    for position, (tried, kept) in enumerate(zip(drafted[1:], accepted[1:], strict=False), 2):
        if after < LEAST or tried < 0.75 * drafted[0]:  # drafts of different lengths are not comparable
            return None
        rate, most = after / before, _bounds(kept, after)[1]
        if rate >= 0.5 and most < (0.35 * rate if position == 2 else 0.05):
            cause = "its sliding attention runs as full attention, or it was trained for fewer positions"
            if position == 2:
                cause = (
                    "the draft goes on from wrong states (before or after the norm, or cached keys of rejected "
                    "drafts), or it was trained for one position only"
                )
            share = f"{100 * kept / after:.0f} % of the drafts that were accepted up to position {position - 1}"
            return f"{share} are accepted at position {position} too: {cause}"
        before, after = after, kept
    return None


def _bounds(part: int, whole: int) -> tuple[float, float]:
    """Return the bounds of the Wilson score interval for a share."""
    share, z = part / whole, _SURE**2 / whole
    middle, half = share + z / 2, sqrt(z * (share * (1 - share) + z / 4))
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def _much_lower(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether one share is much lower than the other. Each is given as part and whole."""
    return min(one[1], other[1]) >= LEAST and _bounds(*one)[1] <= 0.6 * _bounds(*other)[0]


def likely_causes(records: Iterable[PromptRecord]) -> dict[str, str]:
    """Return the likely mistake in each arm's draft, by arm name. Arms without one are left out."""
    by_model = [one for one in records if one.draft_passes and one.drafted_at]  # not failed, and drafted by a model
    found = dict[str, str]()
    for arm in arm_names(by_model):
        own = [one for one in by_model if one.arm == arm]
        drafted = by_position(one.drafted_at for one in own)
        accepted = by_position(one.accepted_at for one in own)
        lengths = [(one.prompt_tokens, one.drafted_at[0], sum(one.accepted_at[:1])) for one in own]
        chain = sum(drafted) == sum(one.drafted_nodes for one in own)
        if cause := likely_cause(drafted, accepted, lengths, chain):
            found[arm] = cause
    return found
