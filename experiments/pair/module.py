"""Training of a causal language model on a budget of tokens: cross-entropy, optionally distilled from a teacher.

The optimiser is Muon with AdamW. Optionally the mean of the weights on a plateau is exported, and repetitive rows
train the model not to loop.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import WeightAveraging
from pydantic import Field
from torch import nn
from typing_extensions import override

from specexp.core.packed import is_packed, load_packed
from specexp.fit.budgeted import BudgetedTraining
from specexp.fit.heads import given_tokens
from specexp.models.sources import check_source, sources_of

if TYPE_CHECKING:
    from lightning import Callback, LightningModule, Trainer
    from transformers import PreTrainedTokenizerBase


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the hidden matrices and AdamW for embeddings and norms, as one optimiser.

    They are one because Lightning counts a step per optimiser, and a batch must be one step. Muon: K. Jordan et al.
    2024, "Muon: An optimizer for hidden layers in neural networks".
    """

    def __init__(self, module: nn.Module, *, muon_lr: float, adamw_lr: float) -> None:
        hidden: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            matrix = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
            (hidden if matrix else rest).append(parameter)
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(hidden, lr=muon_lr, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
        )
        super().__init__([group for one in self._optimizers for group in one.param_groups], {})

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer, group in zip(self._optimizers, self.param_groups, strict=True):
            # Shared again at every step, because loading a checkpoint replaces both.
            optimizer.param_groups, optimizer.state = [group], self.state
            optimizer.step()
        return loss


class PlateauMean(WeightAveraging):
    """Averages the weights of every ``every``-th step after the share ``begin``, to validate with and to export.

    At a high learning rate the weights oscillate around a minimum of the loss, and their mean is near it (stochastic
    weight averaging, Izmailov et al. 2018, section 3.2). The training itself continues from the last weights.
    """

    def __init__(self, module: BudgetedTraining, *, begin: float, every: int) -> None:
        super().__init__(use_buffers=False)
        self._module = module
        self._begin = begin
        self._every = every

    @override
    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        on_step = step_idx is not None and (step_idx + 1) % self._every == 0
        return on_step and self._module.progress > self._begin

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_filled:
            super().on_validation_epoch_start(trainer, pl_module)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_filled:
            super().on_validation_epoch_end(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pass  # the last checkpoint must have the last weights, not their mean, so that training can continue

    def copy_to_module(self, trainer: Trainer) -> None:
        """Copy the mean into the module, after the last checkpoint."""
        if self._is_filled:
            super().on_train_end(trainer, self._module)

    @property
    def _is_filled(self) -> bool:
        return self._average_model is not None and int(self._average_model.n_averaged) > 0


EPISODE = 128


def repeating_rows(
    rows: torch.Tensor, line_ends: torch.Tensor, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in which each stretch of `EPISODE` tokens is some text followed by copies of its last piece.

    Small models fall into loops because a repeated piece makes its next repetition more likely. Pseudo-repetitive data
    (J. Xu et al. 2022, "Learning to Break the Loop") trains against that.

    Args:
        rows: ``[n, length]`` token ids; tokens after the last whole episode are unchanged.
        line_ends: ``[vocab]`` bool, true where a token is a line break.
        rng: Draws the pieces: 1 to 32 tokens, and whole lines in more than half of the cases.

    Returns:
        The new rows ``[n, length]``, and the roles of their tokens ``[n, length]`` int8: 0 ordinary text, 1 a copy that
        the loss ignores, 2 a copy that the unlikelihood loss makes less likely.
    """
    rows = rows.clone()
    role = torch.zeros_like(rows, dtype=torch.int8)
    for row, roles in zip(rows, role, strict=True):
        for start in range(0, len(row) - EPISODE + 1, EPISODE):
            episode, marks = row[start : start + EPISODE], roles[start : start + EPISODE]
            begin, period = _piece(episode, line_ends, rng)
            end = begin + period
            copies = torch.arange(EPISODE - end) % period
            episode[end:] = episode[begin:end][copies]
            marks[end:] = 1
            marks[begin + max(2 * period, min(period + 8, EPISODE)) :] = 2
    return rows, role


def unlikelihood(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean ``-log(1 - p(target))`` for ``logits [n, vocab]`` and ``targets [n]`` (Welleck et al. 2020)."""
    log_p = F.log_softmax(logits, dim=-1).gather(1, targets[:, None]).squeeze(1)
    return -torch.log1p(-log_p.exp().clamp(max=1 - 1e-4)).mean()  # finite at p = 1


def _piece(episode: torch.Tensor, line_ends: torch.Tensor, rng: random.Random) -> tuple[int, int]:
    """Choose the piece of an episode to repeat; return its start and length in tokens."""
    if rng.random() < 0.6:
        breaks = line_ends[episode].nonzero().flatten().tolist()
        pairs = [
            (a, b - a)
            for i, a in enumerate(breaks)
            for b in breaks[i + 1 : i + 3]
            if 3 <= b - a <= 32 and b <= 72  # room for at least one copy
        ]
        if pairs:
            return rng.choice(pairs)
    period = min(32, max(1, round(2 ** rng.uniform(0, 5))))  # short periods are as frequent as long ones
    return rng.randrange(8, 72 - period), period


REPETITION_WEIGHT = 0.5


class CausalLMTraining(BudgetedTraining):
    """Trains a `LlamaForCausalLM` on rows of token ids ``[batch, length]``.

    The learning rate rises, stays on a plateau, and falls linearly to zero. A long training may consist of stages, each
    with its own work folder and the exported weights of the stage before as ``start``. Any number of stages is on the
    plateau, then the rate falls in one stage. A killed stage continues from its last checkpoint, with the same batches.

    Args:
        architecture: Arguments of `transformers.LlamaConfig`.
        tokens: Budget of training tokens.
        muon_lr: Peak learning rate of the hidden matrices.
        adamw_lr: Peak learning rate of embeddings and norms.
        plateau: Share of the budget after which the learning rate falls; 1 ends on the plateau.
        start: An embedded model or the folder of an exported one, with the initial weights; random weights by default.
            The model may be narrower than the architecture, see `grow`.
        teacher: Folder or hub id of a model to distil from; its vocabulary must be the same.
        distillation: Weight of the divergence from the teacher in the loss; cross-entropy has the rest.
        distill_from: Share of the budget after which the teacher is used. Training without it is several times as fast.
        repetition_from: Share of the budget after which the last row of a step is made repetitive (`repeating_rows`).
        mean_from: Share of the budget after which weights enter the mean that is validated and exported, see
            `PlateauMean`; by default the last weights are exported.
        mean_every: Steps between two weights that enter the mean.
        seed: Seed of the initial weights and of the repeated pieces.
    """

    def __init__(
        self,
        architecture: dict[str, Any],
        tokens: Annotated[int, Field(ge=1)],
        muon_lr: float = 0.02,
        adamw_lr: float = 3e-3,
        plateau: float = 0.3,
        start: str | None = None,
        teacher: str | None = None,
        distillation: float = 0.8,
        distill_from: float = 0.0,
        repetition_from: float = 1.0,
        mean_from: float | None = None,
        mean_every: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__(tokens, plateau)
        from transformers import LlamaConfig, LlamaForCausalLM

        self.muon_lr = muon_lr
        self.adamw_lr = adamw_lr
        self.distillation = distillation
        self.distill_from = distill_from
        self.repetition_from = repetition_from
        self.mean = None if mean_from is None else PlateauMean(self, begin=mean_from, every=mean_every)
        self.seed = seed
        torch.manual_seed(seed)
        first: Any = None if start is None else _pretrained(start, architecture["vocab_size"], "start")
        shape = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **architecture}
        if first is not None:
            # new channels are zero and shrink the mean square; eps must shrink by the same factor
            shape["rms_norm_eps"] = (
                first.config.rms_norm_eps * first.config.hidden_size / shape["hidden_size"]
            )
        config = LlamaConfig(**shape)
        self.model: nn.Module = LlamaForCausalLM(config)
        with torch.no_grad():  # zero output projections: every block starts as the identity
            for name, parameter in self.model.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    parameter.zero_()
        if first is not None:
            kept = ("num_hidden_layers", "head_dim")
            if any(getattr(first.config, name) != getattr(config, name) for name in kept):
                raise ValueError(
                    f"start: {start!r} must have the architecture's number of layers and width of heads"
                )
            grow(self.model, first)
        self._teacher: tuple[nn.Module, ...] = ()  # in a tuple, so that checkpoints leave it out
        if teacher is not None:
            self._teacher = (_pretrained(teacher, config.vocab_size, "teacher").requires_grad_(False),)
        self.line_ends: torch.Tensor
        self.register_buffer("line_ends", torch.zeros(config.vocab_size, dtype=torch.bool))

    @override
    def setup(self, stage: str) -> None:
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is not None:
            for token, index in data.tokenizer().get_vocab().items():
                self.line_ends[index] = "Ċ" in token

    @override
    def configure_callbacks(self) -> list[Callback]:
        return [] if self.mean is None else [self.mean]

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return MuonAdamW(self.model, muon_lr=self.muon_lr, adamw_lr=self.adamw_lr)

    @override
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        batch, given = given_tokens(batch)
        role = -given.to(torch.int8)  # [batch, length]; the loss counts role 0
        last_of_step = (batch_idx + 1) % self.accumulated == 0
        if last_of_step and self.progress >= self.repetition_from:
            rng = random.Random(f"{self.seed}/{self.batches_done}")
            batch = batch.clone()
            batch[-1:], role[-1:] = repeating_rows(batch[-1:], self.line_ends, rng)
        logits = _logits(self.model, batch)  # [batch * (length - 1), V]
        targets, role = batch[:, 1:].flatten(), role[:, 1:].flatten()
        ordinary = role == 0
        loss = cross_entropy = F.cross_entropy(logits, targets.masked_fill(~ordinary, -100))
        if bool((role == 2).any()):
            repeated = unlikelihood(logits[role == 2], targets[role == 2])
            loss = loss + REPETITION_WEIGHT * repeated
            self.log("train/unlikelihood", repeated)
        if self._teacher and self.progress >= self.distill_from:
            with torch.no_grad():
                wanted = _logits(self._teacher[0], batch)
            per_token = F.kl_div(
                logits.log_softmax(-1), wanted.log_softmax(-1), reduction="none", log_target=True
            )
            divergence = per_token.sum(-1)[ordinary].mean()  # KL(teacher || student)
            self.log("train/divergence", divergence)
            loss = (1 - self.distillation) * loss + self.distillation * divergence
        self.log("train/loss", cross_entropy, prog_bar=True)
        return loss

    @override
    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        batch, given = given_tokens(batch)
        targets = batch.masked_fill(given, -100)[:, 1:].flatten()
        loss = F.cross_entropy(_logits(self.model, batch), targets)
        self.log("validation/loss", loss, prog_bar=True, batch_size=len(batch))

    @override
    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """Write a Hugging Face folder: bfloat16 safetensors, configuration and tokenizer.

        Each file is replaced atomically; other files of the folder, such as a model card, stay.
        """
        if self.mean is not None:
            self.mean.copy_to_module(self.trainer)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        model: Any = self.model
        copy = type(model)(model.config)
        copy.load_state_dict(model.state_dict())
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            copy.to(torch.bfloat16).save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            for file in sorted(Path(temporary).iterdir()):
                file.chmod(0o644)
                file.replace(folder / file.name)


def _logits(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the float32 logits ``[batch * (length - 1), V]`` of all tokens but each row's first."""
    logits: torch.Tensor = model(input_ids=batch, use_cache=False).logits
    return logits[:, :-1].flatten(0, 1).float()


def grow(wide: nn.Module, narrow: nn.Module) -> None:
    """Make a model compute the same as a narrower one with as many layers; its new parts learn from the first step on.

    The narrow weights fill the leading corner of every matrix. New channels of the residual stream start at zero and
    are read by random weights. New heads and neurons have random inputs and zero output weights.
    """
    given: dict[str, torch.Tensor] = narrow.state_dict()
    config: Any = wide.config
    share = narrow.config.hidden_size / config.hidden_size  # type: ignore[union-attr]
    with torch.no_grad():
        for name, weight in wide.state_dict().items():
            corner = weight[tuple(slice(size) for size in given[name].shape)]  # a view
            if weight.ndim == 1:  # scaled: zero channels lower the root mean square that a norm divides by
                weight.fill_(given[name].mean())
                corner.copy_(given[name])
                weight *= share**0.5
            else:
                if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                    weight.zero_()
                corner.copy_(given[name])


def _pretrained(source: str, vocab_size: int, role: str) -> nn.Module:
    from transformers import AutoModelForCausalLM

    source = sources_of(source)[0]
    check_source(role, source)
    model: Any = (
        load_packed(source, torch.float32)
        if is_packed(source)
        else AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    )
    if model.config.vocab_size != vocab_size:
        raise ValueError(
            f"the {role} {source!r} must have architecture.vocab_size = {vocab_size} tokens, "
            f"got {model.config.vocab_size}"
        )
    evaluated: nn.Module = model.eval()
    return evaluated
