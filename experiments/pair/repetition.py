"""Repetitive rows and the unlikelihood loss, against loops.

Small models fall into loops because a repeated piece makes its next repetition more likely. Following J. Xu et al.
2022, "Learning to Break the Loop" (pseudo-repetitive data), pieces of training text are repeated artificially. From
the third copy on, the loss is the unlikelihood of the repeated token (S. Welleck et al. 2020, section 4).
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F

EPISODE = 128


def repeating_rows(
    rows: torch.Tensor, line_ends: torch.Tensor, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in which, every `EPISODE` tokens, some text is followed by copies of its last piece.

    Args:
        rows: ``[n, length]`` token ids; what remains after whole episodes is unchanged.
        line_ends: ``[vocab]`` bool, true where a token is a line break.
        rng: Draws the pieces, of 1 to 32 tokens, more than half of them whole lines.

    Returns:
        The new rows ``[n, length]``, and their roles ``[n, length]`` int8: 0 ordinary text, 1 a copy that the loss
        ignores, 2 a copy that should have been unlikely.
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
    """Return the mean of ``-log(1 - p(target))`` of ``logits [n, vocab]`` and ``targets [n]``."""
    log_p = F.log_softmax(logits, dim=-1).gather(1, targets[:, None]).squeeze(1)
    return -torch.log1p(-log_p.exp().clamp(max=1 - 1e-4)).mean()


def _piece(episode: torch.Tensor, line_ends: torch.Tensor, rng: random.Random) -> tuple[int, int]:
    """Return the start of the repeated piece in an episode, and its length."""
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
