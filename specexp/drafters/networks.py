"""Small networks that draft from a target's hidden states: those of EAGLE (Li et al. 2024, section 4.1), Medusa (Cai et
al. 2024, section 2.1.1) and multi-token prediction. Each is trained for one target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from specexp.core.cache import additive_mask

_ROTATION = 10_000.0
_EPSILON = 1e-6


class KeyValues(Protocol):
    """A cache of keys and values, such as transformers' ``DynamicCache``."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows ``[..., heads, m, d / heads]`` to a layer, and return all rows of the layer."""


class _PlainStates(nn.Module):
    """A network with rows that read hidden states as they are."""

    def fuse_states(self, states: torch.Tensor) -> torch.Tensor:
        """Return the target's hidden states unchanged, for use as row inputs."""
        return states

    again = fuse_states  # inputs of later rows, from the states that `forward` returned


class EagleHead(_PlainStates):
    """A layer that fuses a token's embedding with the preceding hidden state, followed by one decoder layer.

    Args:
        width: d, the size of hidden states and embeddings.
        heads: number of attention heads; d / heads must be even.
        inner: width of the MLP.
    """

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"EagleHead: width / heads must be even, got {width} / {heads}")
        self.heads = heads
        self.fuse = nn.Linear(2 * width, width)
        self.norm_attention = nn.RMSNorm(width, eps=_EPSILON)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_inner = nn.RMSNorm(width, eps=_EPSILON)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        with torch.no_grad():  # an untrained head returns its input state
            self.fuse.weight.zero_()
            self.fuse.weight[:, width:] = torch.eye(width)
            self.fuse.bias.zero_()
            self.out.weight.zero_()
            self.down.weight.zero_()

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> EagleHead:
        """Build the network from its parameters and ``heads`` ``[1]``. Raises ``ValueError`` if they do not fit."""
        weights = {
            name: torch.from_numpy(np.asarray(array, dtype=np.float32))
            for name, array in arrays.items()
            if name != "heads"
        }
        try:
            inner = weights["down.weight"].shape[1]
            width = weights["fuse.bias"].shape[0]
            made = cls(width, int(np.asarray(arrays["heads"]).reshape(())), inner)
            made.load_state_dict(weights)
        except (KeyError, RuntimeError, IndexError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"the head must have the arrays of an EagleHead, got {sorted(arrays)}") from error
        return made.eval().requires_grad_(False)

    @override
    def forward(
        self,
        embedded: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor | None = None,
        cache: KeyValues | None = None,
    ) -> torch.Tensor:
        """Return the states ``[..., m, d]`` after the given tokens.

        Args:
            embedded: ``[..., m, d]`` embeddings of tokens.
            states: ``[..., m, d]`` hidden states at the preceding positions.
            positions: ``[m]`` positions of the tokens in the text.
            visible: ``[m, n + m]`` mask, true where a row attends to a column (``n`` cached rows, then the new ones).
                None means causal attention if nothing is cached, or else full attention for a single new row.
            cache: keys and values of the ``n`` earlier rows, to which those of the new rows are appended.
        """
        # f(i + 1) from f(i) and token i + 1: the tokens are one step ahead of the states (section 4.1)
        x = self.fuse(torch.cat((embedded, states), dim=-1))  # [..., m, d]
        q, k, v = (self._parted(one) for one in self.qkv(self.norm_attention(x)).chunk(3, dim=-1))
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        keys, values = (k, v) if cache is None else cache.update(k, v, 0)
        causal = visible is None and keys.shape[-2] == q.shape[-2]  # not for one row after cached ones
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, is_causal=causal)
        x = x + self.out(mixed.transpose(-2, -3).flatten(-2))
        gate, up = self.gate_up(self.norm_inner(x)).chunk(2, dim=-1)
        made: torch.Tensor = x + self.down(F.silu(gate) * up)
        return made

    def _parted(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape ``[..., m, d]`` to ``[..., heads, m, d / heads]``."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-2, -3)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate ``[..., heads, m, d / heads]`` queries or keys by their positions (RoPE)."""
        half = x.shape[-1] // 2
        rates = _ROTATION ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angles = positions[:, None].float() * rates  # [m, half]
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class MedusaHeads(nn.Module):
    """Parallel heads of residual blocks: head ``k`` predicts the hidden state ``k + 1`` positions ahead.

    Untrained heads are the identity. All heads share the target's output layer; each published head has its own copy.

    Args:
        width: d, the size of the hidden states.
        heads: number of heads, one per position ahead.
        blocks: number of residual blocks per head; the paper uses 1.
    """

    def __init__(self, width: int, heads: int, blocks: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(blocks, heads, width, width))
        self.bias = nn.Parameter(torch.zeros(blocks, heads, width))

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> MedusaHeads:
        """Build the network from ``weight`` ``[blocks, heads, d, d]`` and ``bias`` ``[blocks, heads, d]``. Raises
        ``ValueError`` for other shapes.
        """
        weight, bias = (np.asarray(arrays[name], dtype=np.float32) for name in ("weight", "bias"))
        if weight.ndim != 4 or weight.shape[:3] != bias.shape or weight.shape[2] != weight.shape[3]:
            raise ValueError(
                "the heads' weight and bias must be [blocks, heads, d, d] and [blocks, heads, d], got "
                f"{list(weight.shape)} and {list(bias.shape)}"
            )
        made = cls(weight.shape[3], weight.shape[1], weight.shape[0])
        made.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        return made.eval().requires_grad_(False)

    @override
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``[..., heads, d]`` states at the next positions, given ``[..., d]`` states."""
        states = hidden.unsqueeze(-2).expand(*hidden.shape[:-1], self.weight.shape[1], hidden.shape[-1])
        for weight, bias in zip(self.weight, self.bias, strict=True):
            # h + SiLU(W h + b), a residual block of each head (section 2.1.1)
            states = states + F.silu(torch.einsum("...hd,hed->...he", states, weight) + bias)
        return states


class MtpLayer(_PlainStates):
    """The first layer of a transformers ``MtpModel``, run over the rows of a tree. The model has the target's
    embeddings and rotary position embeddings.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layer = model.layers[0]
        self._shared = (model.embed_tokens, model.rotary_emb)
        self._kinds: dict[str, Any] = {"layer_type": model.config.layer_types[0]} if model.has_per_layer_rope else {}

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the target's embeddings of token ids."""
        embedded: torch.Tensor = self._shared[0](tokens)
        return embedded

    @override
    def forward(
        self,
        embedded: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor | None = None,
        cache: KeyValues | None = None,
    ) -> torch.Tensor:
        """Return the states ``[1, m, d]`` after the given tokens. The arguments are as in :class:`EagleHead`."""
        turn = self._shared[1](embedded, position_ids=positions[None], **self._kinds)
        mask = None if visible is None else additive_mask(visible[None, None], embedded.dtype)
        made: torch.Tensor = self.layer(
            embedded,
            states,
            position_embeddings=turn,
            attention_mask=mask,
            position_ids=positions[None],
            past_key_values=cache,
        )
        return made
