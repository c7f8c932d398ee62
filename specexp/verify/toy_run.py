"""Continuations on a toy target, and what is counted of their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.decoder import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.core.tree import NodeKind
from specexp.core.verifier import Verifier
from specexp.verify.exercised import Exercised
from specexp.verify.toy import LIVE, Manner, Toy, classes, toy_models

PartsFactory = Callable[[Any], Parts]
"""Gives new parts; it is handed the toy draft model, for drafters that need one."""
BLOCK = 3
"""Consecutive tokens, and steps, whose joint is tested."""
TOKENS = 24
"""Tokens of a continuation."""
COMPARED = 48
"""Tokens of a continuation that is compared."""
CHUNK = 10
"""Continuations that parts decode before they are made anew, so that what they carry on is in play."""
_PLACES = 4
"""A token stands first of all, first in its step, second, or later."""
_PROMPT = 16
CELLS = LIVE + 1
"""Places in the target's law, and one for a token that is never said."""


def _joint() -> NDArray[np.int64]:
    return np.zeros((CELLS,) * BLOCK, dtype=np.int64)


@dataclass
class Tally:
    """Counts of tokens by their place in the target's law.

    Attributes:
        tokens: ``[CELLS] * 3`` blocks of three consecutive tokens.
        starts: ``[CELLS] * 3`` first tokens of three consecutive steps, one continuation after the other.
        by_place: ``[4, CELLS]`` tokens by where in a step they stand.
        by_last: ``[CELLS, CELLS]`` tokens by the token before them, which decides how right the draft is.
        first_choice: Tokens after a row whose first candidate was known beforehand, those among them that were it,
            expected ones, and their variance.
        branches: How the steps ended.
        said: Tokens compared with what had to be said.
        wrong: Those continuations that said something else, as (number, token, said, expected).
    """

    tokens: NDArray[np.int64] = field(default_factory=_joint)
    starts: NDArray[np.int64] = field(default_factory=_joint)
    by_place: NDArray[np.int64] = field(default_factory=lambda: np.zeros((_PLACES, CELLS), dtype=np.int64))
    by_last: NDArray[np.int64] = field(default_factory=lambda: np.zeros((CELLS, CELLS), dtype=np.int64))
    first_choice: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    branches: Exercised = field(default_factory=Exercised)
    said: int = 0
    wrong: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count what another counted."""
        self.tokens += other.tokens
        self.starts += other.starts
        self.by_place += other.by_place
        self.by_last += other.by_last
        self.first_choice += other.first_choice
        self.branches.add(other.branches)
        self.said += other.said
        self.wrong += other.wrong

    @property
    def blocks(self) -> int:
        """Blocks of three consecutive tokens."""
        return int(self.tokens.sum())


@dataclass(frozen=True)
class ToyLaw:
    """What the target is to be sampled with, and how wide the toy is.

    Attributes:
        temperature: 0 leaves one possible output.
        top_k: Of the target.
        top_p: Of the target.
        vocabulary: V.
        seed: Of the toy models and of the run.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    vocabulary: int = LIVE + 1
    seed: int = 0

    @property
    def processors(self) -> Processors:
        """From logits to what is sampled from."""
        return Processors(self.temperature, self.top_k, self.top_p)

    def toy(self, manner: Manner) -> Toy:
        """The models."""
        return toy_models(self.vocabulary, self.temperature, manner, self.seed)


def sample_chunk(make_parts: PartsFactory, law: ToyLaw, manner: Manner, number: int) -> Tally:
    """Decode one chunk of continuations, each of a prompt of its own, and count.

    Args:
        make_parts: Gives new parts, exactly as configured.
        law: Of the target.
        manner: Of the toy.
        number: Which chunk.

    Raises:
        ValueError: the parts do not go with the toy models.
    """
    toy = law.toy(manner)
    decoder = Decoder(toy.target, *make_parts(toy.draft))
    shares = toy.law(law.processors)
    tally = Tally()
    starts: list[NDArray[np.int64]] = []
    for sequence in range(number * CHUNK, (number + 1) * CHUNK):
        notes = _Notes(toy, shares, tally)
        prompt = _prompt(law.seed, sequence)
        said = decoder.generate(
            prompt, max_new_tokens=TOKENS, seed=law.seed, sequence=sequence, observers=(notes,)
        ).token_ids
        starts.append(notes.count([*prompt[-2:], *said]))
    # how many steps a continuation has, its tokens decide: to drop the odd ones of each would prefer some tokens
    _count_blocks(tally.starts, np.concatenate(starts))
    return tally


def compare_chunk(make_parts: PartsFactory, law: ToyLaw, manner: Manner, number: int) -> Tally:
    """Decode one chunk of continuations of a verifier whose output is decided, and compare every token with the one
    that had to be said.

    Args:
        make_parts: Gives new parts, exactly as configured.
        law: Of the target.
        manner: Of the toy.
        number: Which chunk.
    """
    toy = law.toy(manner)
    decoder = Decoder(toy.target, *make_parts(toy.draft))
    tally = Tally()
    for sequence in range(number * CHUNK, (number + 1) * CHUNK):
        prompt = _prompt(law.seed, sequence)
        said = decoder.generate(
            prompt,
            max_new_tokens=COMPARED,
            seed=law.seed,
            sequence=sequence,
            observers=(tally.branches.note,),
        ).token_ids
        expected = _expected(toy, law, decoder.parts.verifier, prompt, sequence)
        tally.said += len(expected)
        for index, tokens in enumerate(zip(said, expected, strict=False)):
            if tokens[0] != tokens[1]:
                tally.wrong.append((sequence, index, *tokens))
                break
    return tally


def _prompt(seed: int, sequence: int) -> list[int]:
    """A prompt of live tokens, so short of kinds that pairs come again: retrieval has something to offer."""
    return [int(token) for token in np.random.default_rng([seed, sequence]).integers(LIVE, size=_PROMPT)]


def _expected(toy: Toy, law: ToyLaw, verifier: Verifier, prompt: list[int], sequence: int) -> list[int]:
    """What must be said: the likeliest tokens; with the context's noise, those it makes likeliest; else what the
    verifier itself says where nothing is drafted.
    """
    if law.temperature > 0 and not verifier.noise_temperature:
        alone = Decoder(toy.target, verifier=verifier)
        return alone.generate(prompt, max_new_tokens=COMPARED, seed=law.seed, sequence=sequence).token_ids
    import torch

    rows = torch.from_numpy(toy.target.table.reshape(-1, law.vocabulary))
    scores = law.processors.scores(rows).float().numpy().reshape(toy.target.table.shape)
    context = Context(prompt, seed=law.seed, sequence=sequence)
    history = list(prompt)
    for position in range(len(prompt), len(prompt) + COMPARED):
        before, last = classes(history[-2:])
        after = scores[before, last]
        if law.temperature > 0:
            after = after + context.target_noise(position, 1, law.vocabulary)[0].numpy()
        history.append(int(after.argmax()))
    return history[len(prompt) :]


class _Notes:
    """Watches the steps of one continuation."""

    def __init__(self, toy: Toy, shares: NDArray[np.float64], tally: Tally) -> None:
        self.toy = toy
        self.shares = np.append(shares, 0.0)
        self.tally = tally
        self.lengths: list[int] = []

    def __call__(self, outcome: Outcome) -> None:
        self.lengths.append(len(outcome.new_token_ids))
        self.tally.branches.note(outcome)
        tree = outcome.tree
        if tree.shape.num_nodes and (tree.kinds is None or not tree.kinds.any()):
            self._choices(outcome)

    def count(self, tokens: list[int]) -> NDArray[np.int64]:
        """Count a continuation, two tokens of the prompt before it; gives the places of its steps' first tokens."""
        places, tally = self.toy.places_of(tokens), self.tally
        ends = np.cumsum(self.lengths)
        begins = ends - self.lengths
        in_step = np.concatenate([np.arange(length) for length in self.lengths])
        stands = np.minimum(in_step + 1, _PLACES - 1)
        stands[0] = 0
        np.add.at(tally.by_place, (stands, places), 1)
        np.add.at(tally.by_last, (classes(tokens[1:-1]), places), 1)
        _count_blocks(tally.tokens, places)
        first: NDArray[np.int64] = places[begins]
        return first

    def _choices(self, outcome: Outcome) -> None:
        """Whether each token was the first candidate after its row, which only its past decided: nothing was drawn."""
        tree, choices = outcome.tree, self.tally.first_choice
        context = outcome.context.token_ids
        history = context[: context.size - len(outcome.new_token_ids)][-2:].tolist()
        for row, said in zip((0, *outcome.accepted), outcome.new_token_ids, strict=False):
            children = tree.shape.children[row]
            if not children:
                break
            candidate = int(tree.tokens[children[0]])
            assert tree.kind(children[0]) is NodeKind.POINT_MASS
            share = self.shares[self.toy.places_of([*history, candidate])[0]]
            choices += (1, said == candidate, share, share * (1 - share))
            history = [history[1], said]


def _count_blocks(counts: NDArray[np.int64], places: NDArray[np.int64]) -> None:
    whole = places[: places.size // BLOCK * BLOCK].reshape(-1, BLOCK)
    np.add.at(counts, tuple(whole.T), 1)


_AS_MANY_AS_THERE_ARE = 2**31
"""What a drafter offers that learns its vocabulary from the target, before it has."""


def toy_vocabulary(make_parts: PartsFactory) -> int:
    """The smallest toy vocabulary in which the parts find as many candidates as they insist on."""
    parts = make_parts(toy_models(LIVE + 1).draft)
    asked = (
        0 if parts.builder is None or parts.builder.accepts_fewer_candidates else parts.builder.max_candidates
    )
    offered = 0 if parts.drafter is None else parts.drafter.max_candidates
    return max(LIVE + 1, asked, offered if offered < _AS_MANY_AS_THERE_ARE else 0)
