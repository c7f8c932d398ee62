"""The prompts of a workload, tokenized for one model and read once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from specexp.data.workload import Prompt, Workload

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from transformers import PreTrainedTokenizerBase


class LoadedPrompts:
    """The prompts of a workload in the order in which they are decoded, loaded at the first access."""

    def __init__(self, workload: Workload, tokenizer: PreTrainedTokenizerBase) -> None:
        self.workload = workload
        self.tokenizer = tokenizer

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The prompts of :meth:`Workload.load`."""
        return self.workload.load(self.tokenizer)

    def keep(self, prompts: Sequence[Prompt]) -> None:
        """Keep only these prompts, for example the share of one worker."""
        self.prompts = list(prompts)

    def loader(self) -> DataLoader[Prompt]:
        """Return a loader of one prompt a batch, for both ``fit`` and ``test`` of Lightning's Trainer."""
        from torch.utils.data import DataLoader

        # a list is a map-style data set; the workload shuffles it, and worker processes would only cost time
        return DataLoader(self.prompts, batch_size=1, shuffle=False, collate_fn=lambda batch: batch[0])  # type: ignore[arg-type]
