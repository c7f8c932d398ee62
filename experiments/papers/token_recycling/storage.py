"""Memory of the drafters' learned tensors (Token Recycling, section 3.1: below 2 MB)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from typing_extensions import override

from experiments.papers.shared import report_of, table_of
from specexp.bench.record import PromptRecord
from specexp.core.parts import Parts
from specexp.report.analysis import Analysis, drafting
from specexp.report.publish import Report

VOCABULARY = 32_000  # vocabulary size of the paper's models, to which bytes are scaled


class Storage(Analysis):
    """Bytes of each drafter's learned tensors at the end of a run; weights and caches of draft models do not count."""

    name: ClassVar[str] = "storage"
    _arms: Mapping[str, Parts]

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._arms = drafting(arms)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        heads = f"arm | shapes | kB:.0 | kB at {VOCABULARY:,} tokens:.0"
        table = table_of("What drafters keep", heads)
        for arm, parts in self._arms.items():
            tensors = [] if parts.drafter is None else _tensors(parts.drafter.state_dict())
            size = sum(tensor.nbytes for tensor in tensors)
            rows = {tensor.shape[0] for tensor in tensors if tensor.dim() == 2}  # one row per token of the vocabulary
            scaled = size / rows.pop() * VOCABULARY / 1e3 if size and len(rows) == 1 else None
            shapes = ", ".join(f"{list(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in tensors)
            table.rows.append([arm, shapes or "nothing", size / 1e3, scaled])
        return report_of(self, table)


def _tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    inner = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return [tensor for one in inner for tensor in _tensors(one)]
