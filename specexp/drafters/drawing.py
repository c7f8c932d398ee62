"""Exact draws from many distributions at once, without perturbing or sorting a whole vocabulary.

Drawing one token after the other, each from what is left, is what a Gumbel top-k over the vocabulary gives, and also
what independent draws give once repetitions are skipped. So tokens are drawn in rounds: a round inverts the
distribution function at a few keyed uniform numbers at once, first over blocks of the vocabulary, then inside a block,
keeps what is new, and takes it out of the distribution before the next round. A draw costs V / block + block additions
instead of V logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specexp.core.dialogue import Candidates
from specexp.core.tree import NO_CANDIDATE

if TYPE_CHECKING:
    import torch

_BLOCK = 128
_ROUNDS = (8, 16, 32, 64)
"""Uniform numbers of the first rounds; later ones take as many as the last. Which number decides which draw must not
depend on how many tokens are wanted."""

Uniforms = Callable[[NDArray[np.int64], int, int], NDArray[np.float64]]
"""From rows ``[a]``, a start and a count to the rows' uniform numbers ``[a, count]`` from there on."""


def draw(
    q: torch.Tensor,
    uniforms: Uniforms,
    k: int,
    *,
    enough: NDArray[np.float64] | None = None,
    replacement: bool = False,
) -> Candidates:
    """Draw tokens row by row.

    Args:
        q: ``[f, V]`` float32 probabilities.
        uniforms: each row's numbers in (0, 1).
        k: most tokens of a row.
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
    counts = np.zeros(rows, dtype=np.int64)
    drawn = np.zeros(rows)
    active = np.arange(rows)
    start, number = 0, 0
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
    while active.size:
        size = _ROUNDS[min(number, len(_ROUNDS) - 1)]
        block, inside, probability = _invert(left, mass, active, uniforms(active, start, size))
        token = block * _BLOCK + inside  # [a, size]
        new = probability > 0
        if not replacement:
            seen = (token[:, :, np.newaxis] == token[:, np.newaxis, :]) & np.tri(size, k=-1, dtype=np.bool_)
            new &= ~seen.any(axis=2)
        which, _ = np.nonzero(new)
        place = (counts[active][:, np.newaxis] + new.cumsum(axis=1) - 1)[new]
        row, token, probability = active[which], token[new], probability[new]
        found.append((row, place, token, probability))
        if not replacement:
            left[row, block[new], inside[new]] = 0.0
            mass[row, block[new]] = left[row, block[new]].sum(axis=-1, dtype=np.float64)
        added = np.bincount(which, minlength=active.size)
        drawn[active] += np.bincount(which, weights=probability, minlength=active.size)
        counts[active] += added
        more = (added > 0) & (counts[active] < k)
        if enough is not None:
            more &= drawn[active] < enough[active]
        active = active[more]
        start, number = start + size, number + 1
    row, place, token, probability = (np.concatenate(part) for part in zip(*found, strict=True))
    if not replacement:
        left.reshape(rows, -1)[row, token] = probability  # put back
    return _answer(row, place, token, probability, min(k, int(counts.max())), enough, q)


def _answer(
    row: NDArray[np.int64],
    place: NDArray[np.int64],
    token: NDArray[np.int64],
    probability: NDArray[np.float32],
    width: int,
    enough: NDArray[np.float64] | None,
    q: torch.Tensor,
) -> Candidates:
    """Arrange what was drawn; a round may have drawn more than was wanted."""
    fits = place < width
    row, place = row[fits], place[fits]
    tokens = np.full((q.shape[0], width), NO_CANDIDATE, dtype=np.int64)
    probabilities = np.zeros(tokens.shape, dtype=np.float32)
    tokens[row, place] = token[fits]
    probabilities[row, place] = probability[fits]
    if enough is not None:
        before = probabilities.cumsum(axis=1, dtype=np.float64) - probabilities
        surplus = before >= enough[:, np.newaxis]
        tokens[surplus] = NO_CANDIDATE
        probabilities[surplus] = 0.0
        width = int((tokens >= 0).sum(axis=1).max(initial=0))
    with np.errstate(divide="ignore"):
        log_probs = np.log(probabilities[:, :width])
    return Candidates(tokens[:, :width], log_probs, q.numpy(force=True))


def _invert(
    left: NDArray[np.float32],
    mass: NDArray[np.float64],
    rows: NDArray[np.int64],
    uniforms: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Block, place inside it and probability ``[a, m]`` of the tokens at uniform numbers ``[a, m]``.

    The probability is 0 where nothing is left.
    """
    index = np.arange(rows.size)[:, np.newaxis]
    upto = mass[rows].cumsum(axis=1)  # [a, V / block]
    total = np.maximum(upto[:, -1:], np.finfo(np.float64).tiny)
    # one search for all rows: each row's normalised function stands one higher than the row's before
    steps = (upto / total + index).ravel()
    block = steps.searchsorted((uniforms + index).ravel(), side="right").reshape(uniforms.shape)
    block = np.clip(block - index * upto.shape[1], 0, upto.shape[1] - 1)
    target = uniforms * total - (upto - mass[rows])[index, block]
    inner = left[rows[:, np.newaxis], block].cumsum(axis=2, dtype=np.float64)  # [a, m, block]
    target = np.minimum(target, np.nextafter(inner[:, :, -1], 0.0))  # blocks and tokens are rounded apart
    inside = np.minimum((inner <= target[:, :, np.newaxis]).sum(axis=2), _BLOCK - 1)
    return block, inside, left[rows[:, np.newaxis], block, inside]
