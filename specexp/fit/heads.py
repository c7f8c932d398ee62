"""Trains heads that draft from a target's hidden states, with the frozen target as the teacher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import nn
from typing_extensions import override

from specexp.core.language_model import final_logits
from specexp.drafters.draft_vocabulary import DraftVocabulary
from specexp.drafters.eagle3_network import Eagle3Config, Eagle3Network
from specexp.drafters.networks import EagleHead, MedusaHeads
from specexp.drafters.target_mark import MARK, mark_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WARM_UP = 60
"""Number of optimizer steps over which the learning rate rises to its peak."""
_PLATEAU = 0.2  # share of the budget after which the learning rate falls
_DECAY = 0.8  # ratio of the loss weight of a head, or of a draft step, to the previous one's
_REGRESSION = 0.1  # weight of the distance between states; the divergence between distributions has weight 1
_ROUNDS, _REPLACED = 2, 0.5  # rounds in which states are replaced by predictions, and the share in each


class HeadTraining(lightning.LightningModule):
    """Trains a head for a target on rows of token ids ``[batch, length]``, and exports it as a ``draft-head``.

    It learns the target's next-token distribution, not the token that follows in the text. Training ends once the token
    budget is spent. Its state depends only on the batches, which have the same size, not on restarts.

    Args:
        target: The target, as given in ``pair.target``.
        tokens: Budget of training tokens across all processes.
        lr: Peak learning rate of AdamW.
    """

    drafter: str
    """The drafter class recorded in ``parts.json``."""
    head: nn.Module

    def __init__(
        self,
        target: str,
        tokens: Annotated[int, Field(ge=1)],
        lr: Annotated[float, Field(gt=0)] = 2e-3,
    ) -> None:
        super().__init__()
        from specexp.models.pair import load_pair

        pair = load_pair(target, target_dtype="float32", mode="eager")
        self.tokens = tokens
        self.lr = lr
        self._batch_tokens = 0
        # a tuple keeps it out of checkpoints
        self._target: tuple[Any, ...] = (pair.target.requires_grad_(False),)
        torch.manual_seed(0)

    @property
    def target(self) -> Any:
        """The target, with frozen weights."""
        return self._target[0].to(self.device)

    @property
    def width(self) -> int:
        """Width d of the hidden states."""
        width: int = self._target[0].get_output_embeddings().weight.shape[-1]
        return width

    @property
    def batches_done(self) -> int:
        """Number of batches that each process has trained on, counting only complete optimizer steps."""
        return self.global_step * self.trainer.accumulate_grad_batches if self._trainer else 0

    @property
    def tokens_done(self) -> int:
        """Number of tokens trained on across all processes."""
        return self.batches_done * self._batch_tokens

    @property
    def progress(self) -> float:
        """The share of the budget spent so far, from 0 to 1."""
        return min(1.0, self.tokens_done / self.tokens)

    def losses(self, hidden: torch.Tensor, batch: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss terms, keyed by name.

        ``hidden`` ``[batch, length, d]`` and ``logits`` ``[batch, length, V]`` are outputs of the target. ``batch``
        ``[batch, length]`` contains the token ids.
        """
        raise NotImplementedError

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the head's arrays in the format its drafter expects, without the target's mark."""
        weights = self.head.state_dict().items()
        return {name: value.detach().float().numpy(force=True) for name, value in weights}

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.head.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=0.0)

    @override
    def on_train_start(self) -> None:
        self.trainer.should_stop = self.progress >= 1.0

    @override
    def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> None:
        self._batch_tokens = batch.numel() * self.trainer.world_size
        scale = lr_scale(self.global_step, self.progress)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * scale

    @override
    def on_train_batch_end(self, outputs: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("train/lr_scale", lr_scale(self.global_step, self.progress))
        step_ends = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        if step_ends and self.global_step % 20 == 0 and self.trainer.is_global_zero:
            found = self.trainer.callback_metrics
            train, validation = (float(found.get(f"{one}/loss", math.nan)) for one in ("train", "validation"))
            line = f"step {self.global_step}  tokens {self.tokens_done}  loss {train:.3f}"
            print(f"{line}  validation {validation:.4f}", flush=True)
        if self.progress >= 1.0:
            self.trainer.should_stop = True

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["batch_tokens"] = self._batch_tokens

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._batch_tokens = checkpoint["batch_tokens"]

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

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """Write a ``draft-head`` artifact that is tied to the target."""
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
            hidden = self.target.base_model(input_ids=batch, use_cache=False)[0]  # [batch, length, d]
            logits = final_logits(self.target, hidden)  # [batch, length, V]
        return self.losses(hidden, batch, logits)


def lr_scale(step: int, progress: float) -> float:
    """Return the factor for the peak learning rates: a warm-up, a plateau, and a linear decay to 0.5% of the peak.

    Args:
        step: Number of optimizer steps so far.
        progress: Share of the budget spent so far.
    """
    rise = min(1.0, (step + 1) / WARM_UP)
    return rise * min(1.0, max((1.0 - progress) / (1.0 - _PLATEAU), 0.005))


class MedusaTraining(HeadTraining):
    """Trains Medusa's heads together, with the target frozen (Cai et al. 2024, section 2.2.1).

    Args:
        heads: Number of heads; head i predicts the token i + 2 positions ahead.
        training: Other arguments of `HeadTraining`.
    """

    drafter = "Medusa"

    def __init__(
        self,
        target: str,
        heads: Annotated[int, Field(ge=1, le=16)] = 4,
        **training: Any,
    ) -> None:
        super().__init__(target, **training)
        self.head = MedusaHeads(self.width, heads, blocks=1)

    @override
    def losses(self, hidden: torch.Tensor, batch: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        states, output = self.head(hidden), partial(final_logits, self.target)  # [batch, length, heads, d]
        # Head i predicts the token i + 2 positions ahead; state t is compared with the logits at t + i + 1.
        return {
            f"head_{number}": _DECAY**number
            * divergence(output(states[:, : -number - 1, number]), logits[:, number + 1 :])
            for number in range(states.shape[2])
        }


class EagleTraining(HeadTraining):
    """Trains EAGLE's layer (Li et al. 2024, section 4.2) to predict the next hidden state and, from it, the logits.

    During drafting, the head's inputs are states that it predicted itself. In training, some of the target's states are
    therefore replaced with predictions, in two rounds. The original EAGLE adds noise to the states instead.

    Args:
        heads: Number of attention heads.
        inner: Width of the feed-forward layer.
        training: Other arguments of `HeadTraining`.
    """

    drafter = "Eagle"
    head: EagleHead

    def __init__(
        self,
        target: str,
        heads: Annotated[int, Field(ge=1)] = 4,
        inner: Annotated[int, Field(ge=1)] = 704,
        **training: Any,
    ) -> None:
        super().__init__(target, **training)
        self.head = EagleHead(self.width, heads, inner)

    @override
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {**super().arrays(), "heads": np.array([self.head.heads], dtype=np.int64)}

    @override
    def losses(self, hidden: torch.Tensor, batch: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
        embedded = self.target.get_input_embeddings()(batch[:, 1:])  # [batch, length - 1, d]
        positions = torch.arange(1, batch.shape[1], device=batch.device)
        # The input at t is the embedding of token t + 1 and the state at t, as in EAGLE.
        true = states = hidden[:, :-1]  # [batch, length - 1, d]
        with torch.no_grad():
            for _ in range(_ROUNDS):
                made = self.head(embedded, states, positions)  # [batch, length - 1, d] next states
                chosen = torch.rand(made[:, :-1, :1].shape, device=made.device) < _REPLACED
                states = torch.cat((true[:, :1], torch.where(chosen, made[:, :-1], true[:, 1:])), dim=1)
        made = self.head(embedded, states, positions)
        return {
            "divergence": divergence(final_logits(self.target, made), logits[:, 1:]),
            "distance": _REGRESSION * F.smooth_l1_loss(made, hidden[:, 1:]),
        }


class Eagle3Training(HeadTraining):
    """Trains EAGLE-3's head to draft from its own states (Li et al. 2025, arXiv 2503.01840, section 3).

    The head is initialized from the target's last layer. It uses the target's embeddings and output layer, which stay
    frozen. `export` writes the published layout, which the drafter ``Eagle3`` and engines can load.

    Args:
        layers: Indices of the target's hidden states that the head uses; by default 2, N/2 and N - 3 for N layers.
        steps: Number of draft steps per row in training.
        vocabulary: JSON file with a list of the token ids to draft, most frequent first; None for all.
        vocabulary_size: Number of ids to use; None for all ids in the file. Without a file, the lowest ids are used.
        training: Other arguments of `HeadTraining`.
    """

    head: Eagle3Network

    def __init__(
        self,
        target: str,
        layers: list[int] | None = None,
        steps: Annotated[int, Field(ge=1, le=16)] = 3,
        vocabulary: str | None = None,
        vocabulary_size: Annotated[int, Field(ge=1)] | None = None,
        **training: Any,
    ) -> None:
        super().__init__(target, **training)
        self.steps = steps
        size = self._target[0].config.get_text_config().vocab_size
        reduced = DraftVocabulary.read(vocabulary, vocabulary_size, size)
        self.head = eagle3_head(self._target[0], layers, None if reduced is None else reduced.kept)

    @override
    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        self.head.save(folder)

    @override
    def _losses(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            found = self.target(input_ids=batch, use_cache=False, output_hidden_states=True)
            states = torch.cat([found.hidden_states[at] for at in self.head.config.state_layers or ()], dim=-1)
        embedded = self.head.embed(batch[:, 1:])  # one token ahead of the states
        return {
            f"step_{step}": _DECAY**step
            * divergence(self.head.logits(made), found.logits[:, step + 1 :, self.head.kept])
            for step, made in enumerate(self.head.unroll(embedded, states[:, :-1], self.steps))
        }


def eagle3_head(target: Any, layers: Sequence[int] | None, kept: torch.Tensor | None) -> Eagle3Network:
    """Return an untrained EAGLE-3 head that closely approximates the target's last layer.

    Each hidden state is normalized, so that channels with large values do not dominate the others.

    Args:
        target: A causal language model.
        layers: Indices of its hidden states to use; see `Eagle3Training`.
        kept: Ascending ids ``[Vd]`` of the tokens to draft; None for all.

    Raises:
        ValueError: the target has no such layer.
    """
    from transformers import LlamaConfig

    own = target.config.get_text_config()
    names = (
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"),
        *("rms_norm_eps", "rope_parameters", "max_position_embeddings", "bos_token_id", "eos_token_id"),
    )
    layer = LlamaConfig(**{name: getattr(own, name) for name in names}, num_hidden_layers=1)
    depth, width = own.num_hidden_layers, own.hidden_size
    read = tuple(sorted(layers or (2, depth // 2, depth - 3)))
    if not all(0 <= one <= depth for one in read):
        raise ValueError(f"layers must be from 0 to {depth}, the target's number of layers, got {list(read)}")
    size = own.vocab_size if kept is None else len(kept)
    config = Eagle3Config(layer, width, size, read, len(read), fc_norm=True)
    network = Eagle3Network(config, kept, own_head=False)
    network.share(target)
    given = network.tensors()
    last = target.base_model.layers[-1].state_dict()
    last["hidden_norm.weight"] = last.pop("input_layernorm.weight")
    with torch.no_grad():
        network.fc.weight.normal_(std=0.002)
        network.fc.weight[:, -width:] += torch.eye(width)  # the last state passes through
        network.norm.weight.copy_(target.base_model.norm.weight)
        for name, weight in last.items():
            mine = given.get("layers.0." + name)
            if mine is not None and mine.shape == weight.shape:
                mine.copy_(weight)
            elif mine is not None and mine.shape == (
                weight.shape[0],
                2 * width,
            ):  # one half for the embedding, one for the state
                mine[:, :width].normal_(std=0.02)
                mine[:, width:] = weight
    return network


def divergence(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy against the distributions ``wanted``. Both arguments are logits ``[..., V]``."""
    return F.cross_entropy(logits.flatten(0, -2), wanted.flatten(0, -2).softmax(dim=-1))
