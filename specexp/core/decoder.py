"""One prompt, decoded by a model and four freely composed parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import index
from secrets import randbits
from time import perf_counter

import numpy as np
import torch
from transformers import PreTrainedModel

from specexp.core.checked import check_arguments
from specexp.core.compatibility import check_composition, join_target
from specexp.core.context import Context
from specexp.core.controller import Controller
from specexp.core.decode import Decoding, OutcomeObserver
from specexp.core.drafter import Drafter
from specexp.core.drafting import Drafting
from specexp.core.generation import GenerationResult
from specexp.core.lane import Lane
from specexp.core.language_model import runtime_for
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.core.tree_builder import TreeBuilder
from specexp.core.verifier import Verifier

_ROOM_AHEAD = 4096
"""New tokens whose room in the cache is reserved before the first of them; the cache of a longer output grows."""


class Decoder:
    """Generates with a target model and four freely composed parts: one lane.

    Args:
        target: a Hugging Face causal LM with full attention, or one already wrapped. A model of
            :func:`specexp.load_pair` runs in its pair's mode, any other one by its own code.
        drafter: who guesses; None, with ``builder`` None, is plain autoregressive decoding.
        builder: which guesses become nodes.
        verifier: what is accepted; greedy decoding if None.
        controller: how much to draft; the builder's own limits if None.

    Raises:
        ValueError: the parts cannot work together or with the target; the sentence says what to change.

    Example:
        >>> pair = specexp.load_pair("stdlib")  # doctest: +SKIP
        >>> decoder = Decoder(pair.target, TokenRecycling(), TokenRecyclingTree())  # doctest: +SKIP
        >>> decoder.generate(pair.tokenizer("def main():\\n").input_ids, max_new_tokens=32).token_ids  # doctest: +SKIP
    """

    def __init__(
        self,
        target: PreTrainedModel | Runtime,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        controller: Controller | None = None,
    ) -> None:
        check_composition(drafter, builder, verifier, controller)
        self.model = runtime_for(target)
        self.parts = Parts(drafter, builder, verifier, controller)
        join_target(self.parts, self.model)
        self._kept: Context | None = None

    def generate(
        self,
        input_ids: Sequence[int] | torch.Tensor,
        *,
        max_new_tokens: int = 128,
        eos_token_id: int | Collection[int] | None = None,
        seed: int | None = None,
        sequence: int | str | None = None,
        continue_conversation: bool = False,
        count_useful: bool = False,
        observers: Sequence[OutcomeObserver] = (),
    ) -> GenerationResult:
        """Continue one prompt.

        Args:
            input_ids: ``[p]`` or ``[1, p]`` prompt tokens, at least one.
            max_new_tokens: tokens to generate at most; never exceeded.
            eos_token_id: token or tokens that end the output.
            seed: seed of the run, for verifiers and drafters that draw. Without one the system's entropy draws it, and
                :attr:`GenerationResult.seed` says which; a continued conversation keeps its own.
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
        model, parts = self.model, self.parts
        prompt = _token_list(input_ids)
        model.check_request(prompt, max_new_tokens)
        others = {"seed": seed, "sequence": sequence, "continue_conversation": continue_conversation}
        check_arguments(
            Decoder.generate, (), {**others, "count_useful": count_useful, "observers": observers}
        )
        eos_token_ids = _eos_set(eos_token_id, model.vocab_size)
        with model.exclusively(), torch.inference_mode():
            started = perf_counter()
            if continue_conversation:
                context = self._continued(prompt, seed, sequence)
            else:
                context = parts.context(
                    prompt, randbits(62) if seed is None else seed, 0 if sequence is None else sequence
                )
            if context is not model.conversation:  # a new one, or another decoder used the cache in between
                model.cache.truncate(0, 0)
            self._kept = model.conversation = context
            model.keep_hidden(
                parts.wants_hidden
            )  # of decoders that share the model another may have asked for them
            room = min(len(prompt) + min(max_new_tokens, _ROOM_AHEAD), model.context_limit)
            model.cache.reserve(room + parts.max_rows)
            lane = Lane(
                context,
                model,
                parts.verifier,
                Drafting(parts, context),
                max_new_tokens=max_new_tokens,
                eos_token_ids=eos_token_ids,
                count_useful=count_useful,
            )
            decoding = Decoding(model, observers)
            decoding.start(lane, parts.wants_prefill_logits, started)
            while decoding.lanes:
                decoding.step()
        return lane.result

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


def _token_list(input_ids: Sequence[int] | torch.Tensor) -> list[int]:
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
        given = f"{tokens.dtype} {list(tokens.shape)}"
        if tokens.ndim == 0 or tokens.dtype.kind not in "biuf":
            given = f"{input_ids!r:.60}"
        raise ValueError(f"input_ids is {given}; token ids [p] or [1, p] are expected")
    return [int(token) for token in tokens.flatten()]


def _eos_set(eos_token_id: int | Collection[int] | None, vocab_size: int) -> frozenset[int]:
    if eos_token_id is None:
        return frozenset()
    if isinstance(eos_token_id, (torch.Tensor, np.ndarray)):
        eos_token_id = eos_token_id.flatten().tolist()
    given = eos_token_id if isinstance(eos_token_id, Collection) else [eos_token_id]
    try:
        if any(isinstance(token, bool) for token in given):
            raise TypeError("a truth is no token")
        found = frozenset(map(index, given))
    except TypeError as error:
        raise ValueError(f"eos_token_id is {eos_token_id!r}; a token id or several are expected") from error
    if unknown := sorted(found - set(range(vocab_size))):
        raise ValueError(
            f"eos_token_id is {unknown[0]}; the target's vocabulary has ids 0 to {vocab_size - 1}"
        )
    return found
