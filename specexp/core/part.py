"""The life cycle of the parts that learn or cache: drafters and controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

from specexp.core.context import Context
from specexp.core.outcome import Outcome


class Part:
    """The life cycle of a part that learns or caches. The prefill is step 0."""

    @property
    def shares_state(self) -> bool:
        """Whether what it learns from one sequence serves the next ones: its ``state`` is ``carry``."""
        return getattr(self, "state", None) == "carry"

    def for_new_sequence(self) -> Self:
        """Another one for a sequence decoded at the same time, in one thread.

        It shares weights and what is carried from sequence to sequence, and has its own of what belongs to one. One
        that shares its state must keep what belongs to a sequence apart by itself, so it may return itself.
        """
        return self if self.shares_state else deepcopy(self)

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """A sequence starts or, with ``context.continued``, goes on; a part whose ``state`` is ``cold`` starts anew.

        Args:
            context: the sequence.
            prefill: step 0 with the logits of every fed prompt position, where the drafter's
                :attr:`~Drafter.wants_prefill_logits`, and hidden states where it wants them; None where neither.
        """
        if getattr(self, "state", None) == "cold" and not context.continued:
            self.reset()

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
        """Restore :meth:`state_dict`.

        Raises:
            ValueError: the state is not one of this part.
        """
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but {sorted(state)} was given")

    def check_entries(self, state: Mapping[str, Any], entries: Sequence[str]) -> None:
        """Refuse a state with other entries than these.

        Raises:
            ValueError: one sentence with both.
        """
        if sorted(state) != sorted(entries):
            name = type(self).__name__
            raise ValueError(
                f"the state of {name} has the entries {sorted(entries)}, but {sorted(state)} was given"
            )
