"""State of each output, shared between the HTTP layer and the decoding loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from specexp.core.contracts import DeterministicVerifier
from specexp.core.outcome import FinishReason, GenerationResult, Outcome
from specexp.deploy.server.texts import Written


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token of an output.

    Attributes:
        log_prob: the target's, before temperature and top-p.
        best: the target's most probable tokens in its place, best first, each with its log-probability.
    """

    token: int
    log_prob: float
    best: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class OutputStep:
    """A step of an output: nodes drafted, the deepest of them, and how many were accepted."""

    drafted: int
    depth: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a step, the text that is final, and the tokens' probabilities if the request asks for them."""

    tokens: tuple[int, ...]
    text: str
    chosen: tuple[Chosen, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The output is complete.

    Attributes:
        cached: tokens of the prompt that a slot held already.
        waited: seconds until it had a lane.
    """

    reason: FinishReason
    result: GenerationResult
    steps: tuple[OutputStep, ...]
    cached: int
    waited: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The output ends without being complete: its deadline passed, the server shuts down, or it failed."""

    why: Literal["deadline", "shutdown", "error"]
    made: int


Heard = Piece | Ended | GivenUp


@dataclass(eq=False)
class Output:
    """A requested output.

    Attributes:
        prompt: token ids, at least one.
        seed: key of its randomness, together with ``sequence``.
        sequence: which continuation it is: its number in the request unless the request names one.
        verifier: a deterministic one, whose output does not depend on drafts, so that no request changes another's.
        written: its text, which also stops it.
        hear: called in the thread that decodes, with every piece and the end.
        log_probs: how many of the target's best tokens are listed with each token; None for no probabilities.
        deadline: when it must be complete, by :func:`time.monotonic`.
        cancelled: whether its lane is to be freed at the next step. Set from any thread.
    """

    prompt: tuple[int, ...]
    seed: int
    sequence: int | str
    max_new_tokens: int
    verifier: DeterministicVerifier
    written: Written
    hear: Callable[[Heard], None]
    log_probs: int | None = None
    speculative: bool = True
    deadline: float = inf
    cancelled: bool = False


@dataclass(eq=False)
class Running:
    """An output that has a lane.

    Attributes:
        cached: tokens of its prompt that its slot held.
        waited: seconds before it had a lane.
        chosen: probabilities of tokens that were not sent yet.
        told: number of tokens that were sent.
    """

    output: Output
    cached: int
    waited: float
    steps: list[OutputStep] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    told: int = 0

    def note(self, outcome: Outcome) -> None:
        """Keep a step's figures."""
        shape = outcome.tree.shape
        self.steps.append(OutputStep(outcome.tree.num_nodes, shape.max_depth, len(outcome.accepted)))
        if self.output.log_probs is not None:
            self.chosen += chosen_in(outcome, self.output.log_probs)


def chosen_in(outcome: Outcome, best: int) -> list[Chosen]:
    """The new tokens of a step with the target's log-probabilities."""
    rows = (0, *outcome.accepted)[: len(outcome.new_token_ids)]
    log_probs = outcome.logits[list(rows)].float().log_softmax(dim=-1)  # [t, V]
    values, ids = log_probs.topk(best, dim=-1)
    return [
        Chosen(token, float(row[token]), tuple(zip(first, probabilities, strict=True)))
        for token, row, first, probabilities in zip(
            outcome.new_token_ids, log_probs, ids.tolist(), values.tolist(), strict=True
        )
    ]
