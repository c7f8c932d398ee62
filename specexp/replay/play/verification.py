"""Who answers in a replay: the recorded target. What is accepted is what the recorded output says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.drafting import Draft, Drafting
from specexp.core.lane import Clock, Lane
from specexp.core.runtime import Target
from specexp.core.tree import TokenTree
from specexp.core.verifier import DeterministicVerifier
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.play.outcome import NO_LOGITS, RecordedOutcome

if TYPE_CHECKING:
    import torch

    from specexp.core.outcome import Outcome

_ENDED = -1


class FollowOutput(DeterministicVerifier):
    """Accepts what the output says.

    Args:
        turn: The turn whose output it is.
    """

    def __init__(self, turn: RecordedTurn) -> None:
        self._answer: list[int] = turn.answer.tolist()
        self._start = int(turn.prompt.size)

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        at = position - self._start
        return self._answer[at] if at < len(self._answer) else _ENDED  # nobody's after its end


class RecordedTarget(Target):
    """A target without a model: its answers are read in the recording, where somebody wants them.

    Args:
        context_limit: Tokens that the recorded target's context holds.
    """

    def __init__(self, context_limit: int) -> None:
        self.context_limit = context_limit

    @override
    def length(self, slot: int) -> int:
        return 0

    @override
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        return None

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        return [NO_LOGITS] * len(trees)

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        pass

    @override
    def synchronize(self) -> None:
        pass


class RecordedLane(Lane):
    """A replayed turn.

    Args:
        turn: The turn that is replayed.
        target: Limits of the recorded target.
        context: The turn's prompt.
        drafting: The drafting half of the lane.
        max_new_tokens: Tokens to generate, at most as many as were recorded.
        lenient: Whether what was not recorded is left out of what is learned from.
        clock: Modelled seconds of a step; none if None.
    """

    def __init__(
        self,
        turn: RecordedTurn,
        target: RecordedTarget,
        context: Context,
        drafting: Drafting,
        *,
        max_new_tokens: int,
        lenient: bool = False,
        clock: Clock | None = None,
    ) -> None:
        ended = turn.finish_reason == "eos" and turn.answer.size <= max_new_tokens
        super().__init__(
            context,
            target,
            FollowOutput(turn),
            drafting,
            max_new_tokens=max_new_tokens,
            eos_token_ids=turn.answer[-1:].tolist() if ended else (),
            clock=clock or _no_clock,
        )
        self.turn = turn
        self.lenient = lenient

    @override
    def decide(self, tree: TokenTree, logits: torch.Tensor) -> tuple[Verdict, None]:
        return self.verifier.verify(self.context, tree, logits), None  # there are no logits

    @override
    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
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


def _no_clock(outcome: Outcome) -> Mapping[str, float]:
    return {}
