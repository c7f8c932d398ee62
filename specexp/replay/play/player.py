"""Playing a recorded conversation with the parts that would have decoded it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.sequence import Counts, Drafting
from specexp.replay.format.errors import RecordingError
from specexp.replay.format.ngram_fallback import Estimates
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.play.fidelity import learns
from specexp.replay.play.outcome import NO_LOGITS, RecordedOutcome, RecordedPrefill
from specexp.replay.play.source import RecordedSource
from specexp.replay.play.verification import RecordedTarget, RecordedVerification

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specexp.core.decoder import OutcomeObserver

    Clock = Callable[[Outcome], Mapping[str, float]]


class _Drafting(Drafting):
    """Drafters learn from what was recorded, or can be estimated; of the rest they never hear."""

    estimates: Estimates | None = None
    learns = True

    def learn(self, outcome: Outcome) -> None:
        """What the target said of the last draft."""
        assert isinstance(outcome, RecordedOutcome)
        if self.drafter is not None:
            self.drafter.observe(outcome.told(self.estimates) if self.learns else outcome)
        self.controller.observe(outcome)


class Player:
    """Replays conversations with one strategy.

    Args:
        strategy: the parts; a draft model in them answers from ``source``.
        source: of the draft model; None where there is none.
        target: the recorded target's limits.
        seed: of the recording.
        lenient: what was not recorded is left out of what is learned from, an approximation; if not it is an error.
        estimates: of what was not recorded; None leaves it out.
    """

    def __init__(
        self,
        strategy: Parts,
        source: RecordedSource | None,
        target: RecordedTarget,
        seed: int,
        lenient: bool = False,
        estimates: Estimates | None = None,
    ) -> None:
        self.parts = strategy
        self.source = source
        self.target = target
        self.seed = seed
        self.lenient = lenient
        self.estimates = estimates
        # a draft model alone only keeps what was accepted
        self._learns = learns(strategy.drafter)

    def play(
        self,
        turns: Sequence[RecordedTurn],
        max_new_tokens: int,
        sequence: str,
        clock: Clock | None = None,
        observers: Iterable[OutcomeObserver] = (),
    ) -> list[Counts]:
        """Replay the turns of a conversation; what each would have taken, in counts.

        Args:
            turns: of one prompt and sample.
            max_new_tokens: per turn; of several turns as many as were recorded.
            sequence: that randomness is keyed by.
            clock: seconds of a step by phase, for parts that learn from them.
            observers: called with every step's outcome.

        Raises:
            RecordingError: more is asked than was recorded.
        """
        counts = []
        context: Context | None = None
        for turn in turns:
            prompt = turn.prompt.tolist()
            known = 0
            if context is None:
                noise = self.parts.verifier.noise_temperature or 0.0
                context = Context(prompt, seed=self.seed, sequence=sequence, noise_temperature=noise)
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
    ) -> Counts:
        if turn.finish_reason == "length" and max_new_tokens > turn.answer.size:
            raise RecordingError(
                f"prompt {turn.prompt_id!r}: generation.max_new_tokens is {max_new_tokens} and {turn.answer.size} were "
                "recorded: record longer answers, or ask for fewer tokens"
            )
        verification = RecordedVerification(
            turn, self.target, context, max_new_tokens=max_new_tokens, lenient=self.lenient
        )
        strategy = self.parts
        drafting = _Drafting(strategy.drafter, strategy.builder, strategy.controller, context)
        drafting.estimates, drafting.learns = self.estimates, self._learns
        if self.source is not None:
            self.source.turn = turn
        wanted = strategy.drafter is not None and strategy.drafter.wants_prefill_logits
        fed = context.token_ids[known:-1]
        drafting.begin(RecordedPrefill(context, fed.copy(), turn) if wanted and fed.size else None)
        while verification.finish_reason is None:
            outcome = verification.absorb(drafting.draft(verification.depth), NO_LOGITS)
            if clock is not None:
                outcome.seconds = clock(outcome)
            drafting.learn(outcome)
            for observe in observers:
                observe(outcome)
        counts = verification.counts
        return replace(counts, seconds=dict.fromkeys(counts.seconds, 0.0))
