"""Training of heads that draft from a target's hidden states: the target stands still and says what is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import nn
from typing_extensions import override

from specexp.drafters.heads.eagle_head import EagleHead
from specexp.drafters.heads.medusa_heads import MedusaHeads
from specexp.drafters.heads.target_mark import MARK, mark_of
from specexp.fit.budgeted import BudgetedTraining

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HeadTraining(BudgetedTraining):
    """Trains a head of a target on rows of token ids ``[batch, length]``, and exports it as a ``draft-head``.

    What is learned is the target's own distribution, which says more than the token that follows in the text.

    Args:
        target: The target as ``pair.target`` names it.
        minutes: Wall-clock budget of training; no limit when absent.
        max_steps: Limit on optimiser steps; no limit when absent. One of the two must be given.
        lr: Peak learning rate of AdamW.
        plateau: Share of the budget after which the learning rate goes down.
        seed: Seed of the initial weights.

    Attributes:
        drafter: The drafter that reads the head, as ``parts.json`` records it.
        head: The network.
    """

    drafter: str
    head: nn.Module

    def __init__(
        self,
        target: str,
        minutes: Annotated[float, Field(gt=0)] | None = None,
        max_steps: Annotated[int, Field(ge=1)] | None = None,
        lr: Annotated[float, Field(gt=0)] = 2e-3,
        plateau: Annotated[float, Field(ge=0, le=1)] = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(minutes, max_steps, plateau)
        from specexp.models.pair import load_pair

        pair = load_pair(target, target_dtype="float32", mode="eager")
        self.lr = lr
        # apart from the submodules, so that it is in no checkpoint
        self._target: tuple[Any, ...] = (pair.target.requires_grad_(False),)
        torch.manual_seed(seed)

    @property
    def target(self) -> Any:
        """The target, which is not trained."""
        return self._target[0].to(self.device)

    @property
    def width(self) -> int:
        """d, of the hidden states."""
        width: int = self._target[0].get_output_embeddings().weight.shape[-1]
        return width

    def losses(
        self, hidden: torch.Tensor, batch: torch.Tensor, logits: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """What is added up to the loss, by name.

        Args:
            hidden: ``[batch, length, d]`` the target's states.
            batch: ``[batch, length]`` token ids.
            logits: ``[batch, length, V]`` what the target makes of the states.
        """
        raise NotImplementedError

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The head as its drafter takes it, the mark of the target left out."""
        weights = self.head.state_dict().items()
        return {name: value.detach().float().numpy(force=True) for name, value in weights}

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=0.0)
        for group in optimizer.param_groups:
            group["peak_lr"] = self.lr
        return optimizer

    @override
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        losses = self._losses(batch)
        for name, value in losses.items():
            self.log(f"train/{name}", value)
        loss: torch.Tensor = torch.stack(list(losses.values())).sum()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    @override
    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        loss = torch.stack(list(self._losses(batch).values())).sum()
        self.log("validation/loss", loss, prog_bar=True, batch_size=len(batch))

    @override
    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """A ``draft-head`` artifact, bound to the target."""
        from specexp.artifacts import fingerprint
        from specexp.config.artifacts import save_artifact

        arrays = {**self.arrays(), MARK: mark_of(self.target.get_output_embeddings())}
        parts = {"drafter": {"class_path": self.drafter, "init_args": {}}}
        metrics = {"tokens": self.tokens_done, "steps": self.batches_done}
        save_artifact(
            Path(folder),
            "draft-head",
            {"head.safetensors": arrays, "parts.json": parts},
            {"metrics": metrics},
            fingerprint(self._target[0], tokenizer),
        )

    def _losses(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            hidden = self.target.base_model(input_ids=batch, use_cache=False)[0]
            logits = self.target.get_output_embeddings()(hidden)
        return self.losses(hidden, batch, logits)


class MedusaTraining(HeadTraining):
    """Medusa's heads beside each other (Cai et al. 2024, section 2.2.1: the target is not trained).

    Args:
        target: The target as ``pair.target`` names it.
        heads: Positions looked ahead.
        blocks: Residual blocks of each head.
        decay: Weight of a head's loss over that of the head before it.
        minutes: See `HeadTraining`.
        max_steps: See `HeadTraining`.
        lr: See `HeadTraining`.
        plateau: See `HeadTraining`.
        seed: See `HeadTraining`.
    """

    drafter = "Medusa"

    def __init__(
        self,
        target: str,
        heads: Annotated[int, Field(ge=1, le=16)] = 4,
        blocks: Annotated[int, Field(ge=1, le=8)] = 1,
        decay: Annotated[float, Field(gt=0, le=1)] = 0.8,
        minutes: Annotated[float, Field(gt=0)] | None = None,
        max_steps: Annotated[int, Field(ge=1)] | None = None,
        lr: Annotated[float, Field(gt=0)] = 2e-3,
        plateau: Annotated[float, Field(ge=0, le=1)] = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(target, minutes, max_steps, lr, plateau, seed)
        self.decay = decay
        self.head = MedusaHeads(self.width, heads, blocks)

    @override
    def losses(
        self, hidden: torch.Tensor, batch: torch.Tensor, logits: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        states, output = self.head(hidden), self.target.get_output_embeddings()
        return {
            f"head_{number}": self.decay**number
            * divergence(output(states[:, : -number - 1, number]), logits[:, number + 1 :])
            for number in range(states.shape[2])
        }


class EagleTraining(HeadTraining):
    """EAGLE's layer (Li et al. 2024, section 4.2): the next state, and what the target makes of it.

    While drafting, the head goes on from states of its own. So in training some of the states it reads are replaced by
    what it made of those before, over several rounds; EAGLE adds noise to them instead.

    Args:
        target: The target as ``pair.target`` names it.
        heads: Of the attention.
        inner: Width of the layer's second half.
        regression: Weight of the distance between states, beside the divergence of distributions.
        rounds: Times that states are replaced by the head's own.
        replaced: Share of the states that are replaced in a round.
        minutes: See `HeadTraining`.
        max_steps: See `HeadTraining`.
        lr: See `HeadTraining`.
        plateau: See `HeadTraining`.
        seed: See `HeadTraining`.
    """

    drafter = "Eagle"
    head: EagleHead

    def __init__(
        self,
        target: str,
        heads: Annotated[int, Field(ge=1)] = 4,
        inner: Annotated[int, Field(ge=1)] = 704,
        regression: Annotated[float, Field(ge=0)] = 0.1,
        rounds: Annotated[int, Field(ge=0, le=8)] = 2,
        replaced: Annotated[float, Field(ge=0, le=1)] = 0.5,
        minutes: Annotated[float, Field(gt=0)] | None = None,
        max_steps: Annotated[int, Field(ge=1)] | None = None,
        lr: Annotated[float, Field(gt=0)] = 2e-3,
        plateau: Annotated[float, Field(ge=0, le=1)] = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__(target, minutes, max_steps, lr, plateau, seed)
        self.regression = regression
        self.rounds = rounds
        self.replaced = replaced
        self.head = EagleHead(self.width, heads, inner)

    @override
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {**super().arrays(), "heads": np.array([self.head.heads], dtype=np.int64)}

    @override
    def losses(
        self, hidden: torch.Tensor, batch: torch.Tensor, logits: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        embedded = self.target.get_input_embeddings()(batch[:, 1:])
        positions = torch.arange(1, batch.shape[1], device=batch.device)
        true = states = hidden[:, :-1]
        with torch.no_grad():
            for _ in range(self.rounds):
                made = self.head(embedded, states, positions)[0]
                chosen = torch.rand(made[:, :-1, :1].shape, device=made.device) < self.replaced
                states = torch.cat((true[:, :1], torch.where(chosen, made[:, :-1], true[:, 1:])), dim=1)
        made = self.head(embedded, states, positions)[0]
        output = self.target.get_output_embeddings()
        return {
            "divergence": divergence(output(made), logits[:, 1:]),
            "distance": self.regression * F.smooth_l1_loss(made, hidden[:, 1:]),
        }


def divergence(said: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of one distribution under another, both as logits ``[..., V]``; its mean."""
    return F.cross_entropy(said.flatten(0, -2), right.flatten(0, -2).softmax(dim=-1))
