"""Arms that run Hugging Face's ``generate``. It produces the same tokens as our loop, and hooks count its passes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from time import perf_counter
from typing import Any, Literal, cast

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer
from typing_extensions import override

from specexp.bench.arm import Arm, Generation, eos_of, in_loops, sequence_name
from specexp.bench.arm_spec import can_follow, why_not
from specexp.bench.record import PromptRecord
from specexp.core.cache import context_limit
from specexp.core.context import repeats
from specexp.core.contracts import ArgmaxVerifier, Verifier
from specexp.core.dialogue import PLAIN
from specexp.core.language_model import compute_device
from specexp.core.latency import LatencyProfile
from specexp.core.noise import GumbelStream, place_key
from specexp.core.outcome import FinishReason, GenerationResult
from specexp.data import Prompt
from specexp.verifiers import KeyedSampling

_LOWEST = -1e30


class KeyedNoise(LogitsProcessor):  # type: ignore[misc]
    """Turns greedy ``generate`` into keyed sampling: the argmax of ``s_t + g_t`` is the sample.

    Tokens removed by top-k or top-p get a very low finite score, since prompt lookup treats ``-inf`` as a forbidden
    candidate. The temperature must be above 0, and ``key`` is ``place_key(seed, sequence, "target")``.
    """

    def __init__(self, verifier: KeyedSampling, key: tuple[int, int]) -> None:
        self.verifier = verifier
        self._noise = GumbelStream(key)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Add noise to the scores ``[1, V]`` of the token after ``input_ids`` ``[1, t]``."""
        noise = self._noise.at(input_ids.shape[1], 1, scores.shape[1])
        return self.verifier.scores(scores, noise.to(scores.device)).clamp_(min=_LOWEST)


class Repetition(StoppingCriteria):  # type: ignore[misc]
    """Stops a ``generate`` call when the tokens after the first ``prompt_tokens`` repeat (:func:`repeats`)."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.end: int | None = None  # number of new tokens in the output; later ones of the same pass are dropped
        self._checked = 0

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        """Check ``[1, t]`` tokens: the prompt and all new ones. A pass may have added several."""
        tokens: list[int] = input_ids[0, self.prompt_tokens :].tolist()
        ends = range(self._checked + 1, len(tokens) + 1)
        self.end = next((end for end in ends if repeats(tokens[:end])), None)
        self._checked = len(tokens)
        return torch.tensor([self.end is not None], device=input_ids.device)


Reference = Literal["hf-eager", "hf-assisted", "hf-prompt-lookup"]

_COMPOSITIONS = {
    "hf-eager": PLAIN,
    "hf-assisted": "DraftModel + StaticTree",
    "hf-prompt-lookup": "PromptLookup + StaticTree",
}
"""The composition equivalent to each loop. With a latency profile, the loop gets that composition's overheads."""


class _Passes(BaseStreamer):  # type: ignore[misc]
    """Records the passes of one ``generate`` call and the time of its first tokens."""

    def __init__(self) -> None:
        # [1, rows] token ids of every target pass: the prompt and its first candidates, then root and candidates
        self.target: list[torch.Tensor] = []
        # for every draft pass, the number of target passes before it and the number of tokens fed
        self.draft: list[tuple[int, int]] = []
        self.counts: list[int] = []  # number of tokens streamed: the prompt's, then each pass's
        self.times: list[float] = []  # when they were streamed

    @override
    def put(self, value: torch.Tensor) -> None:
        self.times.append(perf_counter())
        self.counts.append(value.numel())

    @override
    def end(self) -> None:
        return None


@dataclass
class GenerateRun(GenerationResult):
    """Counts from one ``generate`` call. Decode seconds start at the first tokens and are not split by phase."""

    tokens_of_pass: list[int] = field(default_factory=list)  # new tokens of every target pass
    seconds_of_pass: list[float] = field(default_factory=list)  # 0 for the first pass, which is prefill
    beyond_profile: int = 0


class HuggingFaceArm(Arm):
    """An arm that decodes with one of Hugging Face's own loops.

    The decoding clock starts when ``generate`` returns the first tokens, from its pass over the prompt. Those tokens
    are not counted in ``decode_tokens`` (see :class:`PromptRecord`). Every turn of a conversation is prefilled from
    scratch, because assisted generation cannot continue from a cache.

    Drafting stops when the draft's confidence falls below ``assistant_confidence_threshold``; with 0, it never does.
    ``cache_implementation`` is transformers' name for a cache; None selects its dynamic cache. Raises ValueError if
    ``hf-assisted`` has no draft model, or if Hugging Face's loops cannot produce the verifier's tokens.
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
        if not can_follow(verifier):
            raise ValueError(why_not(reference, verifier))
        if reference == "hf-assisted" and draft is None:
            raise ValueError(f"arm {name!r} is hf-assisted and needs a draft model: set pair.draft")
        self.name = name
        self.generation = generation
        self.verifier = verifier
        self.reference = reference
        self.target = target
        self.tokenizer = tokenizer
        self.draft = draft if reference == "hf-assisted" else None
        self.dtype = str(target.dtype).removeprefix("torch.")
        self.device = str(compute_device(target))
        if latency is not None and latency.modelled:
            self.latency = latency.of(_COMPOSITIONS[reference])
        self._limit = context_limit(target.config)
        self._cache = cache_implementation
        self._lookup = (prompt_lookup_num_tokens, max_matching_ngram_size)
        if self.draft is not None:
            self._assistant_config: Any = copy.deepcopy(self.draft.generation_config)
            self._assistant_config.update(
                num_assistant_tokens=num_assistant_tokens,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=assistant_confidence_threshold,
            )
        self.eos = eos_of(tokenizer, target) if generation.stop_at_eos else frozenset()

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        runs: list[GenerateRun] = []
        context: list[int] = []
        prompt_tokens = 0
        for turn in range(len(prompt.turns)):
            longer = prompt.turn_ids(self.tokenizer, turn, context)
            prompt_tokens += len(longer) - len(context)
            runs.append(self.generate(longer, sequence_name(prompt, sample), max_new_tokens))
            context = [*longer, *runs[-1].token_ids]
        steps = [step for run in runs for step in zip(run.tokens_of_pass, run.seconds_of_pass, strict=True)]
        decode_seconds = sum(run.decode_seconds for run in runs)
        return self.record(
            prompt,
            sample,
            runs,
            prompt_tokens=prompt_tokens,
            decode_seconds=decode_seconds,
            **in_loops([run.token_ids for run in runs], steps, decode_seconds),
            decode_tokens=sum(len(run.token_ids) - run.tokens_of_pass[0] for run in runs),
            beyond_profile=sum(run.beyond_profile for run in runs),
        )

    def generate(self, context: list[int], sequence: str, max_new_tokens: int | None) -> GenerateRun:
        """Call ``generate`` once and return its counts. Raises ValueError if the prompt does not fit in the context."""
        size = len(context)
        room = self._limit - size
        if room < 1:
            raise ValueError(
                f"the prompt has {size} tokens, but must be shorter than the model's context of {self._limit}"
            )
        wanted = max_new_tokens or self.generation.max_new_tokens
        options: dict[str, Any] = {} if self.draft is None else {"assistant_model": self.draft}
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
        config.cache_implementation = self._cache
        if self.reference == "hf-prompt-lookup":
            config.prompt_lookup_num_tokens, config.max_matching_ngram_size = self._lookup
        input_ids = torch.tensor([context], device=self.device)  # [1, p]
        passes = _Passes()
        repetition = Repetition(size)
        if self.generation.stop_at_repetition:
            options["stopping_criteria"] = StoppingCriteriaList([repetition])
        mask = torch.ones_like(input_ids)
        with self._counted(passes, config), torch.inference_mode():
            started = perf_counter()
            output = self.target.generate(input_ids, attention_mask=mask, streamer=passes, **options)
            if self.device.startswith("cuda"):
                torch.cuda.synchronize(self.device)
            finished = perf_counter()
        token_ids: list[int] = output[0, size:].tolist()
        reason: FinishReason = "context" if wanted > room else "length"
        if repetition.end is not None:
            reason = "repetition"
            passes.counts[-1] -= len(token_ids) - repetition.end
            del token_ids[repetition.end :]
        elif token_ids[-1] in self.eos:
            reason = "eos"
        times = [*passes.times[1:], finished]
        first = times[0]
        run = GenerateRun(token_ids, reason, steps=len(passes.target), tokens_of_pass=passes.counts[1:])
        run.seconds_of_pass = [0.0, *(later - now for now, later in pairwise(times[:-1]))]
        run.prefill_seconds = first - started
        run.seconds = {"decode": finished - first}
        self._count_drafts(run, size, passes)
        return run

    def _count_drafts(self, run: GenerateRun, prompt_tokens: int, passes: _Passes) -> None:
        """Add draft counts to ``run``. With a latency profile, replace its decode seconds with modelled ones."""
        modelled, place = 0.0, 0
        for step, (rows, new_tokens) in enumerate(zip(passes.target, run.tokens_of_pass, strict=True)):
            drafted = rows[0, prompt_tokens if step == 0 else 1 :].tolist()
            run.drafted_nodes += len(drafted)
            found = zip(drafted, run.token_ids[place : place + new_tokens], strict=False)
            run.accepted_drafts += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], found))
            if self.latency is not None and step > 0:  # the first pass is prefill
                fed = [tokens for before, tokens in passes.draft if before == step]
                cached = prompt_tokens - 1 + place  # all but the root
                run.seconds_of_pass[step] = self.latency.step_seconds(rows.shape[1], fed, new_tokens, cached)
                modelled += run.seconds_of_pass[step]
                run.beyond_profile += self.latency.exceeded_by(rows.shape[1])
            place += new_tokens
        run.draft_passes = len(passes.draft)
        run.bonus_tokens = len(run.token_ids) - run.accepted_drafts
        if self.latency is not None:
            run.seconds = {"decode": modelled}

    @contextmanager
    def _counted(self, passes: _Passes, config: GenerationConfig) -> Iterator[None]:
        """Count passes within the block, where our generation settings replace the models' own.

        Otherwise, ``generate`` would replace settings that are None, such as the EOS token, with the model's.
        """

        def count_target(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            passes.target.append(kwargs["input_ids"])

        def count_draft(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            passes.draft.append((len(passes.target), kwargs["input_ids"].shape[1]))

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
