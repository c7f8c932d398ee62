"""What a drafter is: ranked candidates for the tokens after some nodes of a growing tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.tree import NodeKind, RankPath

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.language_model import LanguageModel
    from specexp.drafters.draft_source import DraftSource


@dataclass(frozen=True, slots=True)
class Request:
    """A builder's question: ``k`` candidates after each of these rows of the tree so far.

    During one build a row keeps its number, its parent and, once filled, its token.

    Attributes:
        tokens: ``[m]`` token ids of the tree so far, the root in row 0; rows not yet filled are negative.
        parents: ``[m]`` row of each row's parent, ``-1`` for the root.
        ranks: ``[m]`` rank of each row among its parent's candidates, ``-1`` for the root.
        rows: ``[f]`` the frontier: rows whose continuations are asked for, all of them filled.
        k: candidates wanted for each.
        kind: how they are to be chosen: the best ones, or drawn. A longer answer begins with the shorter one.
        enough: ``[f]`` probability mass after which a row needs no more candidates: a drafter that draws may then
            stop, and leave the rest of the row, or of all rows, out. None asks for all ``k``.
        length: tokens of a candidate; above 1 the question is for phrases, which only some drafters have.
        log_probs: ``[m]`` draft log-probability of each row given its parent, 0 for the root; None where the drafter
            gives none.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    ranks: NDArray[np.int64]
    rows: NDArray[np.int64]
    k: int
    kind: NodeKind = NodeKind.POINT_MASS
    enough: NDArray[np.float64] | None = None
    length: int = 1
    log_probs: NDArray[np.float32] | None = None

    def depths(self) -> list[int]:
        """Depth of each of the ``f`` frontier rows; 0 for the root."""
        parents = self.parents.tolist()  # a walk in Python: for trees of this size numpy's calls cost more
        depths = []
        for row in self.rows.tolist():
            depth = 0
            while row > 0:
                row, depth = parents[row], depth + 1
            depths.append(depth)
        return depths

    def best_log_prob(self) -> tuple[float, float]:
        """Log-probability of the most probable path to a frontier row, and of that path's last token; zeros where
        the drafter gives none, or nothing is drafted yet.
        """
        if self.log_probs is None:
            return 0.0, 0.0
        best, last = -inf, 0.0
        log_probs, parents = self.log_probs.tolist(), self.parents.tolist()
        for row in self.rows.tolist():
            total, node = 0.0, row
            while node > 0:
                total += log_probs[node]
                node = parents[node]
            if total > best:
                best, last = total, log_probs[row]
        return best, last

    def rank_path(self, row: int) -> RankPath:
        """Ranks from depth 1 down to ``row``; empty for the root."""
        path: list[int] = []
        while row > 0:
            path.append(int(self.ranks[row]))
            row = int(self.parents[row])
        return tuple(reversed(path))

    def path_tokens(self, row: int) -> tuple[int, ...]:
        """Tokens from depth 1 down to ``row``; empty for the root."""
        path: list[int] = []
        while row > 0:
            path.append(int(self.tokens[row]))
            row = int(self.parents[row])
        return tuple(reversed(path))


@dataclass(frozen=True, slots=True)
class Candidates:
    """A drafter's answer to a :class:`Request`.

    Attributes:
        tokens: ``[f, k]`` (or fewer, see :attr:`Request.enough`) token ids of each frontier row, then
            ``NO_CANDIDATE``: best first or in the order drawn, distinct unless drawn with replacement. Of phrases
            ``[f, k, length]``, shorter ones filled up with ``NO_CANDIDATE``.
        log_probs: ``[f, k]`` draft log-probabilities given the frontier row (of drawn tokens: before anything was
            taken out), or None where the drafter has none.
        q: ``[f, V]`` draft distribution of each frontier row, where tokens were drawn.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32] | None = None
    q: NDArray[np.float32] | None = None


class Drafter(ABC):
    """Guesses the next tokens. Subclasses state what they keep, and learn only in :meth:`observe`.

    Attributes:
        draft_passes: forward passes of a draft model since construction; 0 for drafters without a model.
        fed_tokens: tokens fed in those passes.
        coupled: whether it adds the target's noise to its own scores, so that both agree more often.
        gives_log_probs: whether its candidates come with log-probabilities.
        draws: whether it can draw candidates from a distribution it states.
        phrase_length: tokens of the longest candidate it can answer with; 1 where it has no phrases.
    """

    draft_passes: int = 0
    fed_tokens: int = 0
    coupled: bool = False
    gives_log_probs: bool = False
    draws: bool = False
    phrase_length: int = 1

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates a node can be given; a tree that asks for a higher rank is refused when composed."""

    @property
    def carries(self) -> bool:
        """Whether what it learns from one sequence serves the next ones: its ``state`` is ``carry``."""
        return getattr(self, "state", None) == "carry"

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """The draft models it runs."""
        return ()

    def twin(self) -> Self:
        """Another one for a sequence decoded at the same time, in one thread.

        It shares weights and what is carried from sequence to sequence, and has its own of what belongs to one.

        One that carries must keep what belongs to a sequence apart by itself, so it may be its own twin.
        """
        return self if self.carries else deepcopy(self)

    @property
    def wants_prefill_logits(self) -> bool:
        """Whether :meth:`begin` needs the target's logits of every prompt position."""
        return False

    def costs_pass(self, request: Request) -> bool:
        """Whether answering takes a forward pass of a draft model (the controller is asked before)."""
        return False

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """A sequence starts or, with ``context.continued``, goes on.

        Args:
            context: the sequence.
            prefill: step 0 with the logits of every fed prompt position, where :attr:`wants_prefill_logits`.
        """
        return None

    @abstractmethod
    def propose(self, context: Context, request: Request) -> Candidates:
        """Answer a builder's question; must not change what later answers depend on."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""
        return None

    def reset(self) -> None:
        """Return to the stated initial state."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but {sorted(state)} was given")

    def use_draft_model(self, model: PreTrainedModel | DraftSource | None) -> None:
        """Take the pair's draft model, or a recording of it, if the drafter needs one and has none of its own.

        Raises:
            ValueError: it needs one and there is none.
        """
        return None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse a target with another vocabulary than the drafter's.

        Raises:
            ValueError: the vocabularies differ.
        """
        return None
