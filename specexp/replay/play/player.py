"""Playing a recorded conversation with the parts that would have decoded it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.decode import Decoding
from specexp.core.drafting import Drafting
from specexp.core.generation import GenerationResult
from specexp.core.lane import Clock
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.replay.format.ngram_fallback import NgramFallback
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import learns
from specexp.replay.play.outcome import RecordedOutcome, RecordedPrefill
from specexp.replay.play.source import RecordedSource
from specexp.replay.play.verification import RecordedLane, RecordedTarget

if TYPE_CHECKING:
    from specexp.core.decode import OutcomeObserver


class _Drafting(Drafting):
    """Drafters learn from what was recorded, or can be estimated; of the rest they never hear."""

    fallback: NgramFallback | None = None
    learns = True

    @override
    def learn(self, outcome: Outcome) -> None:
        assert isinstance(outcome, RecordedOutcome)
        if self.drafter is not None:
            self.drafter.observe(outcome.recorded_part(self.fallback) if self.learns else outcome)
        self.controller.observe(outcome)


class Player:
    """Replays conversations with one composition of parts.

    Args:
        parts: Parts that are replayed; a draft model in them answers from ``source``.
        source: Recorded answers of the draft model; None where there is none.
        target: Limits of the recorded target.
        seed: Seed of the recording.
        lenient: Whether what was not recorded is left out of what is learned from, an approximation, or an error.
        fallback: Estimates of what was not recorded; None leaves it out.
    """

    def __init__(
        self,
        parts: Parts,
        source: RecordedSource | None,
        target: RecordedTarget,
        seed: int,
        lenient: bool = False,
        fallback: NgramFallback | None = None,
    ) -> None:
        self.parts = parts
        self.source = source
        self.target = target
        self.seed = seed
        self.lenient = lenient
        self.fallback = fallback
        # a draft model alone only keeps what was accepted
        self._learns = learns(parts.drafter)

    def play(
        self,
        turns: Sequence[RecordedTurn],
        max_new_tokens: int,
        sequence: str,
        clock: Clock | None = None,
        observers: Iterable[OutcomeObserver] = (),
    ) -> list[GenerationResult]:
        """Replay the turns of a conversation; what each would have taken, in counts.

        Args:
            turns: Turns of one prompt and sample.
            max_new_tokens: Tokens per turn; of several turns as many as were recorded.
            sequence: Name of the sequence, by which randomness is keyed.
            clock: Seconds of a step by phase, for parts that learn from them.
            observers: Called with every step's outcome.

        Raises:
            RecordingError: More is asked than was recorded.
        """
        counts = []
        context: Context | None = None
        for turn in turns:
            prompt = turn.prompt.tolist()
            known = 0
            if context is None:
                context = self.parts.context(prompt, self.seed, sequence)
            else:
                known = len(context) - 1  # the last token of an answer is not fed before the next turn
                context.next_turn(prompt[len(context) :])
            counts.append(self._turn(turn, context, known, max_new_tokens, clock, observers))
        return counts

    def _turn(
        self,
        turn: RecordedTurn,
        context: Context,
        known: int,
        max_new_tokens: int,
        clock: Clock | None,
        observers: Iterable[OutcomeObserver],
    ) -> GenerationResult:
        if turn.finish_reason == "length" and max_new_tokens > turn.answer.size:
            raise RecordingError(
                f"prompt {turn.prompt_id!r}: generation.max_new_tokens is {max_new_tokens} and {turn.answer.size} were "
                "recorded: record longer answers, or ask for fewer tokens"
            )
        drafting = _Drafting(self.parts, context)
        drafting.fallback, drafting.learns = self.fallback, self._learns
        lane = RecordedLane(
            turn,
            self.target,
            context,
            drafting,
            max_new_tokens=max_new_tokens,
            lenient=self.lenient,
            clock=clock,
        )
        if self.source is not None:
            self.source.turn = turn
        fed = context.token_ids[known:-1]
        wanted = self.parts.wants_prefill_logits and fed.size
        drafting.begin(RecordedPrefill(context, fed.copy(), turn) if wanted else None)
        decoding = Decoding(self.target, observers)
        decoding.add(lane)
        while decoding.lanes:
            decoding.step()
        return replace(lane.result, seconds=dict.fromkeys(lane.result.seconds, 0.0))
