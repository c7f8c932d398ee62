"""Arms of the engine: any composition of parts, and plain decoding in the same loop."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import EngineArm, Generation, describe, eos_of, sequence_name, turns
from specexp.bench.oracle import foresee
from specexp.bench.record import MEASURED, PromptRecord
from specexp.controllers import Oracle
from specexp.core.generation_result import GenerationResult
from specexp.core.parts import DeterministicVerifier
from specexp.core.sequence import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from specexp.core.decoder import Decoder, OutcomeObserver
    from specexp.core.latency import LatencyProfile
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt


class DecoderArm(EngineArm):
    """A :class:`~specexp.core.decoder.Decoder` as an arm.

    Args:
        name: in every table.
        decoder: of any composition.
        tokenizer: the target's.
        generation: how much to generate.
        count_useful: also count useful tokens (outside the clock).
        latency: by which seconds are modelled, where it says so; measured if None.
        controller_state: what the controller learned from other prompts, that every run starts from.

    Attributes:
        observers: called with every step's outcome when a prompt is decoded, outside the clock.

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
        self.name = name
        self.decoder = decoder
        self.parts = decoder.parts
        self.tokenizer = tokenizer
        self.generation = generation
        self.count_useful = count_useful
        self.controller_state = dict(controller_state or {})
        self.drafter_state: dict[str, Any] = {}
        self.latency: LatencyProfile | None = None
        if latency is not None and latency.modelled:
            self.latency = latency.of(decoder.parts.label)
        self.observers: Sequence[OutcomeObserver] = ()
        self.eos = eos_of(tokenizer, decoder.model.model) if generation.stop_at_eos else frozenset()

    def replay(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        """All turns."""
        self.conversation(prompt, sample, observers=(observe,))

    @property
    def state(self) -> str:
        """The drafter's state policy; ``stateless`` without one."""
        return state_of(self.decoder.parts.drafter)

    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        """Answer all turns, keeping the cache between them."""
        results: list[GenerationResult] = []
        modelled = dict.fromkeys(PHASES, 0.0)
        beyond = 0

        def model_seconds(outcome: Outcome) -> None:
            nonlocal beyond
            assert self.latency is not None
            spent = self.latency.outcome_parts(outcome)
            beyond += self.latency.exceeded_by(outcome.tree.num_nodes + 1)
            modelled["target"] += spent.target
            modelled["draft"] += spent.draft
            modelled["update"] += spent.beside

        observers = self.observers if self.latency is None else (*self.observers, model_seconds)
        turns_taken = self.conversation(prompt, sample, max_new_tokens, results, observers)
        asked = [tokens for tokens, _ in turns_taken]
        counts = [result.counts for result in results]
        useful = [count.useful_tokens for count in counts if count.useful_tokens is not None]
        verifier = self.decoder.parts.verifier
        answers = [result.token_ids for result in results]
        token_ids = tuple(token for answer in answers for token in answer)
        seconds = {phase: sum(count.seconds[phase] for count in counts) for phase in PHASES}
        if self.latency is not None:
            seconds = modelled
        return PromptRecord(
            arm=self.name,
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            sample=sample,
            prompt_tokens=sum(asked),
            token_ids=token_ids,
            turn_tokens=tuple(len(answer) for answer in answers),
            finish_reasons=tuple(result.finish_reason for result in results),
            steps=sum(count.steps for count in counts),
            accepted_drafts=sum(count.accepted_drafts for count in counts),
            bonus_tokens=sum(count.bonus_tokens for count in counts),
            draft_passes=sum(count.draft_passes for count in counts),
            drafted_nodes=sum(count.drafted_nodes for count in counts),
            useful_tokens=sum(useful) if useful else None,
            prefill_seconds=sum(result.prefill_seconds for result in results)
            if self.latency is None
            else 0.0,
            decode_seconds=sum(seconds.values()),
            decode_tokens=len(token_ids),
            seconds=seconds,
            clock=MEASURED if self.latency is None else self.latency.label,
            beyond_profile=beyond,
            dtype=str(self.decoder.model.dtype).removeprefix("torch."),
            device=str(self.decoder.model.device),
            state=self.state,
            verifier=describe(verifier),
            lossless=verifier.lossless,
            keyed=isinstance(verifier, DeterministicVerifier),
            seed=self.generation.seed,
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
            prompt: to answer.
            sample: which continuation.
            max_new_tokens: per turn, instead of the arm's own.
            results: takes the result of each turn.
            observers: called with every step's outcome, outside the clock.
        """

        def answer(asked: list[int], turn: int) -> list[int]:
            if isinstance(self.decoder.parts.controller, Oracle):
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

    def reset(self) -> None:
        """Reset drafter and controller; they go on from what was remembered or given, if anything was."""
        if self.decoder.parts.drafter is not None:
            self.decoder.parts.drafter.reset()
        self.decoder.parts.controller.reset()
        if self.controller_state:
            self.decoder.parts.controller.load_state_dict(deepcopy(self.controller_state))
        if self.drafter_state and self.decoder.parts.drafter is not None:
            self.decoder.parts.drafter.load_state_dict(deepcopy(self.drafter_state))


def state_of(drafter: object) -> str:
    """A drafter's policy; of several in one, all that keep state, e.g. ``carry+cold``."""
    kept = {state_of(part) for part in getattr(drafter, "drafters", ())}
    kept.add(str(getattr(drafter, "state", "stateless")))
    return "+".join(sorted(kept - {"stateless"})) or "stateless"
