"""The backend that runs models, with one pair loaded for all arms, and the arm that uses our loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, get_args

from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from specexp.artifacts import Fingerprint, fingerprint
from specexp.bench.arm import Arm, Generation, LearningArm, ModelledSeconds, StepTimes, eos_of, in_loops, sequence_name
from specexp.bench.arm_spec import ArmSpec, Backend
from specexp.bench.execution_arm import ExecutionArm, Solver
from specexp.bench.hugging_face_arm import HuggingFaceArm, Reference
from specexp.bench.observers import Sources
from specexp.bench.record import PromptRecord
from specexp.constraints.grammar import constraint_of
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder
from specexp.core.outcome import PHASES, GenerationResult
from specexp.core.runtime import Runtime
from specexp.data import Prompt
from specexp.models.pair import ModelPair


class DecoderArm(LearningArm):
    """An arm that decodes with a :class:`~specexp.core.loop.Decoder`.

    Seconds are measured if ``latency`` is None or does not model them.
    """

    constrains = True

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
        self._ends = eos_of(tokenizer, decoder.model.model)
        self.eos = self._ends if generation.stop_at_eos else frozenset()

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        modelled = None if self.latency is None else ModelledSeconds(self.latency)
        sources, generation = Sources(self.parts.drafter), self.generation
        spec, size = prompt.structured_outputs, self.decoder.model.vocab_size
        context: list[int] = []
        results: list[GenerationResult] = []
        times = StepTimes(modelled)
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
                constraint=None if spec is None else constraint_of(spec, self.tokenizer, size, self._ends),
                observers=[*self.observers, sources, times],
            )
            results.append(result)
            context = [*longer, *result.token_ids]
        measured = {phase: sum(result.seconds[phase] for result in results) for phase in PHASES}
        seconds = measured if modelled is None else modelled.seconds
        return self.record(
            prompt,
            sample,
            results,
            prompt_tokens=prompt_tokens,
            seconds=seconds,
            **in_loops([result.token_ids for result in results], times.steps, sum(seconds.values())),
            beyond_profile=0 if modelled is None else modelled.beyond,
            sources=tuple(sources.found),
            nodes_by_source={name: (count, sources.accepted[name]) for name, count in sources.nodes.items()},
        )


class LiveBackend(Backend):
    """A backend that loads a pair of models once. All arms share the target's cache and its single self-check.

    Multi-sequence arms solve the solver's problems by search, and continue all other prompts.
    """

    def __init__(self, pair: ModelPair, solver: Solver | None = None) -> None:
        self.pair: ModelPair = pair
        self.model = pair.target_runtime()
        self.tokenizer = pair.tokenizer
        # transformers cannot run llama.cpp's models
        self.references: Collection[str] = () if isinstance(pair.target, Runtime) else get_args(Reference)
        self.solver = solver

    @cached_property
    def draft(self) -> Runtime | None:
        """The pair's draft model. Every drafter makes a copy of it."""
        return self.pair.draft_runtime()

    @override
    def arm(self, spec: ArmSpec) -> Arm:
        """Return an arm with a decoder, an execution strategy or one of Hugging Face's loops."""
        generation, tokenizer = spec.generation, self.tokenizer
        if spec.reference is not None:
            if not self.references:
                raise ValueError(
                    f"{spec.reference} is a loop of transformers, which cannot run pair.target {self.pair.name!r} "
                    "in llama.cpp: leave the arm out, or set pair.mode to eager"
                )
            loop: Any = spec.reference
            models = {"verifier": spec.parts.verifier, "draft": self.pair.draft, "latency": spec.latency}
            settings = {**models, **spec.settings}
            return HuggingFaceArm(spec.name, loop, self.pair.target, tokenizer, generation, **settings)
        if spec.execution is not None:
            return ExecutionArm(spec, self.model, tokenizer, self.solver)
        decoder = Decoder(self.model, *spec.parts)
        return DecoderArm(spec.name, decoder, tokenizer, generation, spec.latency, spec.controller_state)

    @override
    def fingerprint(self) -> Fingerprint:
        return fingerprint(self.pair.target, self.pair.tokenizer)

    @override
    def provenance(self, arm: Arm) -> dict[str, Any]:
        return self.model.provenance()
