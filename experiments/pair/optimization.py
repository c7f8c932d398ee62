"""Optimisation of the embedded models: Muon with AdamW, and the mean of the weights on a plateau."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import nn
from typing_extensions import override

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer

    from specexp.fit.budgeted import BudgetedTraining


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the hidden matrices and AdamW for embeddings and norms, as one optimiser.

    Lightning counts a step of each optimiser, and a batch must be one step. Muon: K. Jordan et al. 2024, "Muon: An
    optimizer for hidden layers in neural networks".
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
            # Shared anew at every step: loading a checkpoint replaces both.
            optimizer.param_groups, optimizer.state = [group], self.state
            optimizer.step()
        return loss


class PlateauMean(WeightAveraging):
    """Validates with and exports the mean of the weights at every ``every``-th step after the share ``begin``.

    At a high learning rate the weights jump about a valley; their mean is near its floor (stochastic weight averaging,
    Izmailov et al. 2018, section 3.2). The training itself continues from the last weights.
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
        pass  # the last checkpoint has the last weights, from which a stopped training continues

    def copy_to_module(self, trainer: Trainer) -> None:
        """Copy the mean into the module, after the last checkpoint."""
        if self._is_filled:
            super().on_train_end(trainer, self._module)

    @property
    def _is_filled(self) -> bool:
        return self._average_model is not None and int(self._average_model.n_averaged) > 0
