"""Arms of the engine: any composition of parts, and plain decoding in the same loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.bench.arm import EngineArm, Generation, ModelledSeconds, eos_of, sequence_name, turns
from specexp.bench.oracle import foresee
from specexp.bench.record import PromptRecord
from specexp.bench.sources import Sources
from specexp.core.generation import PHASES, GenerationResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from specexp.core.decode import OutcomeObserver
    from specexp.core.decoder import Decoder
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt


class DecoderArm(EngineArm):
    """A :class:`~specexp.core.decoder.Decoder` as an arm.

    Args:
        name: Name in every table.
        decoder: Decoder of any composition.
        tokenizer: The target's.
        generation: How much to generate.
        count_useful: Also count useful tokens (outside the clock).
        latency: Profile by which seconds are modelled, where it says so; measured if None.
        controller_state: What the controller learned from other prompts, that every run starts from.

    Attributes:
        observers: Called with every step's outcome when a prompt is decoded, outside the clock.

    Example:
        >>> DecoderArm("engine", Decoder(model, verifier=verifier), tokenizer, Generation())  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase,
        generation: Generation,
        count_useful: bool = False,
        latency: LatencyProfile | None = None,
        controller_state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, decoder.parts, generation, controller_state)
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.count_useful = count_useful
        self.dtype = decoder.model.precision
        self.device = decoder.model.placement
        if latency is not None and latency.modelled:
            self.latency = latency.of(decoder.parts.label)
        self.eos = eos_of(tokenizer, decoder.model.model) if generation.stop_at_eos else frozenset()

    @override
    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        self.conversation(prompt, sample, observers=(observe,))

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        results: list[GenerationResult] = []
        modelled = None if self.latency is None else ModelledSeconds(self.latency)
        sources = Sources()
        observers: list[OutcomeObserver] = [*self.observers, sources, *([modelled] if modelled else [])]
        taken = self.conversation(prompt, sample, max_new_tokens, results, observers)
        counts = results
        if modelled is None:
            seconds = {phase: sum(count.seconds[phase] for count in counts) for phase in PHASES}
        else:
            seconds = modelled.seconds
        return PromptRecord.of(
            self,
            prompt,
            sample,
            answers=[result.token_ids for result in results],
            finish_reasons=[result.finish_reason for result in results],
            counts=counts,
            prompt_tokens=sum(tokens for tokens, _ in taken),
            prefill_seconds=sum(result.prefill_seconds for result in results),
            seconds=seconds,
            beyond_profile=0 if modelled is None else modelled.beyond,
            sources=sources.found,
        )

    def conversation(
        self,
        prompt: Prompt,
        sample: int,
        max_new_tokens: int | None = None,
        results: list[GenerationResult] | None = None,
        observers: Sequence[OutcomeObserver] = (),
    ) -> list[tuple[int, list[int]]]:
        """Answer all turns; for each the prompt tokens it added, and its answer.

        Args:
            prompt: To answer.
            sample: Which continuation.
            max_new_tokens: Per turn, instead of the arm's own.
            results: Takes the result of each turn.
            observers: Called with every step's outcome, outside the clock.
        """

        def answer(asked: list[int], turn: int) -> list[int]:
            if self.parts.controller.needs_foresight:
                foresee(
                    self.decoder,
                    asked,
                    max_new_tokens=max_new_tokens or self.generation.max_new_tokens,
                    eos_token_id=self.eos,
                    seed=self.generation.seed,
                    sequence=sequence_name(prompt, sample),
                )
            result = self.decoder.generate(
                asked,
                max_new_tokens=max_new_tokens or self.generation.max_new_tokens,
                eos_token_id=self.eos,
                seed=self.generation.seed,
                sequence=sequence_name(prompt, sample),
                continue_conversation=turn > 0,
                count_useful=self.count_useful,
                observers=observers,
            )
            if results is not None:
                results.append(result)
            return result.token_ids

        return list(turns(prompt, self.tokenizer, answer))
