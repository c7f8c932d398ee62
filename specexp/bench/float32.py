"""The same outputs once more with a float32 copy of the target: where a 16-bit one has near ties, float32 has none.

Outside the clock, on as many prompts as fit into a stated time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from specexp.bench.equality import Equality, compare, token_equality
from specexp.bench.module import decode_safely
from specexp.core.messages import counted, type_and_line

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair

SECONDS = 15.0
"""Most seconds that the comparison may take; a prompt that is begun is finished."""
_SPARE = 1.25
"""Memory that must be free, as a multiple of the copy."""

ArmsOf = Callable[["ModelPair"], "tuple[EngineArm, Sequence[EngineArm]]"]
"""Plain decoding and the arms to compare with it, made to run on a pair."""


@dataclass(frozen=True)
class InFloat32:
    """What the comparison found.

    Attributes:
        records: Of plain decoding and the arms, in float32.
        prompts: How many were decoded.
        of: How many the run has.
        left_out: Why nothing was decoded; empty where something was.
    """

    records: Sequence[PromptRecord] = ()
    prompts: int = 0
    of: int = 0
    left_out: str = ""

    def equality(self, arm: str, baseline: str = "engine") -> Equality:
        """One arm's outputs beside plain decoding's."""
        return token_equality(self.records, arm, baseline)

    def sentence(self, arms: Sequence[str], baseline: str = "engine") -> str:
        """What it found of several arms together."""
        if self.left_out:
            return f"Not compared in float32: {self.left_out}."
        total = Equality.sum(self.equality(arm, baseline) for arm in arms)
        return (
            f"In float32, where there are no near ties, {total} outputs equal plain decoding's "
            f"({self.prompts} of {counted(self.of, 'prompt')} decoded once more, outside the clock)."
        )


def in_float32(
    pair: ModelPair,
    arms_of: ArmsOf,
    prompts: Sequence[Prompt],
    records: Sequence[PromptRecord],
    most: int,
    *,
    baseline: str = "engine",
    seconds: float = SECONDS,
) -> InFloat32 | None:
    """Decode prompts once more in float32, if outputs of a 16-bit target parted from plain decoding's.

    Args:
        pair: The models of the run, whose target is copied.
        arms_of: Makes the arms on the pair with the copy.
        prompts: Prompts of the run, in order.
        records: Records of the run.
        most: Most prompts that are decoded; 0 leaves the comparison out.
        baseline: Name of plain decoding.
        seconds: Most seconds that it may take.

    Returns:
        What was found, or why nothing was looked at; None where every output is equal, and in float32 anyway, and where
        only Hugging Face's own loops parted, which are not compared.
    """
    if not any(
        record.difference is not None and record.dtype in ("bfloat16", "float16") for record in records
    ):
        return None
    plain = [
        one.prefill_seconds + one.decode_seconds for one in records if one.arm == baseline and not one.error
    ]
    estimate = 2 * median(plain)  # plain decoding, in twice the bytes
    if most == 0:
        return InFloat32(left_out="float32_prompts is 0")
    if estimate > seconds:
        return InFloat32(
            left_out=f"one prompt would take about {estimate:.0f} s by plain decoding, and all have {seconds:.0f} s"
        )
    try:
        engine, arms = arms_of(_copied(pair))
    except (ValueError, RuntimeError, MemoryError, NotImplementedError) as error:  # of a model or a device
        return InFloat32(
            left_out=type_and_line(error) if not isinstance(error, NotCopiedError) else str(error)
        )
    return _decode(engine, arms, prompts, most, seconds) if arms else None


class NotCopiedError(RuntimeError):
    """The target cannot be copied: it runs in another library, or its device has no room."""


def _decode(
    engine: EngineArm, arms: Sequence[EngineArm], prompts: Sequence[Prompt], most: int, seconds: float
) -> InFloat32:
    found: list[PromptRecord] = []
    start, decoded = perf_counter(), 0
    for arm in (engine, *arms):
        arm.reset()
    for prompt in prompts[:most]:
        if decoded and perf_counter() - start > seconds:
            break
        reference = decode_safely(engine, prompt)
        found.append(reference)
        for arm in arms:
            if decoded and perf_counter() - start > seconds:
                break
            found.append(compare(decode_safely(arm, prompt), reference, engine, prompt))
        decoded += 1
    return InFloat32(found, decoded, len(prompts))


def _copied(pair: ModelPair) -> ModelPair:
    """The pair with a float32 copy of its target.

    Raises:
        NotCopiedError: there can be none.
    """
    import torch

    if not isinstance(pair.target, torch.nn.Module):
        raise NotCopiedError("the target runs in another library")
    from specexp.core.placement import is_spread

    if is_spread(pair.target):
        raise NotCopiedError("the target is spread over devices")
    needed = 4 * sum(weights.numel() for weights in pair.target.parameters())
    free = _free_bytes(pair.target.device)
    if free is not None and needed * _SPARE > free:
        raise NotCopiedError(
            f"a copy of the target takes {needed / 1e9:.1f} GB, and {pair.target.device} has {free / 1e9:.1f} GB left"
        )
    return replace(pair, target=copy.deepcopy(pair.target).float())


def _free_bytes(device: object) -> int | None:
    """Memory that a device has left; None where nobody tells."""
    import torch

    if str(device).startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(str(device)))[0])
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        return None
    return None
