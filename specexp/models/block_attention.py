"""Attention over the blocks of a tree's mask that hold anything: what a kernel is held to (DySpec, C.1)."""

from __future__ import annotations

import torch


class BlockMask:
    """A mask cut into square blocks, of which the empty ones are left out.

    The fewer blocks an order of the tree's rows leaves (``TreeShape.depth_first`` leaves few), the less is computed.

    Args:
        visible: ``[rows, keys]`` bool, true where a row sees a key; every row sees one at least.
        block: rows and keys of a block.

    Attributes:
        blocks: how many hold anything.

    Raises:
        ValueError: a row sees nothing.
    """

    def __init__(self, visible: torch.Tensor, block: int = 32) -> None:
        if not bool(visible.any(dim=1).all()):
            raise ValueError("a row of the mask sees nothing, and no softmax is of nothing")
        self.blocks = 0
        self._parts: list[tuple[slice, torch.Tensor, torch.Tensor]] = []
        keys = torch.arange(visible.shape[1])
        for start in range(0, visible.shape[0], block):
            rows = slice(start, min(start + block, visible.shape[0]))
            seen = visible[rows].any(dim=0)  # [keys]
            full = torch.zeros(-(-keys.numel() // block), dtype=torch.bool)
            full[keys[seen] // block] = True
            self.blocks += int(full.sum())
            chosen = keys[full[keys // block]]
            hidden = torch.zeros(visible[rows].shape[0], chosen.numel())
            self._parts.append((rows, chosen, hidden.masked_fill_(~visible[rows][:, chosen], -torch.inf)))

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """``softmax(q k^T / sqrt(d) + mask) v``, block row by block row; what lies in empty blocks is never touched.

        Args:
            queries: ``[heads, rows, head_dim]``.
            keys: ``[heads, keys, head_dim]``.
            values: ``[heads, keys, head_dim]``.

        Returns:
            ``[heads, rows, head_dim]``.

        Example:
            >>> mask = BlockMask(torch.ones(2, 2, dtype=torch.bool).tril(), block=1)
            >>> mask.blocks
            3
        """
        given = torch.empty_like(queries)
        scale = queries.shape[-1] ** -0.5
        for rows, chosen, hidden in self._parts:
            scores = queries[:, rows] @ keys[:, chosen].transpose(1, 2) * scale + hidden.to(queries.dtype)
            given[:, rows] = scores.softmax(dim=-1) @ values[:, chosen]
        return given
