"""The network of Medusa (Cai et al. 2024, section 2.1.1): from one hidden state to those of the next positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override


class MedusaHeads(nn.Module):
    """Residual blocks beside each other: head ``k`` makes of the state at a position the one ``k + 1`` positions on.

    They begin as the identity. What makes logits of a state is the target's own output layer for all of them, where the
    published heads have a copy of it each.

    Args:
        width: d, of the hidden states.
        heads: positions looked ahead.
        blocks: residual blocks of each head; 1 as published.
    """

    def __init__(self, width: int, heads: int, blocks: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(blocks, heads, width, width))
        self.bias = nn.Parameter(torch.zeros(blocks, heads, width))

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> MedusaHeads:
        """The network of these arrays, ``weight`` ``[blocks, heads, d, d]`` and ``bias`` ``[blocks, heads, d]``.

        Raises:
            ValueError: they are something else.
        """
        weight, bias = (np.asarray(arrays[name], dtype=np.float32) for name in ("weight", "bias"))
        if weight.ndim != 4 or weight.shape[:3] != bias.shape or weight.shape[2] != weight.shape[3]:
            raise ValueError(
                f"the heads have a weight {list(weight.shape)} and a bias {list(bias.shape)}; [blocks, heads, d, d] "
                "and [blocks, heads, d] are expected"
            )
        made = cls(weight.shape[3], weight.shape[1], weight.shape[0])
        made.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        return made.eval().requires_grad_(False)

    @override
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[..., heads, d]`` states of the next positions, of ``[..., d]`` states."""
        states = hidden.unsqueeze(-2).expand(*hidden.shape[:-1], self.weight.shape[1], hidden.shape[-1])
        for weight, bias in zip(self.weight, self.bias, strict=True):
            states = states + F.silu(torch.einsum("...hd,hed->...he", states, weight) + bias)
        return states
