"""The contract of drafters: they guess the next tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from specexp.core.checked import Checked
from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.part import Part

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime


class Drafter(Part, metaclass=Checked):
    """Guesses the next tokens. Subclasses state what they keep, and learn only in :meth:`observe`.

    Attributes:
        draft_passes: forward passes of a draft model since construction; 0 for drafters without a model.
        fed_tokens: tokens fed in those passes.
        coupled: whether it adds the target's noise to its own scores, so that both agree more often.
        gives_log_probs: whether its candidates come with log-probabilities.
        draws: whether it can draw candidates from a distribution it states.
        phrase_length: tokens of the longest candidate it can answer with; 1 where it has no phrases.
        learns_from: what of an outcome, beside the committed tokens themselves, its later answers depend on: nothing,
            the target's answers after accepted nodes, those after all nodes, or unknown, so that nothing is promised of
            it where less than all is recorded. Of a wrapper, what it adds to those inside it.
        runs_model: whether it runs a draft model.
        learned_candidates: how many of the target's best tokens after a node it learns; 0 where none, or unknown.
        inner: the drafters it asks.
    """

    draft_passes: int = 0
    fed_tokens: int = 0
    coupled: bool = False
    gives_log_probs: bool = False
    draws: bool = False
    phrase_length: int = 1
    learns_from: Literal["nothing", "accepted", "all-nodes", "unknown"] = "unknown"
    runs_model: bool = False
    learned_candidates: int = 0

    @property
    def inner(self) -> tuple[Drafter, ...]:
        """The drafters it asks; none unless it wraps some."""
        return ()

    @property
    def most_learned(self) -> int:
        """Its :attr:`learned_candidates`, or those of a drafter it asks."""
        return max((self.learned_candidates, *(one.most_learned for one in self.inner)))

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates a node can be given; a tree that asks for a higher rank is refused when composed."""

    @property
    def models(self) -> tuple[Runtime, ...]:
        """The draft models it runs."""
        return ()

    @property
    def wants_prefill_logits(self) -> bool:
        """Whether :meth:`begin` needs the target's logits of every prompt position."""
        return False

    @property
    def wants_hidden(self) -> bool:
        """Whether outcomes must come with the target's hidden states."""
        return False

    def costs_pass(self, request: Request) -> bool:
        """Whether answering takes a forward pass of a draft model (the controller is asked before)."""
        return False

    @abstractmethod
    def propose(self, context: Context, request: Request) -> Candidates:
        """Answer a builder's question; must not change what later answers depend on."""

    @property
    def team(self) -> Hashable:
        """Drafters of several sequences whose team is the same are asked together; None where one is asked alone."""
        return None

    def propose_together(self, asked: Sequence[tuple[Any, Context, Request]]) -> list[Candidates]:
        """What each of some drafters of a team says of a sequence; the same as it says when asked alone.

        Args:
            asked: the drafters, each with its sequence and a builder's question.
        """
        return [drafter.propose(context, request) for drafter, context, request in asked]

    def alone(self) -> Drafter | None:
        """A new drafter that says what this one says by itself, asking none; None where it only asks others."""
        return None

    def use_draft_model(self, model: PreTrainedModel | Any | None) -> None:
        """Take the pair's draft model, if the drafter needs one and has none of its own.

        Args:
            model: a Hugging Face causal LM, or what a drafter takes in the place of one, such as a recording of it.

        Raises:
            ValueError: it needs one and there is none.
        """
        return None

    def use_target(self, target: Runtime) -> None:
        """Take what it needs of the target's own weights.

        Args:
            target: which is drafted for; asked for nothing but its ``model``.

        Raises:
            ValueError: the drafter was made for another one, or cannot draft for it.
        """
        return None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse a target with another vocabulary than the drafter's.

        Raises:
            ValueError: the vocabularies differ.
        """
        return None
