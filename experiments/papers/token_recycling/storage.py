"""What a drafter keeps from step to step takes (Token Recycling, section 3.1: below 2 MB)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.core.parts import Parts


class Storage(Analysis):
    """Bytes of the tensors that every drafter has learned by the end of a run, beside what the same rows take at other
    sizes of the vocabulary; weights and caches of draft models are not among them.

    Args:
        vocabulary: Number of tokens to which the bytes are scaled; the paper's models have 32,000.
    """

    name: ClassVar[str] = "storage"

    def __init__(self, vocabulary: int = 32_000) -> None:
        self.vocabulary = vocabulary
        self._arms: dict[str, Parts] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._arms = drafting(arms)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        scaled = f"kB at {self.vocabulary:,} tokens"
        table = Table("What drafters keep", columns(f"arm | shapes | kB:.0 | {scaled}:.0"))
        for arm, parts in self._arms.items():
            assert parts.drafter is not None
            tensors = _tensors(parts.drafter.state_dict())
            size = sum(tensor.nbytes for tensor in tensors)
            rows = {tensor.shape[0] for tensor in tensors if tensor.dim() == 2}
            at_scale = size / rows.pop() * self.vocabulary if size and len(rows) == 1 else None
            shapes = ", ".join(f"{list(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in tensors)
            table.rows.append(
                [arm, shapes or "nothing", size / 1e3, None if at_scale is None else at_scale / 1e3]
            )
        return Report({self.name: table})


def _tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    inner = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return [tensor for one in inner for tensor in _tensors(one)]
