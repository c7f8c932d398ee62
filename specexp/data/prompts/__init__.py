"""A workload as a Lightning data module. Import this module late: it imports Lightning, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader
from typing_extensions import override

from specexp.data.workload import Prompt, Workload

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptDataModule(LightningDataModule):
    """A data module with the prompts of a workload in order, one in each batch, for both ``fit`` and ``test``."""

    def __init__(self, workload: Workload, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.workload = workload
        self.tokenizer = tokenizer
        self._prompts: list[Prompt] = []

    @override
    def setup(self, stage: str | None = None) -> None:
        if not self._prompts:
            self._prompts = self.workload.load(self.tokenizer)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts in the order in which they are decoded, loaded with :meth:`Workload.load` at the first access."""
        self.setup()
        return self._prompts

    def keep(self, prompts: Sequence[Prompt]) -> None:
        """Keep only these prompts, for example the share of one worker."""
        self._prompts = list(prompts)

    @override
    def test_dataloader(self) -> DataLoader[Prompt]:
        # a list is a map-style data set; the workload shuffles it, and worker processes would only cost time
        return DataLoader(self.prompts, batch_size=1, shuffle=False, collate_fn=lambda batch: batch[0])  # type: ignore[arg-type]

    @override
    def train_dataloader(self) -> DataLoader[Prompt]:
        return self.test_dataloader()

    @override
    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch  # no tensors, and Lightning's own transfer raises for frozen dataclasses
