"""The mean of a training's weights over the end of a plateau."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import WeightAveraging
from typing_extensions import override

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer

    from specexp.fit.budgeted import BudgetedTraining


class PlateauMean(WeightAveraging):
    """What a training validates with and exports is the equally weighted mean of its weights every so many steps.

    At a high learning rate the weights jump about a valley; their mean lies near its floor, where else only a decay of
    the rate leads (stochastic weight averaging, Izmailov et al. 2018, section 3.2). The training itself goes on from
    the last weights, also after it was killed.

    Args:
        module: What is trained.
        begin: Share of the budget from which weights are counted.
        every: Steps from one to the next.
    """

    def __init__(self, module: BudgetedTraining, *, begin: float, every: int) -> None:
        super().__init__(use_buffers=False)
        self._module = module
        self._begin = begin
        self._every = every

    @override
    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return (
            step_idx is not None
            and (step_idx + 1) % self._every == 0
            and self._module.progress >= self._begin
        )

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.counted:
            super().on_validation_epoch_start(trainer, pl_module)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.counted:
            super().on_validation_epoch_end(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the last weights where they are: a training that was stopped goes on from its last checkpoint."""

    def give(self, trainer: Trainer) -> None:
        """Puts the mean into the module, after the last checkpoint."""
        if self.counted:
            super().on_train_end(trainer, self._module)

    @property
    def counted(self) -> int:
        """How many weights the mean is of."""
        return 0 if self._average_model is None else int(self._average_model.n_averaged)
