"""The interface behind a :class:`~specexp.drafters.DraftModel`, implemented by a model or by a recording of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.runtime import Growth, Runtime
from specexp.core.sampling import check_logits, on_host
from specexp.core.tree import TreeShape
from specexp.drafters.draft_vocabulary import DraftVocabulary
from specexp.drafters.ranking import Scoring, ToRank, rank

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Fed:
    """The rows of one pass: committed tokens that were not fed before, then new nodes of the step's tree."""

    tokens: Sequence[int]  # [m] token ids of all rows
    depths: Sequence[int]  # [m] positions of the rows, counted from the end of the cached rows
    pending: int  # number of committed tokens in the step's first pass, the last of which is the root
    known: int  # number of nodes fed in earlier passes of this step, including the root (node 0); 0 in the first pass
    # for each node of the step so far, the nodes on the path from the root to it, itself included; new nodes come last
    ancestors: Sequence[Sequence[int]]


class DraftSource(ABC):
    """Runs or replays a drafter's passes over a growing tree, and converts the answers to candidates.

    It holds the committed rows of one sequence, like a model's KV cache.
    """

    vocab_size: int  # of the draft, including tokens that a reduced head cannot draft
    context_limit: int  # maximum length of a sequence, in tokens
    team: Hashable = None  # a key; sources with equal keys share passes. None if this source does not share passes
    vocabulary: DraftVocabulary | None = None  # the tokens that its head can draft; None for all
    parallel: bool = False  # the first pass of a step gives the answers for all nodes of its tree
    most_depth: int = 2**31  # maximum depth of a tree that it can draft
    independent_rows: bool = False  # a row's result is bitwise identical regardless of the other rows in its pass

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of committed rows."""

    @abstractmethod
    def truncate(self, rows: int) -> None:
        """Keep only the first ``rows`` rows, and drop the rows of an unfinished step."""

    @abstractmethod
    def copy_from(self, other: DraftSource, rows: int) -> None:
        """Copy the first ``rows`` rows of another source of the same kind."""

    @abstractmethod
    def prefill(self, token_ids: Sequence[int]) -> None:
        """Feed and commit tokens of the prompt. This does not count as a draft pass."""

    def feed(self, context: Context, fed: Fed) -> list[Any]:
        """Run one pass, and return an answer for each new node in the form that :meth:`candidates` expects.

        A subclass implements this method or :meth:`feed_together`.
        """
        return self.feed_together([(self, context, fed)])[0]

    def feed_together(self, questions: Sequence[tuple[Any, Context, Fed]]) -> list[list[Any]]:
        """Return the result of :meth:`feed` for each of several sources in one team."""
        return [source.feed(context, fed) for source, context, fed in questions]

    def draft(self, scoring: Scoring, context: Context, shape: TreeShape) -> NDArray[np.int64] | None:
        """Draft a whole tree. Return its ``[n + 1]`` tokens, starting with the root, or None if it must be drafted one
        pass at a time.

        See :meth:`~specexp.core.runtime.Runtime.draft_tree` for the rows that are fed.
        """
        return None

    @abstractmethod
    def commit(self, rows: Sequence[int]) -> None:
        """Commit these rows and drop the others. Row numbers start after the last commit."""

    def candidates(self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]) -> Candidates:
        """Rank or draw candidates for ``f`` frontier rows. By default, answers are pairs (logits ``[m, V]``, row)."""
        return rank(scoring, [ToRank(context, request, _stacked(answers), self.vocabulary)])[0]

    def candidates_together(
        self, scoring: Scoring, questions: Sequence[tuple[Any, Context, Request, Sequence[Any]]]
    ) -> list[Candidates]:
        """Return the result of :meth:`candidates` for each of several sources in one team."""
        return [
            source.candidates(scoring, context, request, answers) for source, context, request, answers in questions
        ]

    def state(self, answer: Any) -> NDArray[np.float32]:
        """Return the hidden state ``[d]`` of an answer (logits, row, states). Raises ``ValueError`` if it has none."""
        if not isinstance(answer, tuple) or len(answer) < 3:
            raise ValueError(f"{type(self).__name__} has no states to read: set pair.mode to eager or compiled")
        found: NDArray[np.float32] = answer[2][answer[1]].float().numpy(force=True)
        return found

    @abstractmethod
    def for_new_sequence(self) -> DraftSource:
        """Return a source for the same model with no committed rows."""


class _Slots:
    """Assigns the slots in a model's cache. The slot of a deleted source is reused."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._new = count()

    def take(self, owner: object) -> int:
        slot = self._free.pop() if self._free else next(self._new)
        finalize(owner, self._free.append, slot).atexit = False
        return slot


class ModelSource(DraftSource):
    """A source that runs a language model. Each sequence has its own source and cache slot; sources share passes.

    Args:
        model: the draft, with a cache that only these sources use.
        slots: the allocator of that cache's slots; None for the first source.
    """

    def __init__(self, model: Runtime, slots: _Slots | None = None) -> None:
        self.model = self.team = model
        self.vocabulary = getattr(model.model, "draft_vocabulary", None)
        self.vocab_size = model.vocab_size if self.vocabulary is None else self.vocabulary.size
        self.context_limit = model.context_limit
        self.independent_rows = model.independent_rows
        self._slots = slots or _Slots()
        self.slot = self._slots.take(self)
        model.cache.reserve(0, self.slot + 1)
        model.cache.truncate(self.slot, 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelSource:
        return type(self)(deepcopy(self.model))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model,)

    @property
    @override
    def length(self) -> int:
        return self.model.length(self.slot)

    @override
    def truncate(self, rows: int) -> None:
        self.model.cache.truncate(self.slot, rows)

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        assert isinstance(other, ModelSource)
        self.model.cache.fork(other.slot, self.slot, rows)

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        passes = self.model.passes
        self.model.prefill(self.slot, token_ids)
        self.model.passes = passes  # a prefill is not counted as a draft pass

    @override
    def feed_together(self, questions: Sequence[tuple[ModelSource, Context, Fed]]) -> list[list[Any]]:
        result = self.model.grow([source.slot for source, _, _ in questions], [_growth(fed) for _, _, fed in questions])
        answers = []
        for (logits, states, _), (_, context, fed) in zip(result.by_tree(), questions, strict=True):
            if on_host(logits):  # logits on a GPU are checked by rank(), which copies the candidates anyway
                check_logits(logits, "draft", context)
            first = 0 if fed.known else fed.pending - 1  # the root's row is the last committed one
            kept = () if states is None else (states,)  # for a controller
            answers.append([(logits, index, *kept) for index in range(first, len(fed.tokens))])
        return answers

    @override
    def draft(self, scoring: Scoring, context: Context, shape: TreeShape) -> NDArray[np.int64] | None:
        temperature = context.noise_temperature if scoring.coupled else 0.0
        pending = context.token_ids[self.length :]
        fits = len(context) + shape.max_depth - 1 <= self.context_limit
        if not fits or scoring.temperature == 0 or (scoring.top_k, scoring.top_p) != (None, None):
            return None
        noise = None
        kept = None if self.vocabulary is None else self.vocabulary.kept
        if temperature > 0:
            noise = context.target_noise(len(context), shape.max_depth, self.vocab_size)
            noise = noise if kept is None else noise[:, kept]
        return self.model.draft_tree(self.slot, pending, shape, temperature, noise, kept)

    @override
    def commit(self, rows: Sequence[int]) -> None:
        self.model.commit(self.slot, rows)

    @override
    def candidates_together(
        self, scoring: Scoring, questions: Sequence[tuple[ModelSource, Context, Request, Sequence[Any]]]
    ) -> list[Candidates]:
        return rank(
            scoring,
            [ToRank(context, request, _stacked(rows), self.vocabulary) for _, context, request, rows in questions],
        )

    @override
    def for_new_sequence(self) -> ModelSource:
        return type(self)(self.model, self._slots)


def _growth(fed: Fed) -> Growth:
    pending, size = fed.pending, len(fed.tokens)
    first = fed.known + pending - 1 if fed.known else 0  # index of the first new uncommitted row
    visible = np.zeros((size, first + size), dtype=np.bool_)
    visible[:, :pending] = True  # the committed tokens, including the root
    if fed.known == 0:
        visible[:pending, :pending] = np.tri(pending, dtype=np.bool_)
    new_nodes = fed.ancestors[fed.known or 1 :]
    for index, ancestors in enumerate(new_nodes, size - len(new_nodes)):
        visible[index, np.array(ancestors) + pending - 1] = True
    return Growth(np.array(fed.tokens), np.array(fed.depths), visible)


def _stacked(answers: Sequence[tuple[Any, ...]]) -> torch.Tensor:
    """Return ``[f, V]`` logits of answers (logits, row, ...), as a view if they are consecutive rows of one pass."""
    import torch

    logits, start, *_ = answers[0]
    if all(one is logits and row == start + index for index, (one, row, *_) in enumerate(answers)):
        rows: torch.Tensor = logits[start : start + len(answers)]
        return rows
    return torch.stack([one[row] for one, row, *_ in answers])
