"""Hugging Face's own ``generate`` as arms, made to emit the engine's tokens, and counted from outside."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer
from typing_extensions import override

from specexp.bench.arm import Arm, Generation, eos_of, sequence_name, turns
from specexp.bench.arm_spec import can_follow, why_not
from specexp.bench.record import PromptRecord
from specexp.core.cache import context_limit
from specexp.core.contracts import ArgmaxVerifier
from specexp.core.dialogue import PLAIN
from specexp.core.language_model import compute_device
from specexp.core.noise import GumbelStream, place_key
from specexp.verifiers import KeyedSampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.core.contracts import Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt

_LOWEST = -1e30


class KeyedNoise(LogitsProcessor):  # type: ignore[misc]
    """Turns a greedy ``generate`` into keyed sampling: the argmax of ``s_t + g_t`` is the sample.

    Removed tokens (top-k, top-p) get a very low finite score: prompt lookup calls the processor with made-up
    scores to see which candidates are forbidden, which ``-inf`` means. The temperature is above 0; ``key`` is the noise
    stream of the sequence, ``place_key(seed, sequence, "target")``.
    """

    def __init__(self, verifier: KeyedSampling, key: tuple[int, int]) -> None:
        self.verifier = verifier
        self._noise = GumbelStream(key)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``[1, V]`` scores of the token after ``input_ids`` ``[1, t]``."""
        noise = self._noise.at(input_ids.shape[1], 1, scores.shape[1]).numpy()
        noisy = self.verifier.processed_scores(scores[0]) + noise[0]
        return torch.from_numpy(noisy).to(scores.device).clamp_(min=_LOWEST)[None]


Reference = Literal["hf-eager", "hf-assisted", "hf-prompt-lookup"]

_COMPOSITIONS = {
    "hf-eager": PLAIN,
    "hf-assisted": "DraftModel + StaticTree",
    "hf-prompt-lookup": "PromptLookup + StaticTree",
}
"""The composition that does the same; a loop has its overheads under a latency profile."""


class Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when ``generate`` returns tokens, and how many: first the prompt, then those of each pass."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.counts: list[int] = []

    @override
    def put(self, value: torch.Tensor) -> None:
        if self.first is None and self.counts:
            self.first = perf_counter()
        self.counts.append(value.numel())

    @override
    def end(self) -> None:
        return None


@dataclass
class GenerateRun:
    """One call of ``generate``, counted; it has the counts of a record."""

    prompt_tokens: int
    # [1, rows] token ids of every target pass: the prompt and its first candidates, then root and candidates
    fed: list[torch.Tensor] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    # for every forward pass of the draft model the target passes before it, and the tokens it was fed
    draft_fed: list[tuple[int, int]] = field(default_factory=list)
    started: float = 0.0  # when ``generate`` was called, in seconds of ``perf_counter``
    finished: float = 0.0

    @property
    def tokens_of_pass(self) -> list[int]:
        """New tokens of every target pass."""
        return self.clock.counts[1:]

    @property
    def prefill_seconds(self) -> float:
        """Seconds until the first tokens."""
        return (self.clock.first or self.finished) - self.started

    @property
    def decode_seconds(self) -> float:
        """Seconds after the first tokens."""
        return self.finished - (self.clock.first or self.finished)

    @property
    def steps(self) -> int:
        """Target passes."""
        return len(self.fed)

    @property
    def bonus_tokens(self) -> int:
        """Tokens that no candidate had."""
        return len(self.token_ids) - self.accepted_drafts

    @property
    def draft_passes(self) -> int:
        """Forward passes of the draft model."""
        return len(self.draft_fed)

    def modelled_seconds(self, profile: LatencyProfile) -> float:
        """Return seconds of decoding by a profile, without the target's first pass, which is prefill."""
        seconds, known = 0.0, self.prompt_tokens - 1  # in the cache before a pass: all but the root
        for step, (rows, new_tokens) in enumerate(zip(self.fed, self.tokens_of_pass, strict=True)):
            drafted = [tokens for at, tokens in self.draft_fed if at == step]
            if step > 0:
                seconds += profile.step_seconds(rows.shape[1], drafted, new_tokens, known)
            known += new_tokens
        return seconds

    def beyond(self, profile: LatencyProfile) -> int:
        """Return the target passes with more tokens than the profile states milliseconds for."""
        return sum(profile.exceeded_by(rows.shape[1]) for rows in self.fed[1:])

    @property
    def drafted_nodes(self) -> int:
        """Candidates fed to the target."""
        return sum(map(len, self._drafts()))

    @property
    def accepted_drafts(self) -> int:
        """Candidates that became output."""
        accepted = start = 0
        for draft, count in zip(self._drafts(), self.tokens_of_pass, strict=True):
            found = zip(draft, self.token_ids[start : start + count], strict=False)
            accepted += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], found))
            start += count
        return accepted

    def _drafts(self) -> Iterator[list[int]]:
        for number, rows in enumerate(self.fed):
            committed = self.prompt_tokens if number == 0 else 1
            yield [int(token) for token in rows[0, committed:].tolist()]


class HuggingFaceArm(Arm):
    """One of Hugging Face's own decoding loops.

    The clock of decoding starts when ``generate`` returns the first tokens, from its pass over the prompt, and stops
    when it ends; those first tokens are not in ``decode_tokens`` (see :class:`PromptRecord`). Every turn of a
    conversation is prefilled anew, because assisted generation cannot continue from a cache.

    Args:
        assistant_confidence_threshold: The draft stops below; 0 never.
        cache_implementation: The cache of ``hf-eager``, by transformers' name; its dynamic one if None.

    Raises:
        ValueError: ``hf-assisted`` has no draft, or the verifier has no equivalent here.
    """

    def __init__(
        self,
        name: str,
        reference: Reference,
        target: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        generation: Generation,
        verifier: Verifier | None = None,
        draft: PreTrainedModel | None = None,
        *,
        num_assistant_tokens: int = 4,
        assistant_confidence_threshold: float = 0.0,
        prompt_lookup_num_tokens: int = 8,
        max_matching_ngram_size: int = 2,
        cache_implementation: str | None = None,
        latency: LatencyProfile | None = None,
    ) -> None:
        verifier = verifier or ArgmaxVerifier()
        if reference not in get_args(Reference):
            raise ValueError(f"reference is {reference!r}; allowed are {', '.join(get_args(Reference))}")
        if not can_follow(verifier):
            raise ValueError(why_not(reference, verifier))
        if reference == "hf-assisted" and draft is None:
            raise ValueError(f"arm {name!r} is hf-assisted and the pair has no draft model: give pair.draft")
        self.name = name
        self.reference = reference
        self.target = target
        self.draft = draft if reference == "hf-assisted" else None
        self.tokenizer = tokenizer
        self.generation = generation
        self.verifier = verifier
        self.dtype = str(target.dtype).removeprefix("torch.")
        self.device = str(compute_device(target))
        if latency is not None and latency.modelled:
            self.latency = latency.of(_COMPOSITIONS[reference])
        self._limit = context_limit(target.config)
        self._cache = cache_implementation
        self._lookup = (prompt_lookup_num_tokens, max_matching_ngram_size)
        self._assistant_config: Any = None
        if self.draft is not None:
            self._assistant_config = copy.deepcopy(self.draft.generation_config)
            self._assistant_config.num_assistant_tokens = num_assistant_tokens
            self._assistant_config.num_assistant_tokens_schedule = "constant"
            self._assistant_config.assistant_confidence_threshold = assistant_confidence_threshold
        self.eos = eos_of(tokenizer, target) if generation.stop_at_eos else frozenset()

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        runs: list[GenerateRun] = []

        def answer(context: list[int], turn: int) -> list[int]:
            runs.append(self.generate(context, sequence_name(prompt, sample), max_new_tokens))
            return runs[-1].token_ids

        prompt_tokens = sum(tokens for tokens, _ in turns(prompt, self.tokenizer, answer))
        first_tokens = sum(run.tokens_of_pass[0] for run in runs)
        if self.latency is None:
            decoding = sum(run.decode_seconds for run in runs)
        else:
            decoding = sum(run.modelled_seconds(self.latency) for run in runs)
        return PromptRecord.of(
            self,
            prompt,
            sample,
            answers=[run.token_ids for run in runs],
            finish_reasons=[run.finish_reason for run in runs],
            counts=runs,
            prompt_tokens=prompt_tokens,
            prefill_seconds=sum(run.prefill_seconds for run in runs),
            decode_seconds=decoding,
            decode_tokens=sum(len(run.token_ids) for run in runs) - first_tokens,
            beyond_profile=0 if self.latency is None else sum(run.beyond(self.latency) for run in runs),
        )

    def generate(self, context: list[int], sequence: str, max_new_tokens: int | None) -> GenerateRun:
        """Call ``generate`` once and count; raises ValueError if the prompt does not fit."""
        size = len(context)
        room = self._limit - size
        if room < 1:
            raise ValueError(f"the prompt has {size} tokens and the model's context holds {self._limit}")
        wanted = max_new_tokens or self.generation.max_new_tokens
        run = GenerateRun(size)
        options: dict[str, Any] = {}
        if self.draft is not None:
            options["assistant_model"] = self.draft
        if self.verifier.noise_temperature:
            key = place_key(self.generation.seed, sequence, "target")
            noise = KeyedNoise(cast("KeyedSampling", self.verifier), key)
            options["logits_processor"] = LogitsProcessorList([noise])
        config = GenerationConfig(
            max_new_tokens=min(wanted, room),
            do_sample=False,
            eos_token_id=sorted(self.eos) or None,
            pad_token_id=min(self.eos, default=0),
        )
        if self._cache is not None:
            config.cache_implementation = self._cache
        if self.reference == "hf-prompt-lookup":
            config.prompt_lookup_num_tokens, config.max_matching_ngram_size = self._lookup
        input_ids = torch.tensor([context], device=self.device)  # [1, p]
        with self._counted(run, config), torch.inference_mode():
            run.started = perf_counter()
            mask = torch.ones_like(input_ids)
            output = self.target.generate(input_ids, attention_mask=mask, streamer=run.clock, **options)
            if self.device.startswith("cuda"):
                torch.cuda.synchronize(self.device)
            run.finished = perf_counter()
        run.token_ids = [int(token) for token in output[0, size:].tolist()]
        if run.token_ids[-1] in self.eos:
            run.finish_reason = "eos"
        elif wanted > room:
            run.finish_reason = "context"
        return run

    @contextmanager
    def _counted(self, run: GenerateRun, config: GenerationConfig) -> Iterator[None]:
        """Count passes, and exchange the models' generation settings for ours.

        ``generate`` fills settings that are None, such as no EOS, from the model's.
        """

        def count_target(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            run.fed.append(kwargs["input_ids"])

        def count_draft(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            run.draft_fed.append((len(run.fed), kwargs["input_ids"].shape[1]))

        counted = [(self.target, count_target, config)]
        if self.draft is not None:
            counted.append((self.draft, count_draft, self._assistant_config))
        kept = [model.generation_config for model, _, _ in counted]
        hooks = [model.register_forward_pre_hook(count, with_kwargs=True) for model, count, _ in counted]
        for model, _, settings in counted:
            model.generation_config = settings
        try:
            yield
        finally:
            for (model, _, _), settings, hook in zip(counted, kept, hooks, strict=True):
                model.generation_config = settings
                hook.remove()
