"""The best draft lengths in hindsight: a controller that follows them, and the callback that computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.bench.arm import sequence_name
from specexp.bench.live import DecoderArm
from specexp.bench.module import EvaluationModule
from specexp.core.context import Context
from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
from specexp.core.dialogue import Plan, Request
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder
from specexp.core.tree import NodeKind
from specexp.data import Prompt

BLOCK = 256
"""Output tokens that one draft request covers."""
_SEQUENCES_KEPT = 256


class Oracle(Controller):
    """Takes each step's draft length from a schedule that was computed from the finished output.

    No other controller of chains of the same draft model takes less time under the same costs. It cannot be deployed,
    because it needs the output beforehand: in ``python -m specexp.run``, :class:`Hindsight` computes the schedule. If a
    token differs from the expected one (in bfloat16, at a near tie), the schedule continues by position.

    Args:
        step_ms: cost of a target pass in milliseconds; if None, the run's latency profile is used.
        draft_pass_ms: cost of a draft pass in milliseconds; set together with ``step_ms``.

    Raises:
        ValueError: one of ``step_ms`` and ``draft_pass_ms`` is given without the other.
    """

    uses_seconds = False
    learns = False

    def __init__(
        self,
        max_depth: Annotated[int, Field(ge=0)] = 24,
        step_ms: Annotated[float, Field(gt=0)] | None = None,
        draft_pass_ms: Annotated[float, Field(ge=0)] | None = None,
    ) -> None:
        if (step_ms is None) != (draft_pass_ms is None):
            raise ValueError("Oracle: step_ms and draft_pass_ms must be given together: set both, or neither")
        self.max_depth = max_depth
        self.step_ms = step_ms
        self.draft_pass_ms = draft_pass_ms
        self._profile: LatencyProfile | None = None
        if step_ms is not None and draft_pass_ms is not None:
            self._profile = LatencyProfile("given to the Oracle", {1: step_ms}, {1: draft_pass_ms})
        self._schedules: dict[tuple[int, int | str], Mapping[int, int]] = {}

    @property
    def latency(self) -> LatencyProfile:
        """Costs of target and draft passes; raises ``ValueError`` if they are unknown."""
        if self._profile is None:
            raise ValueError(
                "Oracle needs the costs of passes: compose a latency profile, or give step_ms and draft_pass_ms"
            )
        return self._profile

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        if self.step_ms is None:
            self._profile = profile
            _ = self.latency  # raises if there is none

    @override
    def check_parts(self, drafter: Drafter | None, builder: TreeBuilder | None, verifier: Verifier | None) -> None:
        if drafter is None or drafter.inner or not drafter.runs_model or drafter.learns_from == "unknown":
            given = "plain decoding" if drafter is None else type(drafter).__name__
            raise ValueError(
                f"Oracle needs a DraftModel, since its best tokens depend on the text alone, got {given}: use another "
                "controller"
            )
        paths = None if builder is None else builder.rank_paths
        chain = paths is not None and not any(map(any, paths))
        if builder is None or not chain or builder.kind is not NodeKind.POINT_MASS:
            raise ValueError(
                f"Oracle needs a Chain of top-k candidates, got {type(builder).__name__}: use another controller"
            )
        if verifier is not None and verifier.sampling != "deterministic":
            raise ValueError(
                "Oracle needs an output that does not depend on the drafts, got "
                f"{type(verifier).__name__}: verify with Greedy or KeyedSampling"
            )

    def set_schedule(self, context: Context, depths: Mapping[int, int]) -> None:
        """Set a sequence's schedule: its draft length by number of committed tokens. A reset keeps the schedule."""
        key = context.seed, context.sequence
        self._schedules.pop(key, None)  # it becomes the newest
        if len(self._schedules) >= _SEQUENCES_KEPT:
            del self._schedules[next(iter(self._schedules))]
        self._schedules[key] = dict(depths)

    @override
    def plan(self, context: Context) -> Plan:
        depth = self._schedules.get((context.seed, context.sequence), {}).get(len(context))
        if depth is None:
            raise ValueError(
                f"Oracle has no schedule for sequence {context.sequence!r} after {len(context)} tokens: add "
                "experiments.papers.oracle.Hindsight to trainer.callbacks"
            )
        return Plan(max_depth=min(depth, self.max_depth))


class Hindsight(Callback):
    """Sets the schedules of a run's Oracles before each prompt, outside measured time."""

    @override
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Prompt, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        assert isinstance(pl_module, EvaluationModule)
        for arm in pl_module.arms:
            if isinstance(arm, DecoderArm) and isinstance(arm.parts.controller, Oracle):
                prompt = pl_module.orders[arm.name][batch_idx] if arm.name in pl_module.orders else batch
                for sample in range(pl_module.samples):
                    look_ahead(arm, arm.parts.controller, prompt, sample)


def look_ahead(arm: DecoderArm, oracle: Oracle, prompt: Prompt, sample: int = 0) -> None:
    """Answer all turns of a prompt without drafts, and set the oracle's schedule for the same answers."""
    drafter, builder, verifier, _ = arm.decoder.parts
    assert drafter is not None
    assert builder is not None
    plain, most = Decoder(arm.decoder.model, verifier=verifier), arm.generation.max_new_tokens
    seed, sequence = arm.generation.seed, sequence_name(prompt, sample)
    temperature, deepest = verifier.noise_temperature or 0.0, min(oracle.max_depth, builder.max_nodes)
    schedule: dict[int, int] = {}

    context: list[int] = []
    for turn in range(len(prompt.turns)):
        longer = prompt.turn_ids(arm.tokenizer, turn, context)
        output = plain.generate(
            longer,
            max_new_tokens=most,
            eos_token_id=arm.eos,
            stop_at_repetition=arm.generation.stop_at_repetition,
            seed=seed,
            sequence=sequence,
        ).token_ids
        with torch.inference_mode():
            matches = draft_matches(drafter, longer, output, seed, sequence, temperature)
        room = min(most, plain.model.context_limit - len(longer))
        depths = best_schedule(matches, oracle.latency, deepest, room, prefix=len(longer) - 1)
        schedule.update(enumerate(depths, start=len(longer)))
        context = [*longer, *output]
    oracle.set_schedule(Context([0], seed=seed, sequence=sequence), schedule)


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
    ``noise_temperature`` is the temperature of a coupled draft's noise.
    """
    found: list[NDArray[np.bool_]] = []
    for start in range(0, len(output), BLOCK):
        block = np.array(output[start : start + BLOCK], dtype=np.int64)
        context = Context([*prompt, *output[:start]], seed=seed, sequence=sequence, noise_temperature=noise_temperature)
        drafter.begin(context, None)
        rows = np.arange(block.size)
        fed = np.append(context.root, block[:-1])
        ranks = np.where(rows == 0, -1, 0)
        answer = drafter.propose(context, Request(fed, rows - 1, ranks, rows, 1))
        found.append(answer.tokens[:, 0] == block)
    drafter.reset()
    return np.concatenate(found)


def best_schedule(
    matches: NDArray[np.bool_], latency: LatencyProfile, max_depth: int, max_new_tokens: int, prefix: int | None = None
) -> list[int]:
    """Return the draft length at each of the ``[n]`` positions of an output that minimizes the time to decode it.

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
