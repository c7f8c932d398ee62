"""The arm of our engine, for any composition of parts and for plain decoding, and the schedule of an Oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.bench.analysis import Sources
from specexp.bench.arm import EngineArm, Generation, ModelledSeconds, eos_of, sequence_name, turns
from specexp.bench.record import PromptRecord
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.outcome import PHASES, GenerationResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.core.contracts import Drafter
    from specexp.core.latency import LatencyProfile
    from specexp.core.loop import Decoder, OutcomeObserver
    from specexp.data import Prompt

_BLOCK = 256
"""Output tokens that one draft request covers."""


class DecoderArm(EngineArm):
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
            if self.parts.controller.needs_foresight:
                prepare_oracle(self.decoder, context, **settings)
            result = self.decoder.generate(
                context, continue_conversation=turn > 0, observers=observers, **settings
            )
            results.append(result)
            return result.token_ids

        return sum(tokens for tokens, _ in turns(prompt, self.tokenizer, answer)), results


def prepare_oracle(
    decoder: Decoder,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    seed: int = 0,
    sequence: int | str = 0,
    **ending: Any,
) -> None:
    """Prepare the Oracle of a decoder for one call of ``generate`` with the same arguments.

    Raises ValueError if the Oracle has no latency profile.
    """
    import torch

    from specexp.core.loop import Decoder

    drafter, builder, verifier, _ = decoder.parts
    oracle: Any = decoder.parts.controller
    assert drafter is not None
    assert builder is not None
    plain = Decoder(decoder.model, verifier=verifier)
    output = plain.generate(
        prompt, max_new_tokens=max_new_tokens, seed=seed, sequence=sequence, **ending
    ).token_ids
    noise_temperature = verifier.noise_temperature or 0.0
    with torch.inference_mode():
        matches = draft_matches(drafter, prompt, output, seed, sequence, noise_temperature)
    room = min(max_new_tokens, decoder.model.context_limit - len(prompt))
    deepest = min(oracle.max_depth, builder.max_nodes)
    depths = best_schedule(matches, oracle.latency, deepest, room, prefix=len(prompt) - 1)
    context = Context(prompt, seed=seed, sequence=sequence)
    oracle.set_schedule(context, {len(prompt) + place: depth for place, depth in enumerate(depths)})


def draft_matches(
    drafter: Drafter,
    prompt: Sequence[int],
    output: Sequence[int],
    seed: int = 0,
    sequence: int | str = 0,
    noise_temperature: float = 0.0,
) -> NDArray[np.bool_]:
    """Return ``[n]`` whether the draft's best token is the output's, given all output before it (teacher forcing).

    Runs one draft pass over each block of the output ``[n]``, and resets the drafter, which must be a draft model.
    The noise is that of a coupled draft.
    """
    found: list[NDArray[np.bool_]] = []
    for start in range(0, len(output), _BLOCK):
        block = np.array(output[start : start + _BLOCK], dtype=np.int64)
        context = Context(
            [*prompt, *output[:start]], seed=seed, sequence=sequence, noise_temperature=noise_temperature
        )
        drafter.begin(context, None)
        rows = np.arange(block.size)
        fed = np.append(context.root, block[:-1])
        ranks = np.where(rows == 0, -1, 0)
        answer = drafter.propose(context, Request(fed, rows - 1, ranks, rows, 1))
        found.append(answer.tokens[:, 0] == block)
    drafter.reset()
    return np.concatenate(found)


def best_schedule(
    matches: NDArray[np.bool_],
    latency: LatencyProfile,
    max_depth: int,
    max_new_tokens: int,
    prefix: int | None = None,
) -> list[int]:
    """Return the draft length at each of the ``[n]`` positions of an output that minimises the time to decode it.

    With ``m`` matches from a position on, a draft of ``d`` tokens gives ``min(m, d) + 1`` tokens of the output. Its
    first pass feeds the tokens that the draft model has not seen. These are the root, the last token of the draft
    before if all of it was accepted, and one more for every step since then without a draft. The least time to the end
    is thus a function of the position and the number of unseen tokens, computed backwards.

    Args:
        matches: ``[n]`` whether the draft's best token is the output's.
        max_new_tokens: Limit of the output's length; a draft ends at least one token before it.
        prefix: Tokens in the cache before the output; None takes the number that ``latency`` is stated for.

    Returns:
        The lengths along the best schedule. A position that it skips has the best length for one unseen token.
    """
    size = matches.size
    unseen = np.arange(1, size + 3)  # by index, the number of tokens that the draft model has not seen

    def priced(cached: int | None) -> tuple[list[float], NDArray[np.float64]]:
        """Return seconds of a step by depth without its first draft pass, and of that pass by unseen tokens.

        The cost of new tokens is left out: every schedule commits the same tokens.
        """
        depths = range(max_depth + 1)
        steps = [latency.step_seconds(depth + 1, [1] * (depth - 1), 0, cached) for depth in depths]
        passes = [latency.draft_seconds(int(count), cached) for count in unseen] if max_depth else []
        return steps, np.array(passes)

    target, first = priced(prefix)
    # least[p, u]: least seconds from place p to the end if the draft model has not seen u + 1 tokens
    least = np.zeros((size + 1, unseen.size))
    choice = np.zeros((size + 1, unseen.size), dtype=np.int64)
    run = 0
    runs = [0] * size
    for place in reversed(range(size)):
        runs[place] = run = run + 1 if matches[place] else 0
        if prefix is not None and latency.by_prefix:
            target, first = priced(prefix + place)
        after = least[place + 1]
        best = target[0] + np.append(after[1:], after[-1])  # depth 0, plain: one more token unseen
        for depth in range(1, min(max_depth, max_new_tokens - place - 1) + 1):
            accepted = min(run, depth)
            # if all of the draft is accepted, its last token is unseen too
            rest = least[min(place + accepted + 1, size), 1 if accepted == depth else 0]
            total = target[depth] + first + rest
            better = total < best
            best = np.where(better, total, best)
            choice[place, better] = depth
        least[place] = best
    # walk along the best schedule: the unseen tokens of a step depend on the steps before
    depths: list[int] = choice[:size, 0].tolist()
    place, unseen_now = 0, 0
    while place < size:
        depth = depths[place] = int(choice[place, unseen_now])
        accepted = min(runs[place], depth)
        unseen_now = min(unseen_now + 1, unseen.size - 1) if depth == 0 else int(accepted == depth)
        place += accepted + 1
    return depths
