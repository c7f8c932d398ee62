"""A workload as a Lightning data module. Importing this module takes seconds, as Lightning does: import it late."""

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
    """The prompts of a workload, one a batch, in the workload's order; the loader of ``fit`` is that of ``test``."""

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
        """The prompts in the order they are decoded; raises as :meth:`Workload.load`."""
        self.setup()
        return self._prompts

    def keep(self, prompts: Sequence[Prompt]) -> None:
        """Decode only these prompts, as a worker does that shares the set with others."""
        self._prompts = list(prompts)

    @override
    def test_dataloader(self) -> DataLoader[Prompt]:
        # A list is a map-style data set; shuffling is the workload's, and a worker process would only cost time.
        return DataLoader(self.prompts, batch_size=1, shuffle=False, collate_fn=lambda batch: batch[0])  # type: ignore[arg-type]

    @override
    def train_dataloader(self) -> DataLoader[Prompt]:
        return self.test_dataloader()

    @override
    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch  # it has no tensor, and Lightning's own transfer refuses a frozen dataclass
