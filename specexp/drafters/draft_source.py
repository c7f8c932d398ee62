"""Where a :class:`~specexp.drafters.DraftModel` has its answers from: a model here, or a recording of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.sampling import check_logits, on_host
from specexp.drafters.ranking import Ranking, Scoring

if TYPE_CHECKING:
    import torch

    from specexp.core.runtime import Runtime


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
        self._ranking = Ranking()

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
        return self._ranking.candidates(scoring, context, request, stacked(answers))

    @override
    def for_new_sequence(self) -> ModelSource:
        return ModelSource(deepcopy(self.model))


def stacked(answers: Sequence[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """``[f, V]`` logits; a view where they are consecutive rows of one pass."""
    import torch

    logits, start = answers[0]
    if all(one is logits and row == start + index for index, (one, row) in enumerate(answers)):
        return logits[start : start + len(answers)]
    return torch.stack([one[row] for one, row in answers])
