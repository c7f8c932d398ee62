"""Learning a controller as a Lightning module: a training step decodes one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule

from specexp.controllers import QLearning

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.data import Prompt

_STATE = "specexp"


class ControllerLearning(LightningModule):
    """Decodes prompt after prompt; the arm's drafter and controller learn as they do when decoding.

    There is no gradient: an optimiser without effect is Lightning's clock, so that a step is a prompt. Which prompt is
    next is counted here, for Lightning starts its loader anew when it resumes. The models are no submodules; what was
    learned travels in the checkpoint, as tensors and plain values.

    Args:
        arm: with a controller that learns.
        prompts: in the order they are learned from, again and again.

    Attributes:
        done: prompts learned from.
    """

    def __init__(self, arm: EngineArm, prompts: Sequence[Prompt]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.arm = arm
        self.prompts = list(prompts)
        self.done = 0
        self._clock = torch.nn.Parameter(torch.zeros(()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The clock."""
        return torch.optim.SGD([self._clock], lr=0.0)

    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        """The batch itself: it holds no tensor."""
        return batch

    def training_step(self, batch: Prompt, batch_idx: int) -> None:
        """Decode the next prompt."""
        record = self.arm.decode(self.prompts[self.done % len(self.prompts)])
        self.done += 1
        curves = {
            "tokens_per_step": record.decode_tokens / max(record.steps, 1),
            "utilisation": record.accepted_drafts / max(record.drafted_nodes, 1),
            "draft_passes_per_step": record.draft_passes / max(record.steps, 1),
            "tokens_per_second" if record.clock == "measured" else "modelled_tokens_per_second": (
                record.decode_tokens / max(record.decode_seconds, 1e-9)
            ),
        }
        controller = self.arm.parts.controller
        if isinstance(controller, QLearning):
            curves["epsilon"] = controller.exploring
            curves["q_change"] = controller.mean_change
        self.log_dict({f"learn/{name}": float(value) for name, value in curves.items()}, batch_size=1)
        optimizer: Any = self.optimizers()
        optimizer.step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take along what was learned."""
        strategy = self.arm.parts
        checkpoint[_STATE] = {
            "done": self.done,
            "controller": strategy.controller.state_dict(),
            "drafter": {} if strategy.drafter is None else strategy.drafter.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue from what was learned."""
        state, strategy = checkpoint[_STATE], self.arm.parts
        self.done = int(state["done"])
        strategy.controller.load_state_dict(state["controller"])
        if strategy.drafter is not None:
            strategy.drafter.load_state_dict(state["drafter"])
