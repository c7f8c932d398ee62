"""Rows that repeat themselves, and the loss that teaches a model not to go on repeating.

Small models fall into loops because a repeated piece makes its next repetition more likely. Following J. Xu
et al. 2022, "Learning to Break the Loop" (pseudo-repetitive data), pieces of training text are repeated
artificially; from the third copy on, the loss is the unlikelihood of the repeated token (S. Welleck et al.
2020, section 4).
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F

EPISODE = 128


def repeating_rows(
    rows: torch.Tensor, line_ends: torch.Tensor, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in which, every `EPISODE` tokens, some text is followed by copies of its last piece.

    Args:
        rows: ``[n, length]`` token ids; a multiple of `EPISODE` long is used, the rest stays as it is.
        line_ends: ``[vocab]`` bool, true where a token is a line break.
        rng: Draws the pieces: half of them whole lines, half of any position; periods of 1 to 32 tokens.

    Returns:
        The new rows ``[n, length]``, and ``[n, length]`` int8: 0 ordinary text, 1 a copy to be ignored by the
        loss, 2 a copy that should have been unlikely.
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
    """Mean of ``-log(1 - p(target))``: ``logits [n, vocab]``, ``targets [n]``."""
    log_p = F.log_softmax(logits, dim=-1).gather(1, targets[:, None]).squeeze(1)
    return -torch.log1p(-log_p.exp().clamp(max=1 - 1e-4)).mean()


def _piece(episode: torch.Tensor, line_ends: torch.Tensor, rng: random.Random) -> tuple[int, int]:
    """Where the repeated piece begins in an episode, and its length."""
    if rng.random() < 0.6:
        breaks = line_ends[episode].nonzero().flatten().tolist()
        pairs = [
            (a, b - a)
            for i, a in enumerate(breaks)
            for b in breaks[i + 1 : i + 3]
            if 3 <= b - a <= 32 and b <= 72
        ]
        if pairs:
            return rng.choice(pairs)
    period = min(32, max(1, round(2 ** rng.uniform(0, 5))))
    return rng.randrange(8, 72 - period), period
