"""Several drafters in one tree."""

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.parts import Candidates, Drafter, Request
from specexp.core.tree import NO_CANDIDATE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.drafters.draft_source import DraftSource


class Union(Drafter):
    """Gives every node the candidates of several drafters: the first drafter's, then what the next ones add.

    Args:
        drafters: at least two, most trusted first, e.g. ``[PromptLookup(), TokenRecycling()]``: where the context
            repeats itself its continuation takes rank 0, and recycled tokens follow.

    Raises:
        ValueError: fewer than two drafters.
    """

    learns_from = "nothing"

    def __init__(self, drafters: list[Drafter]) -> None:
        if len(drafters) < 2:
            raise ValueError(f"Union was given {len(drafters)} drafters; at least 2 are needed")
        self.drafters = drafters

    @property
    def draft_passes(self) -> int:  # type: ignore[override]
        """Passes of all drafters."""
        return sum(drafter.draft_passes for drafter in self.drafters)

    @property
    def fed_tokens(self) -> int:  # type: ignore[override]
        """Tokens fed in them."""
        return sum(drafter.fed_tokens for drafter in self.drafters)

    @property
    def coupled(self) -> bool:  # type: ignore[override]
        """If any drafter is."""
        return any(drafter.coupled for drafter in self.drafters)

    @property
    @override
    def inner(self) -> tuple[Drafter, ...]:
        return tuple(self.drafters)

    @property
    def max_candidates(self) -> int:
        """Candidates of all drafters, if none agree."""
        return sum(drafter.max_candidates for drafter in self.drafters)

    @property
    def phrase_length(self) -> int:  # type: ignore[override]
        """Of the drafter with the longest phrases."""
        return max(drafter.phrase_length for drafter in self.drafters)

    @property
    def wants_prefill_logits(self) -> bool:
        """If any drafter does."""
        return any(drafter.wants_prefill_logits for drafter in self.drafters)

    @property
    def shares_state(self) -> bool:
        """If any drafter does."""
        return any(drafter.shares_state for drafter in self.drafters)

    @property
    def models(self) -> "tuple[Runtime, ...]":
        """Of all drafters."""
        return tuple(model for drafter in self.drafters for model in drafter.models)

    def for_new_sequence(self) -> "Union":
        """Of a twin of each."""
        return Union([drafter.for_new_sequence() for drafter in self.drafters])

    def costs_pass(self, request: Request) -> bool:
        """If any drafter's answer does."""
        return any(drafter.costs_pass(request) for drafter in self.drafters)

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """Begin each."""
        for drafter in self.drafters:
            drafter.begin(context, prefill)

    def propose(self, context: Context, request: Request) -> Candidates:
        """Concatenate the drafters' candidates row by row and drop repetitions."""
        if request.length > 1:
            return self._phrases(context, request)
        answers = [drafter.propose(context, request).tokens for drafter in self.drafters]
        tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
        for number, row in enumerate(np.concatenate(answers, axis=1).tolist()):
            distinct = [token for token in dict.fromkeys(row) if token != NO_CANDIDATE][: request.k]
            tokens[number, : len(distinct)] = distinct
        return Candidates(tokens)

    def _phrases(self, context: Context, request: Request) -> Candidates:
        """Phrases of the drafters that have any, as many of each one's as there is still room for."""
        tokens = np.full((request.rows.size, request.k, request.length), NO_CANDIDATE, dtype=np.int64)
        answers = [
            drafter.propose(context, request).tokens for drafter in self.drafters if drafter.phrase_length > 1
        ]
        for number, phrases in enumerate(np.concatenate(answers, axis=1)):
            there = phrases[phrases[:, 0] != NO_CANDIDATE][: request.k]
            tokens[number, : len(there)] = there
        return Candidates(tokens)

    def observe(self, outcome: Outcome) -> None:
        """Let each learn."""
        for drafter in self.drafters:
            drafter.observe(outcome)

    def reset(self) -> None:
        """Reset each."""
        for drafter in self.drafters:
            drafter.reset()

    def state_dict(self) -> dict[str, Any]:
        """States by position."""
        return {str(number): drafter.state_dict() for number, drafter in enumerate(self.drafters)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore each."""
        expected = [str(number) for number in range(len(self.drafters))]
        if sorted(state) != sorted(expected):
            raise ValueError(
                f"the state of this Union has the entries {expected}, but {sorted(state)} was given"
            )
        for number, drafter in enumerate(self.drafters):
            drafter.load_state_dict(state[str(number)])

    def use_draft_model(self, model: "PreTrainedModel | DraftSource | None") -> None:
        """Offer it to each."""
        for drafter in self.drafters:
            drafter.use_draft_model(model)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check each."""
        for drafter in self.drafters:
            drafter.check_vocabulary(vocab_size)
