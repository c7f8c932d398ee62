"""Training of a causal language model: cross-entropy, optionally distilled from a teacher, against a
budget."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from experiments.pair.averaging import PlateauMean
from experiments.pair.export import export_model
from experiments.pair.optimizer import MuonAdamW
from experiments.pair.repetition import repeating_rows, unlikelihood
from specexp.fit.budgeted import BudgetedTraining
from specexp.models.sources import check_source

if TYPE_CHECKING:
    from lightning import Callback
    from transformers import PreTrainedTokenizerBase


class CausalLMTraining(BudgetedTraining):
    """Trains a `LlamaForCausalLM` on rows of token ids ``[batch, length]``.

    The learning rate follows the progress of the budget, whichever of ``minutes`` and ``max_steps`` is nearer
    to its end: a short rise, a plateau, then a line down to zero. Minutes spent are kept in the checkpoint. A long
    training is several of these, each a phase that starts from the weights of the one before: on the plateau alone as
    long as one likes, and at last down.

    Args:
        architecture: Arguments of `transformers.LlamaConfig`.
        minutes: Wall-clock budget of training; no limit when absent.
        max_steps: Limit on optimiser steps; no limit when absent. One of the two must be given.
        muon_lr: See `MuonAdamW`.
        adamw_lr: See `MuonAdamW`.
        weight_decay: See `MuonAdamW`.
        plateau: Share of the budget after which the learning rate goes down; 1 ends on the plateau.
        start: Folder of an exported model whose weights are the first ones; random ones when absent. A model of a
            fraction of the layers is `deepened`.
        teacher: Folder or hub id of a model to be distilled from; its vocabulary must be the same.
        distillation: Weight of the divergence from the teacher; the rest is cross-entropy.
        distill_from: Share of the budget from which the teacher is asked; before, which is several times as fast, all
            is cross-entropy.
        repetition_from: Share of the budget from which the last row of a batch is made repetitive, see
            `repetition`.
        repetition_weight: Weight of its unlikelihood.
        mean_from: Share of the budget from which weights enter the mean that is validated and exported, see
            `PlateauMean`; the last weights are exported when absent.
        mean_every: Steps between two weights of that mean.
        seed: Seed of the initial weights and of the repeated pieces.
    """

    def __init__(
        self,
        architecture: dict[str, Any],
        minutes: float | None = None,
        max_steps: int | None = None,
        muon_lr: float = 0.02,
        adamw_lr: float = 3e-3,
        weight_decay: float = 0.01,
        plateau: float = 0.3,
        start: str | None = None,
        teacher: str | None = None,
        distillation: float = 0.8,
        distill_from: float = 0.0,
        repetition_from: float = 1.0,
        repetition_weight: float = 0.5,
        mean_from: float | None = None,
        mean_every: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__(minutes, max_steps, plateau)
        from transformers import LlamaConfig, LlamaForCausalLM

        self.muon_lr = muon_lr
        self.adamw_lr = adamw_lr
        self.weight_decay = weight_decay
        self.distillation = distillation
        self.distill_from = distill_from
        self.repetition_from = repetition_from
        self.repetition_weight = repetition_weight
        self.mean = None if mean_from is None else PlateauMean(self, begin=mean_from, every=mean_every)
        self.seed = seed
        torch.manual_seed(seed)
        config = LlamaConfig(**{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **architecture})
        self.model: nn.Module = LlamaForCausalLM(config)
        with torch.no_grad():  # outputs of a block start at zero, so that a deep stack starts as the identity
            for name, parameter in self.model.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    parameter.zero_()
        if start is not None:
            first = _pretrained(start, config.vocab_size, "start")
            self.model.load_state_dict(deepened(first.state_dict(), _depth(first, config, start)))
        self._teacher: tuple[nn.Module, ...] = (
            ()
            if teacher is None
            else (_pretrained(teacher, config.vocab_size, "teacher").requires_grad_(False),)
        )
        self.line_ends: torch.Tensor
        self.register_buffer("line_ends", torch.zeros(config.vocab_size, dtype=torch.bool))

    @override
    def setup(self, stage: str) -> None:
        """Learns from the tokenizer of the data which tokens are line breaks."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is not None:
            tokenizer = data.tokenizer()
            if len(tokenizer) > self.line_ends.numel():
                raise ValueError(
                    f"the tokenizer has {len(tokenizer)} tokens, but architecture.vocab_size is "
                    f"{self.line_ends.numel()}"
                )
            for token, index in tokenizer.get_vocab().items():
                self.line_ends[index] = "Ċ" in token

    @override
    def configure_callbacks(self) -> list[Callback]:
        return [] if self.mean is None else [self.mean]

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return MuonAdamW(
            self.model, muon_lr=self.muon_lr, adamw_lr=self.adamw_lr, weight_decay=self.weight_decay
        )

    @override
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """The loss of one batch ``[batch, length]`` of token ids."""
        role = torch.zeros_like(batch, dtype=torch.int8)  # [batch, length]
        if self.progress >= self.repetition_from:
            rng = random.Random(f"{self.seed}/{self.batches_done}")
            batch = batch.clone()
            batch[-1:], role[-1:] = repeating_rows(batch[-1:], self.line_ends, rng)
        logits = self.model(input_ids=batch, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        targets, role = batch[:, 1:].flatten(), role[:, 1:].flatten()
        ordinary = role == 0
        if bool(ordinary.all()):
            loss = cross_entropy = F.cross_entropy(logits, targets)
        else:
            loss = cross_entropy = F.cross_entropy(logits, targets.masked_fill(~ordinary, -100))
            repeated = unlikelihood(logits[role == 2], targets[role == 2])
            loss = loss + self.repetition_weight * repeated
            self.log("train/unlikelihood", repeated)
        if self._teacher and self.progress >= self.distill_from:
            loss = (1 - self.distillation) * loss + self.distillation * self._divergence(
                batch, logits, ordinary
            )
        self.log("train/loss", cross_entropy, prog_bar=True)
        return loss

    def _divergence(self, batch: torch.Tensor, logits: torch.Tensor, ordinary: torch.Tensor) -> torch.Tensor:
        """KL from the teacher to the student, mean over the ordinary tokens."""
        with torch.no_grad():
            wanted = self._teacher[0](input_ids=batch, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        per_token = F.kl_div(
            F.log_softmax(logits, -1), F.log_softmax(wanted, -1), reduction="none", log_target=True
        ).sum(-1)
        divergence = per_token[ordinary].mean()
        self.log("train/divergence", divergence)
        return divergence

    @override
    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        logits = self.model(input_ids=batch, use_cache=False).logits[:, :-1].flatten(0, 1).float()
        loss = F.cross_entropy(logits, batch[:, 1:].flatten())
        self.log("validation/loss", loss, prog_bar=True, batch_size=len(batch))

    @override
    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """A Hugging Face folder."""
        if self.mean is not None:
            self.mean.give(self.trainer)
        export_model(self.model, tokenizer, folder)


def deepened(weights: dict[str, torch.Tensor], times: int) -> dict[str, torch.Tensor]:
    """The weights of a model with ``times`` as many layers that computes what these compute.

    Each layer is followed by ``times - 1`` copies of itself whose two outputs into the residual stream are zero: the
    copies have the gradients of a trained layer and at first change nothing (block expansion, Wu et al. 2024, LLaMA
    Pro, section 3.2).
    """
    deep = {}
    for name, weight in weights.items():
        layer = re.search(r"(?<=\.layers\.)\d+", name)
        for copy in range(times if layer else 1):
            place = (
                f"{int(layer[0]) * times + copy}".join((name[: layer.start()], name[layer.end() :]))
                if layer
                else name
            )
            silent = copy > 0 and name.endswith(("o_proj.weight", "down_proj.weight"))
            deep[place] = torch.zeros_like(weight) if silent else weight.clone()
    return deep


def _depth(first: nn.Module, config: Any, source: str) -> int:
    """How many times the layers of the first model the new one has."""
    given: Any = first.config
    same = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    for name in same:
        if getattr(given, name) != getattr(config, name):
            raise ValueError(
                f"the start {source!r} has {name} {getattr(given, name)}, but architecture.{name} is "
                f"{getattr(config, name)}"
            )
    times, rest = divmod(config.num_hidden_layers, given.num_hidden_layers)
    if rest:
        raise ValueError(
            f"the start {source!r} has {given.num_hidden_layers} layers; architecture.num_hidden_layers is "
            f"{config.num_hidden_layers}, and a multiple of them is needed"
        )
    return int(times)


def _pretrained(source: str, vocab_size: int, role: str) -> nn.Module:
    """A model in evaluation mode; a teacher is kept out of the student's submodules, so it is in no checkpoint."""
    from transformers import AutoModelForCausalLM

    check_source(role, source)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if model.config.vocab_size != vocab_size:
        raise ValueError(
            f"the {role} {source!r} has {model.config.vocab_size} tokens, "
            f"but architecture.vocab_size is {vocab_size}"
        )
    evaluated: nn.Module = model.eval()
    return evaluated
