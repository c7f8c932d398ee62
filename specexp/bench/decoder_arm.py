"""The arm of our loop, for any composition of parts and for plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.bench.arm import Generation, LearningArm, ModelledSeconds, eos_of, sequence_name, turns
from specexp.bench.observers import Sources
from specexp.bench.record import PromptRecord
from specexp.core.outcome import PHASES, GenerationResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.core.latency import LatencyProfile
    from specexp.core.loop import Decoder, OutcomeObserver
    from specexp.data import Prompt


class DecoderArm(LearningArm):
    """A :class:`~specexp.core.loop.Decoder` as an arm.

    Seconds are measured if ``latency`` is None or does not model them.
    """

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase,
        generation: Generation,
        latency: LatencyProfile | None = None,
        controller_state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, decoder.parts, generation, controller_state)
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.dtype = decoder.model.precision
        self.device = decoder.model.placement
        if latency is not None and latency.modelled:
            self.latency = latency.of(decoder.parts.label)
        self.eos = eos_of(tokenizer, decoder.model.model) if generation.stop_at_eos else frozenset()

    @override
    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        self._conversation(prompt, sample, None, (observe,))

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        modelled = None if self.latency is None else ModelledSeconds(self.latency)
        sources = Sources()
        observers: list[OutcomeObserver] = [*self.observers, sources, *([modelled] if modelled else [])]
        prompt_tokens, results = self._conversation(prompt, sample, max_new_tokens, observers)
        measured = {phase: sum(result.seconds[phase] for result in results) for phase in PHASES}
        return self.record(
            prompt,
            sample,
            results,
            prompt_tokens=prompt_tokens,
            seconds=measured if modelled is None else modelled.seconds,
            beyond_profile=0 if modelled is None else modelled.beyond,
            sources=tuple(sources.found),
        )

    def _conversation(
        self, prompt: Prompt, sample: int, max_new_tokens: int | None, observers: Sequence[OutcomeObserver]
    ) -> tuple[int, list[GenerationResult]]:
        results: list[GenerationResult] = []
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens or self.generation.max_new_tokens,
            "eos_token_id": self.eos,
            "stop_at_repetition": self.generation.stop_at_repetition,
            "seed": self.generation.seed,
            "sequence": sequence_name(prompt, sample),
        }

        def answer(context: list[int], turn: int) -> list[int]:
            result = self.decoder.generate(
                context, continue_conversation=turn > 0, observers=observers, **settings
            )
            results.append(result)
            return result.token_ids

        return sum(tokens for tokens, _ in turns(prompt, self.tokenizer, answer)), results
