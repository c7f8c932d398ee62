"""What the :class:`~specexp.controllers.Oracle` must know before a prompt is decoded: the output, and the schedule of
draft lengths that decodes it in the least time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.dialogue import Request

if TYPE_CHECKING:
    from specexp.core.decoder import Decoder
    from specexp.core.drafter import Drafter
    from specexp.core.latency import LatencyProfile

_BLOCK = 256
"""Tokens of the output that one draft request is about."""


def foresee(
    decoder: Decoder,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    eos_token_id: Collection[int] = (),
    seed: int = 0,
    sequence: int | str = 0,
) -> None:
    """Prepare the Oracle that controls a decoder for one call of its ``generate``; the decoder's caches are used.

    Args:
        decoder: Decoder whose controller needs foresight, such as an Oracle.
        prompt: Everything committed before the output.
        max_new_tokens: The same as for ``generate``.
        eos_token_id: The same as for ``generate``.
        seed: The same as for ``generate``.
        sequence: The same as for ``generate``.

    Raises:
        ValueError: the Oracle does not know what passes cost.
    """
    import torch

    from specexp.core.decoder import Decoder

    drafter, builder, verifier, _ = decoder.parts
    oracle: Any = decoder.parts.controller
    assert drafter is not None
    assert builder is not None
    latency = oracle.latency
    plain = Decoder(decoder.model, verifier=verifier)
    output = plain.generate(
        prompt, max_new_tokens=max_new_tokens, eos_token_id=eos_token_id, seed=seed, sequence=sequence
    ).token_ids
    noise_temperature = verifier.noise_temperature or 0.0
    with torch.inference_mode():
        matches = draft_matches(drafter, prompt, output, seed, sequence, noise_temperature)
    room = min(max_new_tokens, decoder.model.context_limit - len(prompt))
    deepest = min(oracle.max_depth, builder.max_nodes)
    depths = best_schedule(matches, latency, deepest, room, prefix=len(prompt) - 1)
    context = Context(prompt, seed=seed, sequence=sequence)
    oracle.foresee(context, {len(prompt) + place: depth for place, depth in enumerate(depths)})


def draft_matches(
    drafter: Drafter,
    prompt: Sequence[int],
    output: Sequence[int],
    seed: int = 0,
    sequence: int | str = 0,
    noise_temperature: float = 0.0,
) -> NDArray[np.bool_]:
    """``[n]`` whether the draft's best token after all that stands before it is the output's, by teacher forcing: one
    draft pass over the whole output, or over each block of a long one.

    Args:
        drafter: A draft model; it forgets the sequence it was in.
        prompt: ``[p]`` tokens before the output.
        output: ``[n]`` tokens.
        seed: Seed of the run.
        sequence: Which continuation.
        noise_temperature: Temperature of the target's noise, for a coupled draft.
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
    """``[n]`` the draft length at every place of an output, so that decoding it takes the least time.

    With ``m`` the run of matches from a place on, a draft of ``d`` tokens gives ``min(m, d) + 1`` of the output. Its
    first pass feeds what the draft model has not seen: the root, the last draft too if all of the step before were
    accepted, and one more for every step before it that drafted nothing. So the least time to go is a function of the
    place and of how many are unseen, from the end of the output back to its beginning.

    Args:
        matches: ``[n]`` whether the draft's best token is the output's.
        latency: What a step costs.
        max_depth: Longest draft.
        max_new_tokens: Length the output might have had; a draft never reaches beyond the one before.
        prefix: Tokens in the cache before the output; as many at all places as ``latency`` is stated at if None.

    Returns:
        The lengths along the best schedule; at places it passes over, the best with one token unseen.
    """
    size = matches.size
    unseen = np.arange(1, size + 3)  # by index: 1 and more tokens the draft model has not seen

    def priced(cached: int | None) -> tuple[list[float], NDArray[np.float64]]:
        """Seconds of a step by depth, but its first draft pass; and of that pass by unseen tokens. What new tokens
        cost is left out: every schedule commits the same.
        """
        depths = range(max_depth + 1)
        steps = [latency.step_seconds(depth + 1, [1] * (depth - 1), 0, cached) for depth in depths]
        passes = [latency.draft_seconds(int(count), cached) for count in unseen] if max_depth else []
        return steps, np.array(passes)

    target, first = priced(prefix)
    least = np.zeros((size + 1, unseen.size))
    choice = np.zeros((size + 1, unseen.size), dtype=np.int64)
    run = 0
    runs = [0] * size
    for place in reversed(range(size)):
        runs[place] = run = run + 1 if matches[place] else 0
        if prefix is not None and latency.by_prefix:
            target, first = priced(prefix + place)
        after = least[place + 1]
        best = target[0] + np.append(after[1:], after[-1])  # plain: one more token unseen
        for depth in range(1, min(max_depth, max_new_tokens - place - 1) + 1):
            accepted = min(run, depth)
            rest = least[min(place + accepted + 1, size), 1 if accepted == depth else 0]
            total = target[depth] + first + rest
            better = total < best
            best = np.where(better, total, best)
            choice[place, better] = depth
        least[place] = best
    depths: list[int] = choice[:size, 0].tolist()
    place, seen = 0, 0
    while place < size:
        depth = depths[place] = int(choice[place, seen])
        accepted = min(runs[place], depth)
        seen = min(seen + 1, unseen.size - 1) if depth == 0 else int(accepted == depth)
        place += accepted + 1
    return depths
