"""What a chain of drawn candidates takes under rejection sampling, given the output: expected values in closed form.

At every position of the output the chain's next token ``y`` is drawn from the draft's ``q`` and accepted with
probability ``min(1, p(y) / q(y))``, ``p`` the target's; if it is rejected the output's token is drawn from what ``p``
has left (Leviathan et al. 2023). So the output's token ``x`` comes by acceptance with probability ``q(x) min(1, p(x) /
q(x)) = min(p(x), q(x))``, and by either way with ``p(x)``::

    P(accepted | the output's token is x) = min(1, q(x) / p(x))

``p`` and ``q`` depend on the output before the position alone, and the randomness of every position is its own: given
the output, acceptances at the positions a chain comes by are independent. Which roots a run visits is then a Markov
chain over positions, and everything counted is a sum over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.replay.format.errors import NotRecordedError
from specexp.replay.format.recorded_turn import RecordedTurn


@dataclass(frozen=True)
class ExpectedCounts:
    """Expected values of :class:`specexp.core.generation.GenerationResult` over all runs that give the recorded output.

    Attributes:
        steps: Target passes.
        accepted_drafts: Drafted tokens that became output.
        bonus_tokens: Tokens the target added itself.
        draft_passes: Passes of the draft model.
        drafted_nodes: Nodes fed to the target.
        drafted_at: Steps that drafted each position, from the first.
        accepted_at: Steps that accepted it.
        seconds: Seconds of the latency profile by phase; empty without one.
        beyond_profile: Steps that fed more tokens than the profile states milliseconds for, rounded up.
    """

    steps: float
    accepted_drafts: float
    bonus_tokens: float
    draft_passes: float
    drafted_nodes: float
    drafted_at: tuple[float, ...] = ()
    accepted_at: tuple[float, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    beyond_profile: int = 0


def acceptance(turn: RecordedTurn, positions: int) -> NDArray[np.float64]:
    """``[positions]`` probability that a drawn token which became output was accepted.

    Args:
        turn: A turn with the log-probabilities of its output.
        positions: Number of positions, the first ones of the output.

    Raises:
        NotRecordedError: The draft's are missing somewhere.
    """
    target = turn.target_log_probs[:positions].astype(np.float64)
    draft = turn.draft_log_probs[:positions].astype(np.float64)
    missing = np.flatnonzero(np.isnan(draft))
    if missing.size:
        raise NotRecordedError(
            f"prompt {turn.prompt_id!r}: the draft's probability of new token {missing[0]} was not recorded; record "
            "with a DraftModel that is not coupled, and a coverage of at least a Chain"
        )
    return np.exp(np.minimum(0.0, draft - target))


def chain_length(parts: Parts) -> int:
    """Tokens that a chain drafts in every step where there is room, within the limits of a ``Fixed``."""
    assert parts.builder is not None
    limits = [parts.builder.max_nodes]
    if parts.controller is not None:
        plan = parts.controller.plan(Context([0]))
        limits += [limit for limit in (plan.max_depth, plan.max_nodes) if limit is not None]
    return min(limits)


def expected_counts(
    turn: RecordedTurn,
    length: int,
    *,
    max_new_tokens: int,
    context_limit: int,
    latency: LatencyProfile | None = None,
) -> ExpectedCounts:
    """What a chain takes that the output was decoded with.

    Args:
        turn: The turn that is replayed.
        length: Nodes of the chain; 0 is plain decoding.
        max_new_tokens: Tokens to generate, at most as many as were recorded.
        context_limit: Tokens that the target's context holds.
        latency: Costs of the composition (:meth:`LatencyProfile.of`), whose seconds are charged.

    Raises:
        NotRecordedError: The draft's probability of a token was not recorded.
    """
    size = min(turn.answer.size, max_new_tokens)
    room = min(max_new_tokens, context_limit - turn.prompt.size) - 1  # deepest node of use at the first root
    lengths = np.clip(room - np.arange(size), 0, length)
    drafted_at = int(np.count_nonzero(lengths))
    rates = np.zeros(size)
    rates[:drafted_at] = acceptance(turn, drafted_at)
    # probability of a step at each root: after a chain that was accepted whole, and after any other
    visits = np.zeros((size + 1, 2))
    visits[0, 0] = 1.0
    accepted_at = np.zeros(length)
    for root, chain in enumerate(lengths.tolist()):
        here = float(visits[root].sum())
        most = min(chain, size - root)  # a chain may go on behind the output's end
        reached = here * np.cumprod(
            rates[root : root + most]
        )  # [most] that so many and one more were accepted
        accepted_at[: reached.size] += reached
        ends = -np.diff(reached, prepend=here, append=0.0)  # [most + 1] that exactly so many were
        for count, probability in enumerate(ends.tolist()):
            whole = int(count == chain > 0)
            visits[min(root + count + 1, size), whole] += probability
    steps = visits[:size].sum(axis=1)  # [size]
    drafted, accepted = float(steps @ lengths), float(accepted_at.sum())
    drafted_at = steps @ (lengths[:, np.newaxis] > np.arange(length))  # [length]
    seconds, beyond = {}, 0
    if latency is not None:
        seconds = _seconds(turn, latency, lengths, visits)
        beyond = ceil(
            sum(steps[root] for root, chain in enumerate(lengths.tolist()) if latency.exceeded_by(chain + 1))
        )
    return ExpectedCounts(
        steps=float(steps.sum()),
        accepted_drafts=accepted,
        bonus_tokens=size - accepted,
        draft_passes=drafted,
        drafted_nodes=drafted,
        drafted_at=tuple(drafted_at.tolist()),
        accepted_at=tuple(accepted_at.tolist()),
        seconds=seconds,
        beyond_profile=beyond,
    )


def _seconds(
    turn: RecordedTurn,
    latency: LatencyProfile,
    lengths: NDArray[np.int64],
    visits: NDArray[np.float64],
) -> dict[str, float]:
    """By phase; after a chain that was accepted whole the next first pass feeds its last token too."""
    spent = dict.fromkeys(("draft", "target", "update"), 0.0)
    for root, chain in enumerate(lengths.tolist()):
        for whole, probability in enumerate(visits[root].tolist()):
            if probability > 0:
                fed = [1 + whole, *[1] * (chain - 1)] if chain else []
                parts = latency.step_parts(chain + 1, fed, 0, turn.prompt.size - 1 + root)
                spent["target"] += probability * parts.target
                spent["draft"] += probability * parts.draft
                spent["update"] += probability * parts.beside
    spent["update"] += latency.token_ms * lengths.size / 1e3
    return spent
