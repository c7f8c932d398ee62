"""Muon for the hidden matrices and AdamW for everything else, as one optimiser (so that a step is one step).

Muon: K. Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks": momentum, made
    orthogonal by five Newton-Schulz iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from typing_extensions import override

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class MuonAdamW(torch.optim.Optimizer):
    """Hidden matrices of ``module`` by Muon, embeddings and norms by AdamW.

    Args:
        module: The model; its parameters named ``embed`` or ``lm_head`` and those without two dimensions go
            to AdamW.
        muon_lr: Step of an orthogonal update, scaled by ``sqrt(max(1, rows / columns))``.
        adamw_lr: Step of AdamW.
        weight_decay: Decoupled, on the hidden matrices only.
    """

    def __init__(
        self, module: nn.Module, *, muon_lr: float = 0.02, adamw_lr: float = 3e-3, weight_decay: float = 0.01
    ) -> None:
        hidden: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            matrix = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
            (hidden if matrix else rest).append(parameter)
        groups: list[dict[str, Any]] = [
            {
                "params": hidden,
                "kind": "muon",
                "lr": muon_lr,
                "peak_lr": muon_lr,
                "weight_decay": weight_decay,
            },
            {"params": rest, "kind": "adamw", "lr": adamw_lr, "peak_lr": adamw_lr, "weight_decay": 0.0},
        ]
        super().__init__(groups, {})

    @torch.no_grad()
    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["kind"] == "muon":
                self._muon(parameters, group["lr"], group["weight_decay"])
            else:
                self._adamw(parameters, group["lr"])
        return loss

    def _muon(
        self, parameters: list[torch.Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        by_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
        for parameter in parameters:
            by_shape[parameter.shape].append(parameter)
        for (rows, columns), same in by_shape.items():
            directions = []
            for parameter in same:
                assert parameter.grad is not None
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - momentum)
                directions.append(parameter.grad.lerp(state["momentum"], momentum))
            updates = orthogonalised(torch.stack(directions)).to(same[0].dtype)
            scale = max(1.0, rows / columns) ** 0.5
            for parameter, update in zip(same, updates, strict=True):
                parameter.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * scale)

    def _adamw(
        self,
        parameters: list[torch.Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if "step" not in state:
                state["step"] = 0
                state["first"] = torch.zeros_like(parameter)
                state["second"] = torch.zeros_like(parameter)
            state["step"] += 1
            state["first"].lerp_(parameter.grad, 1 - betas[0])
            state["second"].mul_(betas[1]).addcmul_(parameter.grad, parameter.grad, value=1 - betas[1])
            first = 1 - betas[0] ** state["step"]
            second = 1 - betas[1] ** state["step"]
            parameter.addcdiv_(
                state["first"], (state["second"] / second).sqrt_().add_(eps), value=-lr / first
            )


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices with the same singular vectors and singular values near 1 (between about 0.7 and 1.2).

    Args:
        matrices: ``[n, rows, columns]``.

    Returns:
        ``[n, rows, columns]``, in bfloat16 on a GPU; few processors multiply it fast, so elsewhere in float32.
    """
    a, b, c = _COEFFICIENTS
    x: torch.Tensor = matrices.bfloat16() if matrices.is_cuda else matrices.float()  # [n, rows, columns]
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
