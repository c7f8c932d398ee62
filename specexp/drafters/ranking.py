"""Converts a draft's logits to candidates: ranked, drawn at random, or ranked with the target's noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.sampling import Processors, check_logits, on_host, to_host
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.drafters.draft_vocabulary import DraftVocabulary

if TYPE_CHECKING:
    import torch


Temperature = Annotated[float, Field(ge=0, le=100)]
TopK = Annotated[int, Field(ge=1)]
TopP = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Scoring:
    """Settings for ranking a draft model's logits; see the arguments of :class:`~specexp.drafters.DraftModel`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    coupled: bool = False

    def __post_init__(self) -> None:
        if self.coupled and self.temperature is not None:
            raise ValueError(
                f"coupled and temperature {self.temperature} were given: a coupled draft takes the target's "
                "temperature, leave one of the two out"
            )


class ToRank(NamedTuple):
    """A sequence's request, and the draft's logits for its frontier rows."""

    context: Context
    request: Request
    logits: torch.Tensor  # [f, V], or [f, Vd] with a draft vocabulary
    vocabulary: DraftVocabulary | None = None  # the same one for all sequences


def rank(scoring: Scoring, questions: Sequence[ToRank]) -> list[Candidates]:
    """Rank or draw candidates for several sequences, with the same result as for each sequence alone."""
    groups: dict[tuple[float, int], list[int]] = {}
    found: dict[int, Candidates] = {}
    for index, (context, request, logits, vocabulary) in enumerate(questions):
        temperature = 1.0 if scoring.temperature is None else scoring.temperature
        if scoring.coupled:
            temperature = context.noise_temperature
        elif request.kind is not NodeKind.POINT_MASS:
            found[index] = _drawn(_processors(scoring, temperature).scores(logits), context, request, vocabulary)
            continue
        groups.setdefault((temperature, request.k), []).append(index)
    for (temperature, k), indices in groups.items():
        alike = [questions[index] for index in indices]
        tokens, log_probs = _best(_scores(scoring, temperature, alike), k)
        if alike[0].vocabulary is not None:
            tokens = alike[0].vocabulary.ids(tokens)
        start = 0
        for index, one in zip(indices, alike, strict=True):
            rows = slice(start, start := start + one.logits.shape[0])
            found[index] = Candidates(tokens[rows], log_probs[rows])
    for index, (context, _, logits, _) in enumerate(questions):
        # NaN logits show up as NaN in the values already copied; only then are the logits themselves checked
        if not on_host(logits):
            q, read = found[index].q, found[index].log_probs
            read = read if q is None else q[:, :1]
            if scoring.temperature == 0 or read is None or np.isnan(read).any():
                check_logits(logits, "draft", context)
    return [found[index] for index in range(len(questions))]


@lru_cache(maxsize=16)
def _processors(scoring: Scoring, temperature: float) -> Processors:
    return Processors(temperature, scoring.top_k, scoring.top_p)


def _scores(scoring: Scoring, temperature: float, questions: Sequence[ToRank]) -> torch.Tensor:
    """Return the scores by which candidates are ranked, ``[rows of all questions, V]``."""
    import torch

    logits = [one.logits for one in questions]
    rule = _processors(scoring, (temperature or 1.0) if scoring.coupled else temperature)
    scores = rule.scores(logits[0] if len(logits) == 1 else torch.cat(logits))
    if scoring.coupled and temperature > 0:
        # Gumbel-max: the target takes argmax(log p + noise), the draft ranks log q plus the same noise
        noise = [_noise(one) for one in questions]
        scores = scores + (noise[0] if len(noise) == 1 else torch.cat(noise))
    return scores


def _drawn(scores: torch.Tensor, context: Context, request: Request, vocabulary: DraftVocabulary | None) -> Candidates:
    """Draw candidates from ``[f, V]`` scores, with uniform numbers that depend only on the place in the tree."""
    position = len(context) - 1
    paths = [request.rank_path(row) for row in request.rows.tolist()]

    def uniforms(rows: NDArray[np.int64], start: int, count: int) -> NDArray[np.float64]:
        return context.uniforms_below("draft", position, [paths[row] for row in rows.tolist()], start, count)

    q = scores.float().softmax(dim=-1).cpu()
    return draw(
        q if vocabulary is None else vocabulary.spread(q),
        uniforms,
        request.k,
        enough=request.enough,
        replacement=request.kind is NodeKind.DRAWN_WITH_REPLACEMENT,
    )


def _noise(question: ToRank) -> torch.Tensor:
    """Return the target's noise ``[f, V]`` at the positions after the frontier rows."""
    context, request, logits, vocabulary = question
    depths = request.depths()
    deepest = max(depths)
    size = logits.shape[-1] if vocabulary is None else vocabulary.size
    noise = context.target_noise(len(context), deepest + 1, size, logits.device)
    if vocabulary is not None:
        noise = noise[:, vocabulary.kept]
    if min(depths) == deepest:  # all rows have the same depth, as in a static tree
        return noise[deepest].expand(logits.shape[0], -1)
    return noise[np.array(depths)]


def candidates_of(request: Request, answers: Iterable[Sequence[int]]) -> Candidates:
    """Build candidates from one list of tokens per frontier row, best first, truncated or padded to ``k`` tokens."""
    tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
    for row, answer in zip(tokens, answers, strict=True):
        row[: len(answer)] = answer[: request.k]
    return Candidates(tokens)


def answered_in_part(
    request: Request, width: int, answered: Sequence[int], answer: Callable[[Request], Candidates]
) -> Candidates:
    """Return candidates from ``answer`` for the frontier rows in ``answered``, and none for the others."""
    tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
    log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
    q = np.zeros((request.rows.size, width), dtype=np.float32)
    if answered:
        chosen = list(answered)
        enough = None if request.enough is None else request.enough[chosen]
        part = answer(replace(request, rows=request.rows[chosen], enough=enough))
        assert part.log_probs is not None
        tokens[chosen, : part.tokens.shape[1]] = part.tokens
        log_probs[chosen, : part.tokens.shape[1]] = part.log_probs
        if part.q is not None:
            q[chosen] = part.q
    return Candidates(tokens, log_probs, None if request.kind is NodeKind.POINT_MASS else q)


def _best(scores: torch.Tensor, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the ``k`` best tokens of ``[f, V]`` scores with their log-probabilities, excluding impossible tokens."""
    values, indices = scores.log_softmax(dim=-1).topk(min(k, scores.shape[-1]), dim=-1)
    found, log_probs = to_host(indices, values.float())
    found[np.isneginf(log_probs)] = NO_CANDIDATE
    if found.shape[1] < k:  # the vocabulary has fewer than k tokens
        missing = ((0, 0), (0, k - found.shape[1]))
        found = np.pad(found, missing, constant_values=NO_CANDIDATE)
        log_probs = np.pad(log_probs, missing, constant_values=-np.inf)
    return found, log_probs


_BLOCK = 128  # tokens per block: inverse sampling finds the block, then the token in it
_ROUNDS = (8, 16, 32, 64)
"""The number of uniform numbers that each row uses per round of draws; later rounds use the last value. This does not
depend on ``k``, so each number always decides the same draw.
"""

Uniforms = Callable[[NDArray[np.int64], int, int], NDArray[np.float64]]
"""A function that takes rows ``[a]``, a start index and a count. It returns each row's uniform numbers from that index
on, ``[a, count]``.
"""


def draw(
    q: torch.Tensor,
    uniforms: Uniforms,
    k: int,
    *,
    enough: NDArray[np.float64] | None = None,
    replacement: bool = False,
) -> Candidates:
    """Draw tokens for each row.

    Args:
        q: ``[f, V]`` float32 probabilities.
        uniforms: function that returns each row's uniform numbers in (0, 1).
        k: maximum number of tokens drawn per row.
        enough: ``[f]`` probability mass per row: drawing stops when the row's tokens reach it.
        replacement: whether a token can be drawn again.

    Returns:
        Tokens ``[f, j]`` in the order drawn, their log-probabilities under ``q``, and ``q``. The longest row has
        ``j <= k`` tokens. Rows that ran out of tokens or reached ``enough`` are padded with ``NO_CANDIDATE``.
    """
    import torch

    rows, vocabulary = q.shape
    padding = -vocabulary % _BLOCK
    padded = torch.nn.functional.pad(q, (0, padding)) if padding else q.contiguous()
    blocks = padded.view(rows, -1, _BLOCK)  # [f, V / block, block]
    mass = blocks.sum(dim=-1).double().numpy(force=True)  # [f, V / block]
    # shares memory with q: drawn tokens are set to 0, and restored at the end
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
        if not replacement:  # skipping repeated tokens is equivalent to drawing without replacement
            observed = (token[:, :, np.newaxis] == token[:, np.newaxis, :]) & np.tri(size, k=-1, dtype=np.bool_)
            new &= ~observed.any(axis=2)
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
        left.reshape(rows, -1)[row, token] = probability  # restores q
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
    """Find the tokens selected by uniform numbers. Return ``[a, m]`` blocks, indices in them, and probabilities.

    The probability is 0 where a row has no token left.
    """
    index = np.arange(rows.size)[:, np.newaxis]
    upto = mass[rows].cumsum(axis=1)  # [a, V / block]
    total = np.maximum(upto[:, -1:], np.finfo(np.float64).tiny)
    # one search for all rows: each row's cumulative distribution is shifted by the row's number
    steps = (upto / total + index).ravel()
    block = steps.searchsorted((uniforms + index).ravel(), side="right").reshape(uniforms.shape)
    block = np.clip(block - index * upto.shape[1], 0, upto.shape[1] - 1)
    target = uniforms * total - (upto - mass[rows])[index, block]
    inner = left[rows[:, np.newaxis], block].cumsum(axis=2, dtype=np.float64)  # [a, m, block]
    # the sums over blocks and over tokens round differently, so the target may lie beyond the block's end
    target = np.minimum(target, np.nextafter(inner[:, :, -1], 0.0))
    inside = np.minimum((inner <= target[:, :, np.newaxis]).sum(axis=2), _BLOCK - 1)
    return block, inside, left[rows[:, np.newaxis], block, inside]
