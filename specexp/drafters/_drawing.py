"""Exact draws from many distributions at once, without perturbing or sorting a whole vocabulary.

Drawing children one by one, each from what is left, is what a Gumbel top-k over the vocabulary gives; here each draw
inverts the distribution function at one keyed uniform number, first over blocks of the vocabulary, then inside one
block, so that a draw costs V / block + block additions instead of V logarithms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specexp.drafters._base import Candidates
from specexp.tree import NO_CANDIDATE

if TYPE_CHECKING:
    import torch

_BLOCK = 128


def draw(
    q: torch.Tensor,
    uniforms: NDArray[np.float64],
    *,
    enough: NDArray[np.float64] | None = None,
    replacement: bool = False,
) -> Candidates:
    """Draw tokens row by row.

    Args:
        q: ``[f, V]`` float32 probabilities.
        uniforms: ``[f, k]`` numbers in (0, 1); the j-th decides a row's j-th draw.
        enough: ``[f]`` stop drawing from a row when the tokens drawn hold this probability mass.
        replacement: leave drawn tokens in.

    Returns:
        ``[f, j]`` tokens in the order drawn, ``j <= k`` the longest row, ``NO_CANDIDATE`` where the distribution is
        used up or enough was drawn; their log-probabilities under ``q``; and ``q``.
    """
    import torch

    rows, vocabulary = q.shape
    padding = -vocabulary % _BLOCK
    padded = torch.nn.functional.pad(q, (0, padding)) if padding else q.contiguous()
    blocks = padded.view(rows, -1, _BLOCK)  # [f, V / block, block], drawn tokens are taken out, and put back
    mass = blocks.sum(dim=-1).double().numpy(force=True)  # [f, V / block]
    left = blocks.numpy(force=True)
    wanted = np.full(rows, np.inf) if enough is None else enough
    tokens = np.full(uniforms.shape, NO_CANDIDATE, dtype=np.int64)
    probabilities = np.zeros(uniforms.shape, dtype=np.float32)
    drawn = np.zeros(rows)
    active = np.flatnonzero(wanted > 0)
    taken = []
    draws = 0
    while active.size and draws < uniforms.shape[1]:
        block, inside, probability = _invert(left, mass, active, uniforms[active, draws])
        found = probability > 0
        active, block, inside, probability = active[found], block[found], inside[found], probability[found]
        tokens[active, draws] = block * _BLOCK + inside
        probabilities[active, draws] = probability
        drawn[active] += probability
        if not replacement:
            left[active, block, inside] = 0.0
            taken.append((active, block, inside, probability))
            mass[active, block] = left[active, block].sum(axis=-1, dtype=np.float64)
        draws += 1
        active = active[drawn[active] < wanted[active]]
    for row, block, inside, probability in taken:
        left[row, block, inside] = probability
    with np.errstate(divide="ignore"):
        log_probs = np.log(probabilities[:, :draws])
    return Candidates(tokens[:, :draws], log_probs, q.numpy(force=True))


def _invert(
    left: NDArray[np.float32],
    mass: NDArray[np.float64],
    rows: NDArray[np.int64],
    uniforms: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Block, place inside it and probability of the token at each row's uniform number; 0 if nothing is left."""
    index = np.arange(rows.size)
    upto = mass[rows].cumsum(axis=1)  # [a, V / block]
    target = uniforms * upto[:, -1]
    block = np.minimum((upto <= target[:, np.newaxis]).sum(axis=1), upto.shape[1] - 1)
    before = upto[index, block] - mass[rows, block]
    inner = left[rows, block].cumsum(axis=1, dtype=np.float64)  # [a, block]
    target = np.minimum(
        target - before, np.nextafter(inner[:, -1], 0.0)
    )  # blocks and tokens are rounded apart
    inside = np.minimum((inner <= target[:, np.newaxis]).sum(axis=1), _BLOCK - 1)
    return block, inside, left[rows, block, inside]
