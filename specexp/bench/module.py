"""A comparison as a Lightning module: ``Trainer.test`` decodes every prompt with every arm."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from lightning import LightningModule
from typing_extensions import override

from specexp.bench import clock
from specexp.bench.arm import Arm
from specexp.bench.measuring import by_key, decoded_again, plain_of, records_by_prompt
from specexp.bench.observers import Observer
from specexp.bench.record import PromptRecord, write_records
from specexp.bench.statistics import paired_speedup
from specexp.data import Prompt
from specexp.tracking.names import PLAIN


class EvaluationModule(LightningModule):
    """Runs :func:`~specexp.bench.measuring.records_by_prompt` as a test, and logs speedups over plain decoding.

    Arms are not submodules, so the ``state_dict`` is empty. After every prompt, records are appended to the JSONL file
    ``records_path``. The other arguments are as in that function.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        records_path: str | Path | None = None,
        samples: int = 1,
        orders: Mapping[str, Sequence[Prompt]] | None = None,
        analyses: Sequence[Observer] = (),
    ) -> None:
        super().__init__()
        plain_of(arms, PLAIN)
        self.arms = tuple(arms)
        self.samples = samples
        self.records_path = None if records_path is None else Path(records_path)
        self.orders = dict(orders or {})
        self.analyses = tuple(analyses)
        self._found: dict[tuple[str, str, int], PromptRecord] = {}

    @property
    def records(self) -> list[PromptRecord]:
        """All records made so far."""
        return list(self._found.values())

    @override
    def on_test_start(self) -> None:
        self._found.clear()
        self._prompts: list[Prompt] = []
        self._next: deque[Prompt] = deque()
        prompts = iter(self._next.popleft, None)  # the test's prompts, as they arrive
        self._rounds = records_by_prompt(
            self.arms, prompts, samples=self.samples, orders=self.orders, analyses=self.analyses
        )

    def close(self) -> None:
        """Stop the arms' processes."""
        for arm in self.arms:
            arm.close()

    @override
    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch  # a prompt has no tensors, and Lightning's own transfer fails on a frozen dataclass

    @override
    def test_step(self, prompt: Prompt, batch_index: int) -> None:
        self._next.append(prompt)
        self._prompts.append(prompt)
        new = next(self._rounds)
        self._found |= by_key(new)
        if self.records_path is not None:
            write_records(self.records_path, new)
        keys = {record.key for record in new}
        paired = [record for record in self._found.values() if record.key in keys]
        for arm in self.arms:
            speedup = paired_speedup(paired, arm.name, PLAIN)
            if arm.name != PLAIN and speedup.refused is None:
                name = f"{clock.metric_prefix(speedup.clock)}log_speedup/{arm.name}"
                few = len(self.arms) <= 4
                self.log(name, speedup.mean_log_ratio, prog_bar=few, batch_size=1)

    @override
    def on_test_end(self) -> None:
        records = decoded_again(self.arms, self._prompts, self.records)
        changed = [record for record in records if record is not self._found[(record.arm, *record.key)]]
        self._found = by_key(records)
        if self.records_path is not None and changed:
            write_records(self.records_path, changed)
