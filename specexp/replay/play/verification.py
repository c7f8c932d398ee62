"""The verifying half of a replayed sequence: what is accepted is what the recorded output says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.core.context import Context
from specexp.core.parts import DeterministicVerifier
from specexp.core.sequence import Draft, Verification
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.play.outcome import RecordedOutcome

if TYPE_CHECKING:
    import torch

    from specexp.core.outcome import Outcome

_ENDED = -1


class FollowOutput(DeterministicVerifier):
    """Accepts what the output says.

    Args:
        turn: whose output.
    """

    def __init__(self, turn: RecordedTurn) -> None:
        self._answer: list[int] = turn.answer.tolist()
        self._start = int(turn.prompt.size)

    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """The output's; nobody's after its end."""
        at = position - self._start
        return self._answer[at] if at < len(self._answer) else _ENDED


class _NoCache:
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Nothing is kept."""


class RecordedTarget:
    """A target without a model.

    Args:
        context_limit: of the recorded one.
    """

    def __init__(self, context_limit: int) -> None:
        self.context_limit = context_limit
        self.cache = _NoCache()


class RecordedVerification(Verification):
    """The verifying half of a replayed turn.

    Args:
        turn: what is replayed.
        target: its limits.
        context: the turn's prompt.
        max_new_tokens: tokens to generate, at most as many as were recorded.
        lenient: what was not recorded is left out of what is learned from.
    """

    def __init__(
        self,
        turn: RecordedTurn,
        target: RecordedTarget,
        context: Context,
        *,
        max_new_tokens: int,
        lenient: bool = False,
    ) -> None:
        ended = turn.finish_reason == "eos" and turn.answer.size <= max_new_tokens
        super().__init__(
            target,
            FollowOutput(turn),
            context,
            slot=0,
            max_new_tokens=max_new_tokens,
            eos_token_ids=turn.answer[-1:].tolist() if ended else (),
        )
        self.turn = turn
        self.lenient = lenient

    def check(self, logits: torch.Tensor) -> None:
        """There are none."""

    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        """From the recording."""
        root = len(self.context) - len(new_token_ids) - int(self.turn.prompt.size)
        return RecordedOutcome(
            self.context,
            draft.tree,
            accepted,
            new_token_ids,
            draft.pass_tokens,
            self.turn,
            root,
            self.lenient,
        )
