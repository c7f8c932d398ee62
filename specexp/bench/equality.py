"""Token equality with plain decoding: first differences, near ties in 16 bits, and a comparison in float32."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import frexp
from statistics import median
from time import perf_counter

import numpy as np
import psutil

from specexp.base.messages import counted, type_and_line
from specexp.bench.arm import LearningArm, decode_safely
from specexp.bench.record import Difference, PromptRecord
from specexp.core.context import common_prefix
from specexp.core.contracts import DeterministicVerifier
from specexp.core.outcome import Outcome
from specexp.data import Prompt
from specexp.models.pair import ModelPair
from specexp.tracking.names import PLAIN

ROUNDING = 1e-5
"""The largest gap in float32 at which rounding in passes of different sizes occasionally leads to different tokens."""
NEAR_TIE = {"bfloat16": 0.125, "float16": 0.125 / 8, "float32": 0.0, "float64": 0.0}
"""For each dtype, the largest gap that counts as a near tie (its rounding), in logits + T * noise; 0 in float32.

For 16 bits it is the dtype's spacing at logits from 16 to 32.
"""
SPACINGS = 4
"""In other programs, the near ties of 16-bit outputs, in spacings of the dtype at the best logit.

Three roundings decide there: the program's in passes of two sizes, and ours where the gap is measured. Of 100 answers
of plain vLLM 0.32.0, 37 part from its own among three other requests (SmolLM2, bfloat16, 48 tokens). Their gaps have
at most 2.4 spacings in float32, and at one place 4 in our passes.
"""
SECONDS = 15.0
"""Time limit in seconds for the comparison in float32. A prompt that is already being decoded is finished."""
_SPARE = 1.25  # memory that must be free, as a multiple of the copy's size

ArmsOf = Callable[["ModelPair"], "tuple[LearningArm, Sequence[LearningArm]]"]
"""A function that makes the arms for a pair of models: plain decoding, and those to compare with it."""


def near_tie_of(dtype: str, best: float) -> float:
    """Return the largest gap that counts as a near tie in another program's outputs, given the best logit."""
    return SPACINGS * NEAR_TIE.get(dtype, 0.0) * 2.0 ** (frexp(best)[1] - frexp(16.0)[1])


def near_tie_sentence(records: Iterable[PromptRecord]) -> str | None:
    """Return a sentence that explains the near ties of records; None if they have none."""
    near = [(one.gap or 0.0, record.dtype) for record in records if (one := record.difference) and one.near_tie]
    if not near:
        return None
    largest, dtype = max(near)
    return (
        f"A near tie is a position where plain decoding's two best tokens lie within the rounding of {dtype} "
        f"(here at most {largest:g} apart, in logits). Which of them is chosen depends on the number of tokens in a "
        "pass, not on the method, and later tokens may differ."
    )


def divergence(records: Iterable[PromptRecord]) -> str | None:
    """Return a clause about float32 outputs that differ from plain decoding's beyond rounding; None if none do."""
    found = [
        (record, one.index)
        for record in records
        if (one := record.difference) and record.dtype in ("float32", "float64")
        if one.gap is None or one.gap > ROUNDING
    ]
    if not found:
        return None
    first, index = found[0]
    arms = ", ".join(dict.fromkeys(record.arm for record, _ in found))
    return (
        f"{counted(len(found), 'output')} of {arms} DIFFER from plain decoding's in float32, where no near tie "
        f"explains it, e.g. {first.arm} on prompt {first.prompt_id!r} from new token {index} on"
    )


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Return the index of the first token at which two outputs differ, or None if they are equal."""
    index = common_prefix(tokens, reference)
    return None if index == len(tokens) == len(reference) else index


def _comparable(record: PromptRecord, reference: PromptRecord) -> bool:
    answered = not (record.error or reference.error)
    return answered and record.keyed and reference.keyed and record.verifier == reference.verifier


def compare(record: PromptRecord, reference: PromptRecord, plain: LearningArm, prompt: Prompt) -> PromptRecord:
    """Return the record with its difference from ``reference`` added, if there is one.

    ``reference`` is the record of the same prompt and sample from the plain-decoding arm, ``plain``. The scores at the
    first difference are recomputed by decoding the prompt again up to that position.
    """
    if not _comparable(record, reference):
        return record
    index = first_difference(record.token_ids, reference.token_ids)
    if index is None:
        return record
    gap, tolerance = None, 0.0
    if index < len(reference.token_ids):
        other = record.token_ids[index] if index < len(record.token_ids) else None
        scored, at = plain.place_of(prompt, reference, index)
        gap, best = _gap(plain, scored, record.sample, at, other)
        if record.dtype == reference.dtype:  # another program's answer is scored as part of another prompt
            tolerance = NEAR_TIE.get(record.dtype, 0.0) if scored is prompt else near_tie_of(record.dtype, best)
    near = gap is not None and gap <= tolerance and tolerance > 0
    return dataclasses.replace(record, difference=Difference(index, gap, near))


class _GapFound(Exception):  # noqa: N818
    """Raised to end decoding at the step of interest. Its arguments are the gap and the best logit."""


def _gap(plain: LearningArm, prompt: Prompt, sample: int, index: int, other: int | None) -> tuple[float | None, float]:
    decoded = 0  # new tokens of the steps so far

    def observe(outcome: Outcome) -> None:
        nonlocal decoded
        if decoded == index:
            raise _GapFound(tie_gap(plain, outcome, other), float(outcome.logits[0].max()))
        decoded += len(outcome.new_token_ids)

    try:
        plain.decode_observed(prompt, sample, observe)
    except _GapFound as found:
        gap, best = found.args
        return gap, best
    return None, 0.0


def tie_gap(plain: LearningArm, outcome: Outcome, other: int | None) -> float | None:
    """Return the gap between the two best values of logits + T * noise in a step of plain decoding; None if unknown.

    If top-k or top-p removes tokens, the distance to the cutoff is returned if it is smaller.
    """
    verifier = plain.parts.verifier
    logits = outcome.logits[0].float()  # [V]
    temperature = verifier.noise_temperature
    if not temperature:
        best = logits.topk(2).values
        return float(best[0] - best[1])
    if not isinstance(verifier, DeterministicVerifier) or not verifier.keyed_scores:
        return None
    position = len(outcome.context) - len(outcome.new_token_ids)
    noise = outcome.context.target_noise(position, 1, logits.numel(), logits.device)  # [1, V]
    noisy = verifier.scores(outcome.logits[:1], noise)
    assert noisy is not None
    scores = noisy[0].numpy(force=True)
    kept = np.isfinite(scores)
    order = np.sort(scores[kept])
    gap = float(order[-1] - order[-2]) * temperature if order.size > 1 else float("inf")
    if kept.all() or other is None:
        return gap
    values = logits.numpy(force=True)
    if not kept[other]:
        return min(gap, float(values[kept].min() - values[other]))
    return min(gap, float(values[outcome.new_token_ids[0]] - values[~kept].max()))


@dataclass(frozen=True)
class Equality:
    """The outputs of one arm compared with plain decoding's."""

    compared: int
    equal: int
    near_ties: int  # outputs that first differ at a near tie
    wrong: int  # outputs that first differ elsewhere

    @classmethod
    def sum(cls, found: Iterable[Equality]) -> Equality:
        """Return the sum over several arms."""
        return cls(*map(sum, zip((0, 0, 0, 0), *map(dataclasses.astuple, found), strict=True)))

    def __str__(self) -> str:
        if not self.compared:
            return "not compared"
        text = f"{self.equal + self.near_ties}/{self.compared}"
        if self.near_ties:
            text += f" ({self.equal} equal, {counted(self.near_ties, 'near tie')})"
        return f"{text}, {self.wrong} DIFFER" if self.wrong else text


def token_equality(records: Iterable[PromptRecord], arm: str, baseline: str = PLAIN) -> Equality:
    """Count, from records alone, how many of an arm's outputs equal the baseline's."""
    records = list(records)
    reference = {record.key: record for record in records if record.arm == baseline}
    pairs = [(one, reference[one.key]) for one in records if one.arm == arm and one.key in reference]
    pairs = [pair for pair in pairs if _comparable(*pair)]
    parted = [one for one, plain in pairs if one.token_ids != plain.token_ids]
    near = sum(one.difference is not None and one.difference.near_tie for one in parted)
    return Equality(len(pairs), len(pairs) - len(parted), near, len(parted) - near)


def proof_of(records: Iterable[PromptRecord], arms: Iterable[str], baseline: str) -> str:
    """Return a sentence that states whether the arms' outputs equal the baseline's."""
    records = list(records)
    by_arm = {arm: token_equality(records, arm, baseline) for arm in arms if arm != baseline}
    found = Equality.sum(by_arm.values())
    if not found.compared:
        return "Not compared: no output must equal plain decoding's token by token."
    wrong = ", ".join(arm for arm, one in by_arm.items() if one.wrong)
    return f"{f'NOT LOSSLESS ({wrong})' if wrong else 'Safe'}: {found} outputs equal plain decoding's."


@dataclass(frozen=True)
class InFloat32:
    """The comparison of outputs, repeated with the target in float32, in which near ties do not occur."""

    records: Sequence[PromptRecord] = ()  # records of plain decoding and the arms, in float32
    prompts: int = 0  # number of prompts decoded in float32
    of: int = 0  # number of prompts in the run
    left_out: str = ""  # why there was no comparison; empty if there was one

    def sentence(self, arms: Sequence[str], baseline: str = PLAIN) -> str:
        """Return a sentence with the combined result of several arms."""
        if self.left_out:
            return f"Not compared in float32: {self.left_out}."
        total = Equality.sum(token_equality(self.records, arm, baseline) for arm in arms)
        return (
            f"In float32, where there are no near ties, {total} outputs equal plain decoding's "
            f"({self.prompts} of {counted(self.of, 'prompt')} decoded once more, outside the clock)."
        )


def in_float32(
    pair: ModelPair, arms_of: ArmsOf, prompts: Sequence[Prompt], records: Sequence[PromptRecord], most: int
) -> InFloat32 | None:
    """Decode up to ``most`` prompts again in float32, if outputs of a 16-bit target differ from plain decoding's.

    ``arms_of`` makes the arms for the pair with a float32 copy of the target. Returns the comparison, or the reason
    why there is none. Returns None if every output is equal or already in float32, or if only Hugging Face's own loops
    differ, which are not compared. Groups of sequences are not compared either.
    """
    different = [one for one in records if one.difference is not None]
    if different and any(one.group is not None for one in records):
        return InFloat32(left_out="several sequences are decoded for a prompt")
    if not any(one.dtype in ("bfloat16", "float16") for one in different):
        return None
    references = [one for one in records if one.arm == PLAIN and not one.error]
    # time of plain decoding for one prompt, doubled because each weight has twice the bytes
    estimate = 2 * median(one.prefill_seconds + one.decode_seconds for one in references)
    why = _why_no_copy(pair)
    if estimate > SECONDS:
        why = f"one prompt would take about {estimate:.0f} s by plain decoding, but the limit is {SECONDS:.0f} s"
    if most == 0:
        why = "float32_prompts is 0"
    if why:
        return InFloat32(left_out=why)
    try:
        copied = dataclasses.replace(pair, target=copy.deepcopy(pair.target).float())
        plain, arms = arms_of(copied)
    except (ValueError, RuntimeError, MemoryError) as error:  # raised by a model or a device
        return InFloat32(left_out=type_and_line(error))
    if not arms:
        return None
    found: list[PromptRecord] = []
    start, decoded = perf_counter(), 0
    for arm in (plain, *arms):
        arm.reset()
    for prompt in prompts[:most]:
        if decoded and perf_counter() - start > SECONDS:
            break
        reference = decode_safely(plain, prompt)
        again = [compare(decode_safely(arm, prompt), reference, plain, prompt) for arm in arms]
        found += [reference, *again]
        decoded += 1
    return InFloat32(found, decoded, len(prompts))


def _why_no_copy(pair: ModelPair) -> str:
    """Return the reason why the target cannot be copied in float32; empty if it can."""
    import torch

    from specexp.core.language_model import is_spread

    if not isinstance(pair.target, torch.nn.Module):
        return "the target runs in another library"
    if is_spread(pair.target):
        return "the target is spread over devices"
    needed = 4 * sum(weights.numel() for weights in pair.target.parameters())
    device = torch.device(str(pair.target.device))
    # on a CPU, a copy that does not fit kills the process without an exception
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed * _SPARE <= free:
        return ""
    return f"a copy of the target takes {needed / 1e9:.1f} GB, but {device} has {free / 1e9:.1f} GB left"
