"""The decoding loop: knows only the interfaces of its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Tokens
from operator import index
from time import perf_counter

import numpy as np
import torch
from transformers import PreTrainedModel

from specexp.core.compatibility import check_composition
from specexp.core.context import Context
from specexp.core.generation_result import GenerationResult
from specexp.core.language_model import LanguageModel
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import Controller, Drafter, Parts, TreeBuilder, Verifier
from specexp.core.sequence import Sequence, Verification

OutcomeObserver = Callable[[Outcome], None]
_ROOM_AHEAD = 4096
"""New tokens whose room in the cache is reserved before the first of them; the cache of a longer output grows."""


class Decoder:
    """Generates with a target model and four freely composed parts.

    Args:
        target: a Hugging Face causal LM with full attention, or one already wrapped.
        drafter: who guesses; None, with ``builder`` None, is plain autoregressive decoding.
        builder: which guesses become nodes.
        verifier: what is accepted; greedy decoding if None.
        controller: how much to draft; the builder's own limits if None.

    Raises:
        ValueError: the parts cannot work together or with the target; the sentence says what to change.

    Example:
        >>> pair = specexp.load_pair("stdlib")  # doctest: +SKIP
        >>> decoder = Decoder(pair.target, TokenRecycling(), TokenRecyclingTree())  # doctest: +SKIP
        >>> decoder.generate(pair.tokenizer("def main(").input_ids, max_new_tokens=32).token_ids  # doctest: +SKIP
    """

    def __init__(
        self,
        target: PreTrainedModel | LanguageModel,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        controller: Controller | None = None,
    ) -> None:
        check_composition(drafter, builder, verifier, controller)
        self.model = target if isinstance(target, LanguageModel) else LanguageModel(target)
        self.parts = Parts(drafter, builder, verifier, controller)
        if drafter is not None:
            drafter.check_vocabulary(self.model.vocab_size)
        if builder is not None and builder.max_nodes >= self.model.context_limit:
            raise ValueError(
                f"{type(builder).__name__} makes trees of up to {builder.max_nodes} nodes and the target's context "
                f"holds {self.model.context_limit} tokens: lower its budget"
            )
        self._kept: Context | None = None

    def generate(
        self,
        input_ids: Tokens[int] | torch.Tensor,
        *,
        max_new_tokens: int = 128,
        eos_token_id: int | Collection[int] | None = None,
        seed: int | None = None,
        sequence: int | str | None = None,
        continue_conversation: bool = False,
        count_useful: bool = False,
        observers: Tokens[OutcomeObserver] = (),
    ) -> GenerationResult:
        """Continue one prompt.

        Args:
            input_ids: ``[p]`` or ``[1, p]`` prompt tokens, at least one.
            max_new_tokens: tokens to generate at most; never exceeded.
            eos_token_id: token or tokens that end the output.
            seed: seed of the run, for verifiers and drafters that draw; 0 if None. A continued conversation keeps
                its own.
            sequence: which continuation; n samples of a prompt need n values; 0 if None. A continued conversation
                keeps its own.
            continue_conversation: ``input_ids`` begins with everything the last call fed and generated: keep its
                cache and the parts' state, and prefill only what follows.
            count_useful: also count useful tokens (costs time outside the clock).
            observers: called with every step's outcome, outside the clock.

        Calls from several threads with one decoder, or with decoders that share a wrapped model, wait for each other.

        Raises:
            ValueError: the prompt holds no tokens, does not fit the context, or does not continue the last call's; a
                continued conversation is given another seed or sequence than its own; or an observer decodes with
                the model that it observes.
        """
        prompt = _token_list(input_ids)
        self.model.check_request(prompt, max_new_tokens)
        eos_token_ids = _eos_set(eos_token_id)
        with self.model.exclusively():
            started = perf_counter()
            if continue_conversation:
                context = self._continued(prompt, seed, sequence)
            else:
                context = self._context(prompt, seed or 0, 0 if sequence is None else sequence)
            if (
                context is not self.model.conversation
            ):  # a new one, or another decoder used the cache in between
                self.model.cache.truncate(0, 0)
            self._kept = self.model.conversation = context
            self._reserve(len(prompt) + min(max_new_tokens, _ROOM_AHEAD))
            self._prefill(context)
            self.model.synchronize()
            prefill_seconds = perf_counter() - started
            return self._decode(
                context, prefill_seconds, max_new_tokens, eos_token_ids, count_useful, observers
            )

    def _context(self, prompt: list[int], seed: int, sequence: int | str) -> Context:
        noise_temperature = self.parts.verifier.noise_temperature or 0.0
        return Context(prompt, seed=seed, sequence=sequence, noise_temperature=noise_temperature)

    @property
    def _learns_from_prompt(self) -> bool:
        drafter = self.parts.drafter
        return drafter is not None and drafter.wants_prefill_logits

    def _decode(
        self,
        context: Context,
        prefill_seconds: float,
        max_new_tokens: int,
        eos_token_ids: Collection[int],
        count_useful: bool,
        observers: Tokens[OutcomeObserver],
    ) -> GenerationResult:
        verification = Verification(
            self.model,
            self.parts.verifier,
            context,
            slot=0,
            max_new_tokens=max_new_tokens,
            eos_token_ids=eos_token_ids,
            count_useful=count_useful,
        )
        sequence = Sequence(self.parts, verification)
        seconds = sequence.counts.seconds
        with torch.inference_mode():
            while sequence.finish_reason is None:
                tree = sequence.draft()
                started = perf_counter()
                (logits,) = self.model.tree_pass((0,), (tree,))
                self.model.synchronize()
                seconds["target"] += perf_counter() - started
                outcome = sequence.absorb(logits)
                for observe in observers:
                    observe(outcome)
        return GenerationResult(
            context.new_token_ids, sequence.finish_reason, sequence.counts, prefill_seconds
        )

    def _prefill(self, context: Context) -> None:
        """Feed what the slot lacks, all but the root, and let the parts begin."""
        known = self.model.cache.lengths[0]
        fed = context.token_ids[known:-1]
        logits = self.model.prefill(0, fed.tolist(), all_logits=self._learns_from_prompt)
        outcome = None if logits is None else prefill_outcome(context, np.array(fed), logits)
        self._begin(context, outcome)

    def _begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.parts.drafter is not None:
            self.parts.drafter.begin(context, prefill)
        self.parts.controller.begin(context, prefill)

    def _continued(self, prompt: list[int], seed: int | None, sequence: int | str | None) -> Context:
        context = self._kept
        if context is None:
            raise ValueError(
                "there is no conversation to continue: call generate without continue_conversation first"
            )
        for name, given, kept in (("seed", seed, context.seed), ("sequence", sequence, context.sequence)):
            if given is not None and given != kept:
                raise ValueError(
                    f"{name} was {given!r}, but the conversation to continue has {kept!r}: leave it out, or start "
                    "a new conversation"
                )
        known = context.token_ids.tolist()
        if prompt[: len(known)] != known or len(prompt) == len(known):
            raise ValueError(
                f"the prompt of {len(prompt)} tokens does not continue the conversation: it must begin with the "
                f"{len(known)} tokens fed and generated so far and add at least one"
            )
        self.model.cache.truncate(0, len(known) - 1)  # an interrupted step may have left more
        context.next_turn(prompt[len(known) :])
        return context

    def _reserve(self, tokens: int) -> None:
        builder = self.parts.builder
        rows = 1 + (0 if builder is None else builder.max_nodes)
        self.model.cache.reserve(min(tokens, self.model.context_limit) + rows)


def _token_list(input_ids: Tokens[int] | torch.Tensor) -> list[int]:
    if isinstance(input_ids, Mapping):
        raise ValueError("the prompt is a tokenizer's whole answer: pass its input_ids")
    if isinstance(input_ids, str):
        raise ValueError("the prompt is text: pass a tokenizer's input_ids of it")
    try:
        tokens = np.asarray(input_ids.cpu() if isinstance(input_ids, torch.Tensor) else input_ids)
    except ValueError:  # lists of different lengths
        tokens = np.empty((len(input_ids), 0))
    if tokens.ndim == 2 and tokens.shape[0] != 1:
        raise ValueError(f"input_ids has a batch of {tokens.shape[0]}; one prompt a call is decoded")
    if tokens.ndim not in (1, 2) or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise ValueError(
            f"input_ids is {tokens.dtype} {list(tokens.shape)}; token ids [p] or [1, p] are expected"
        )
    return [int(token) for token in tokens.flatten()]


def _eos_set(eos_token_id: int | Collection[int] | None) -> frozenset[int]:
    if eos_token_id is None:
        return frozenset()
    if isinstance(eos_token_id, (torch.Tensor, np.ndarray)):
        eos_token_id = eos_token_id.flatten().tolist()
    try:
        return frozenset(map(index, eos_token_id if isinstance(eos_token_id, Collection) else [eos_token_id]))
    except TypeError as error:
        raise ValueError(f"eos_token_id is {eos_token_id!r}; a token id or several are expected") from error
