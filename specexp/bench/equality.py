"""Is the output still plain decoding's, token for token? Near ties of a low precision are counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specexp.bench.record import Difference, PromptRecord
from specexp.core.messages import counted

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt

ROUNDING = 1e-5
"""Gap in float32 below which two passes of different size may round to different tokens, if ever."""

NEAR_TIE = {"bfloat16": 0.125, "float16": 0.125 / 8, "float32": 0.0, "float64": 0.0}
"""Largest gap, in logits + T * noise, at which outputs may part: the dtype's rounding; float32 may not."""


def near_tie_sentence(dtype: str) -> str:
    """What a near tie is, for whoever reads of one for the first time."""
    return (
        f"A near tie is a place where plain decoding's own two best tokens lie within the rounding of {dtype} "
        f"({NEAR_TIE.get(dtype, 0.0):g} in logits): which of them comes first depends on how many tokens a pass holds, "
        "not on the method, and what follows may differ."
    )


def divergence(records: Iterable[PromptRecord]) -> str | None:
    """Outputs in float32 that are not plain decoding's though nothing excuses it, as a clause; None without any."""
    found = [
        record
        for record in records
        if (difference := record.difference) is not None
        and record.dtype in ("float32", "float64")
        and (difference.gap is None or difference.gap > ROUNDING)
    ]
    if not found:
        return None
    first = found[0]
    assert first.difference is not None
    arms = ", ".join(dict.fromkeys(record.arm for record in found))
    return (
        f"{counted(len(found), 'output')} of {arms} DIFFER from plain decoding's in float32, where no near tie excuses "
        f"it, e.g. {first.arm} on prompt {first.prompt_id!r} from new token {first.difference.index} on"
    )


def first_difference(tokens: tuple[int, ...], reference: tuple[int, ...]) -> int | None:
    """Number of the first token in which two outputs differ; None if they are equal."""
    for index, (token, expected) in enumerate(zip(tokens, reference, strict=False)):
        if token != expected:
            return index
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def _same_output(record: PromptRecord, reference: PromptRecord) -> bool:
    """Whether the two should be equal token for token."""
    return record.keyed and reference.keyed and record.verifier == reference.verifier


def compare(record: PromptRecord, reference: PromptRecord, plain: EngineArm, prompt: Prompt) -> PromptRecord:
    """The record with its difference from plain decoding, if there is one.

    The scores at the first difference are recomputed by decoding the prompt once more up to there.

    Args:
        record: Record of any arm.
        reference: Plain decoding's, of the same prompt and sample.
        plain: The arm that made it.
        prompt: The prompt.
    """
    if record.error or reference.error or not _same_output(record, reference):
        return record
    index = first_difference(record.token_ids, reference.token_ids)
    if index is None:
        return record
    gap = None
    if index < len(reference.token_ids):
        other = record.token_ids[index] if index < len(record.token_ids) else None
        gap = _gap(plain, prompt, record.sample, index, other)
    tolerance = NEAR_TIE.get(record.dtype, 0.0) if record.dtype == reference.dtype else 0.0
    near = gap is not None and gap <= tolerance and tolerance > 0
    return dataclasses.replace(record, difference=Difference(index, gap, near))


def _gap(plain: EngineArm, prompt: Prompt, sample: int, index: int, other: int | None) -> float | None:
    """How close plain decoding came to another token at place ``index`` of its output."""
    seen = 0

    def observe(outcome: Outcome) -> None:
        nonlocal seen
        if seen == index:
            raise _Found(tie_gap(plain, outcome, other))
        seen += len(outcome.new_token_ids)

    try:
        plain.decode_observed(prompt, sample, observe)
    except _Found as found:
        return found.gap
    return None


class _Found(Exception):  # noqa: N818
    """Ends the second decoding where the first difference is."""

    def __init__(self, gap: float | None) -> None:
        super().__init__()
        self.gap = gap


def tie_gap(plain: EngineArm, outcome: Outcome, other: int | None) -> float | None:
    """Gap of the two best values of logits + T * noise, or the distance to the top-k / top-p cut if less; None where
    the verifier does not show its noisy scores.

    Args:
        plain: Arm of plain decoding.
        outcome: Its step.
        other: Token that another arm put there.
    """
    verifier: Any = plain.parts.verifier
    logits = outcome.logits[0].float()  # [V]
    temperature = verifier.noise_temperature
    if not temperature:
        best = logits.topk(2).values
        return float(best[0] - best[1])
    if not hasattr(verifier, "noisy_scores"):
        return None
    position = len(outcome.context) - len(outcome.new_token_ids)
    scores = verifier.noisy_scores(outcome.context, outcome.logits[0], position)
    kept = np.isfinite(scores)
    order = np.sort(scores[kept])
    gap = float(order[-1] - order[-2]) * temperature if order.size > 1 else float("inf")
    if kept.all() or other is None:
        return gap
    values = logits.numpy(force=True)
    if not kept[other]:
        return min(gap, float(values[kept].min() - values[other]))
    chosen = outcome.new_token_ids[0]
    return min(gap, float(values[chosen] - values[~kept].max()))


@dataclass(frozen=True)
class Equality:
    """Outputs of one arm beside plain decoding's.

    Attributes:
        compared: Prompts that both answered.
        equal: Identical outputs.
        near_ties: Outputs that part at a near tie.
        wrong: Outputs that part elsewhere.
    """

    compared: int
    equal: int
    near_ties: int
    wrong: int

    @classmethod
    def sum(cls, found: Iterable[Equality]) -> Equality:
        """Of several arms together."""
        return cls(*map(sum, zip((0, 0, 0, 0), *map(dataclasses.astuple, found), strict=True)))

    def __str__(self) -> str:
        if not self.compared:
            return "not compared"
        text = f"{self.equal + self.near_ties}/{self.compared}"
        if self.near_ties:
            text += f" ({self.equal} equal, {counted(self.near_ties, 'near tie')})"
        return f"{text}, {self.wrong} DIFFER" if self.wrong else text


def token_equality(records: Iterable[PromptRecord], arm: str, baseline: str = "engine") -> Equality:
    """Count an arm's outputs that equal the baseline's, from records alone.

    Args:
        records: Records of a run.
        arm: Name of the arm whose outputs are counted.
        baseline: Plain decoding.
    """
    records = list(records)
    reference = {record.key: record for record in records if record.arm == baseline and not record.error}
    equal = near = wrong = 0
    for record in records:
        if record.arm != arm or record.error or record.key not in reference:
            continue
        if not _same_output(record, reference[record.key]):
            continue
        if record.token_ids == reference[record.key].token_ids:
            equal += 1
        elif record.difference is not None and record.difference.near_tie:
            near += 1
        else:
            wrong += 1
    return Equality(equal + near + wrong, equal, near, wrong)
