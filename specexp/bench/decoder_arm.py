"""The arm of our loop, for any composition of parts and for plain decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.bench.arm import Generation, LearningArm, ModelledSeconds, eos_of, sequence_name
from specexp.bench.observers import Sources
from specexp.bench.record import PromptRecord
from specexp.core.outcome import PHASES, GenerationResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.core.latency import LatencyProfile
    from specexp.core.loop import Decoder
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
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        modelled = None if self.latency is None else ModelledSeconds(self.latency)
        sources, generation = Sources(), self.generation
        context: list[int] = []
        results: list[GenerationResult] = []
        prompt_tokens = 0
        for turn in range(len(prompt.turns)):
            longer = prompt.turn_ids(self.tokenizer, turn, context)
            prompt_tokens += len(longer) - len(context)
            result = self.decoder.generate(
                longer,
                max_new_tokens=max_new_tokens or generation.max_new_tokens,
                eos_token_id=self.eos,
                seed=generation.seed,
                sequence=sequence_name(prompt, sample),
                continue_conversation=turn > 0,
                stop_at_repetition=generation.stop_at_repetition,
                observers=[*self.observers, sources, *([modelled] if modelled else [])],
            )
            results.append(result)
            context = [*longer, *result.token_ids]
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
