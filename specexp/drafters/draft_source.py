"""Where a :class:`~specexp.drafters.DraftModel` has its answers from: a model here, or a recording of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.parts import Candidates, Request
from specexp.core.sampling import Processors, check_logits, on_host, to_host
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.drafters.drawing import draw

if TYPE_CHECKING:
    import torch

    from specexp.core.runtime import Runtime


@dataclass(frozen=True)
class Scoring:
    """How a draft model's answers become candidates; the arguments of a :class:`~specexp.drafters.DraftModel`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    coupled: bool = False


@dataclass(frozen=True, slots=True)
class Fed:
    """The rows of one pass: committed tokens not fed before, then new nodes of the step's tree.

    Attributes:
        tokens: ``[m]`` of all rows.
        depths: ``[m]`` their distance from the last committed row.
        pending: committed tokens that the step's first pass feeds, the root last.
        known: nodes fed in earlier passes of this step, the root (node 0) among them; 0 in the first pass.
        ancestors: nodes from the root down to every node of the step so far, itself included; the new ones last.
    """

    tokens: Sequence[int]
    depths: Sequence[int]
    pending: int
    known: int
    ancestors: Sequence[Sequence[int]]


class DraftSource(ABC):
    """Answers passes over a growing tree, and ranks or draws from the answers.

    It keeps the committed rows of one sequence, as the cache of a model does.
    """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Tokens of the draft's vocabulary."""

    @property
    @abstractmethod
    def context_limit(self) -> int:
        """Positions the draft takes at most."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Committed rows."""

    @abstractmethod
    def truncate(self, rows: int) -> None:
        """Keep the first rows alone, and what an unfinished step left not at all."""

    @abstractmethod
    def copy_from(self, other: DraftSource, rows: int) -> None:
        """Take the first rows of another source of the same kind, instead of feeding the same tokens."""

    @abstractmethod
    def prefill(self, token_ids: Sequence[int]) -> None:
        """Commit tokens; no draft pass."""

    @abstractmethod
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        """One pass; the answer of every new node, as :meth:`candidates` takes it."""

    @abstractmethod
    def commit(self, rows: Sequence[int]) -> None:
        """Keep these of the rows fed since the last commit, and drop the others."""

    @abstractmethod
    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        """Rank or draw.

        Args:
            scoring: how the drafter chooses.
            context: the sequence.
            request: the builder's question.
            answers: answers of the ``f`` frontier rows.
        """

    @abstractmethod
    def for_new_sequence(self) -> DraftSource:
        """The same with no committed rows."""


class ModelSource(DraftSource):
    """A language model with a cache of its own.

    Args:
        model: the draft.
    """

    def __init__(self, model: Runtime) -> None:
        self.model = model
        self._processors: Processors | None = None

    @property
    @override
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    @override
    def context_limit(self) -> int:
        return self.model.context_limit

    @property
    @override
    def length(self) -> int:
        return self.model.cache.lengths[0]

    @override
    def truncate(self, rows: int) -> None:
        self.model.cache.truncate(0, rows)

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        assert isinstance(other, ModelSource)
        self.model.cache.copy_from(other.model.cache, rows)

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        passes = self.model.passes
        self.model.prefill(0, token_ids)
        self.model.passes = passes  # the prefill is not drafting

    @override
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        pending, size = fed.pending, len(fed.tokens)
        first = fed.known + pending - 1 if fed.known else 0  # of the new rows among the uncommitted ones
        visible = np.zeros((size, first + size), dtype=np.bool_)
        visible[:, :pending] = True  # the committed tokens, the root among them
        if fed.known == 0:
            visible[:pending, :pending] = np.tri(pending, dtype=np.bool_)
        new_nodes = fed.ancestors[fed.known or 1 :]
        for index, ancestors in enumerate(new_nodes, size - len(new_nodes)):
            visible[index, np.array(ancestors) + pending - 1] = True
        logits = self.model.grow(0, np.array(fed.tokens), np.array(fed.depths), visible)
        if on_host(logits):  # a device is not waited for: see candidates
            check_logits(logits, "draft", context)
        return [(logits, index) for index in range(0 if fed.known else pending - 1, size)]

    @override
    def commit(self, rows: Sequence[int]) -> None:
        self.model.cache.commit(0, rows)

    @override
    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        logits = _stacked(answers)  # [f, V]
        found = self._candidates(scoring, context, request, logits)
        if not on_host(logits):
            read = found.log_probs if found.q is None else found.q[:, :1]
            if scoring.temperature == 0 or read is None or np.isnan(read).any():
                check_logits(logits, "draft", context)
        return found

    def _candidates(
        self, scoring: Scoring, context: Context, request: Request, logits: torch.Tensor
    ) -> Candidates:
        if scoring.coupled:
            return self._coupled(scoring, context, request, logits)
        temperature = 1.0 if scoring.temperature is None else scoring.temperature
        scores = self._processors_at(scoring, temperature).scores(logits)
        if request.kind is NodeKind.POINT_MASS:
            return _best(scores, request.k)
        position = len(context) - 1
        paths = [request.rank_path(row) for row in request.rows.tolist()]

        def uniforms(rows: NDArray[np.int64], start: int, count: int) -> NDArray[np.float64]:
            return context.uniforms_below(
                "draft", position, [paths[row] for row in rows.tolist()], start, count
            )

        return draw(
            scores.float().softmax(dim=-1).cpu(),
            uniforms,
            request.k,
            enough=request.enough,
            replacement=request.kind is NodeKind.DRAWN_WITH_REPLACEMENT,
        )

    @override
    def for_new_sequence(self) -> ModelSource:
        return ModelSource(deepcopy(self.model))

    def _coupled(
        self, scoring: Scoring, context: Context, request: Request, logits: torch.Tensor
    ) -> Candidates:
        temperature = context.noise_temperature
        scores = self._processors_at(scoring, temperature or 1.0).scores(logits)
        if temperature > 0:
            depths = request.depths()
            deepest = max(depths)
            noise = context.target_noise(len(context), deepest + 1, scores.shape[-1], scores.device)
            level = min(depths) == deepest  # as of a static tree: all take the noise of one position
            scores = scores + (noise[deepest] if level else noise[np.array(depths)])
        return _best(scores, request.k)

    def _processors_at(self, scoring: Scoring, temperature: float) -> Processors:
        if self._processors is None or self._processors.temperature != temperature:
            self._processors = Processors(temperature, scoring.top_k, scoring.top_p)
        return self._processors


def _stacked(answers: Sequence[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """``[f, V]`` logits; a view where they are consecutive rows of one pass."""
    import torch

    logits, start = answers[0]
    if all(one is logits and row == start + index for index, (one, row) in enumerate(answers)):
        return logits[start : start + len(answers)]
    return torch.stack([one[row] for one, row in answers])


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
