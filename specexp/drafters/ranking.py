"""From a draft's logits to candidates: ranked, drawn, or ranked with the target's own noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.sampling import Processors, check_logits, on_host, to_host
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.drafters.drawing import draw

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Scoring:
    """How a draft model's answers become candidates; the arguments of a :class:`~specexp.drafters.DraftModel`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    coupled: bool = False


class ToRank(NamedTuple):
    """What candidates are chosen for.

    Attributes:
        context: the sequence.
        request: the builder's question.
        logits: ``[f, V]`` of the frontier rows.
    """

    context: Context
    request: Request
    logits: torch.Tensor


class Ranking:
    """Chooses candidates; it keeps the processors of the last temperature."""

    def __init__(self) -> None:
        self._processors: Processors | None = None

    def candidates(
        self, scoring: Scoring, context: Context, request: Request, logits: torch.Tensor
    ) -> Candidates:
        """Rank or draw.

        Args:
            scoring: how is chosen.
            context: the sequence.
            request: the builder's question.
            logits: ``[f, V]`` of the frontier rows.
        """
        return self.together(scoring, [ToRank(context, request, logits)])[0]

    def together(self, scoring: Scoring, asked: Sequence[ToRank]) -> list[Candidates]:
        """Rank or draw for several sequences: those ranked alike in one go, which says of each what it would alone."""
        groups: dict[tuple[float, int], list[int]] = {}
        found: dict[int, Candidates] = {}
        for index, (context, request, logits) in enumerate(asked):
            temperature = 1.0 if scoring.temperature is None else scoring.temperature
            if scoring.coupled:
                temperature = context.noise_temperature
            elif request.kind is not NodeKind.POINT_MASS:
                scores = self._processors_at(scoring, temperature).scores(logits)
                found[index] = _drawn(scores, context, request)
                continue
            groups.setdefault((temperature, request.k), []).append(index)
        for (temperature, k), indices in groups.items():
            alike = [asked[index] for index in indices]
            best = _best(self._scores(scoring, temperature, alike), k)
            start = 0
            for index, one in zip(indices, alike, strict=True):
                found[index] = best.rows(start, start := start + one.logits.shape[0])
        for index, (context, _, logits) in enumerate(asked):
            if not on_host(logits):
                q, read = found[index].q, found[index].log_probs
                read = read if q is None else q[:, :1]
                if scoring.temperature == 0 or read is None or np.isnan(read).any():
                    check_logits(logits, "draft", context)
        return [found[index] for index in range(len(asked))]

    def _scores(self, scoring: Scoring, temperature: float, asked: Sequence[ToRank]) -> torch.Tensor:
        """``[f of all, V]`` what candidates are ranked by."""
        import torch

        logits = [one.logits for one in asked]
        scores = self._processors_at(
            scoring, (temperature or 1.0) if scoring.coupled else temperature
        ).scores(logits[0] if len(logits) == 1 else torch.cat(logits))
        if scoring.coupled and temperature > 0:
            noise = [_noise(one) for one in asked]
            scores = scores + (noise[0] if len(noise) == 1 else torch.cat(noise))
        return scores

    def _processors_at(self, scoring: Scoring, temperature: float) -> Processors:
        if self._processors is None or self._processors.temperature != temperature:
            self._processors = Processors(temperature, scoring.top_k, scoring.top_p)
        return self._processors


def _drawn(scores: torch.Tensor, context: Context, request: Request) -> Candidates:
    """Drawn from ``[f, V]`` scores, by uniform numbers of their places."""
    position = len(context) - 1
    paths = [request.rank_path(row) for row in request.rows.tolist()]

    def uniforms(rows: NDArray[np.int64], start: int, count: int) -> NDArray[np.float64]:
        return context.uniforms_below("draft", position, [paths[row] for row in rows.tolist()], start, count)

    return draw(
        scores.float().softmax(dim=-1).cpu(),
        uniforms,
        request.k,
        enough=request.enough,
        replacement=request.kind is NodeKind.DRAWN_WITH_REPLACEMENT,
    )


def _noise(asked: ToRank) -> torch.Tensor:
    """``[f or 1, V]`` the target's own, of the positions that the frontier's continuations would have."""
    context, request, logits = asked
    depths = request.depths()
    deepest = max(depths)
    noise = context.target_noise(len(context), deepest + 1, logits.shape[-1], logits.device)
    if min(depths) == deepest:  # as of a static tree: all take the noise of one position
        return noise[deepest].expand(logits.shape[0], -1)
    return noise[np.array(depths)]


def answered_in_part(
    request: Request, width: int, answered: Sequence[int], answer: Callable[[Request], Candidates]
) -> Candidates:
    """Candidates where only some rows of the frontier can have any.

    Args:
        request: the builder's question.
        width: tokens of the vocabulary.
        answered: indices of those rows of the frontier.
        answer: gives their candidates, with log-probabilities.
    """
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


def _best(scores: torch.Tensor, k: int) -> Candidates:
    """The ``k`` best of ``[f, V]`` scores with their log-probabilities; removed tokens are no candidates."""
    values, indices = scores.log_softmax(dim=-1).topk(min(k, scores.shape[-1]), dim=-1)
    found, log_probs = to_host(indices, values.float())
    found[np.isneginf(log_probs)] = NO_CANDIDATE
    if found.shape[1] < k:
        missing = ((0, 0), (0, k - found.shape[1]))
        found = np.pad(found, missing, constant_values=NO_CANDIDATE)
        log_probs = np.pad(log_probs, missing, constant_values=-np.inf)
    return Candidates(found, log_probs)
