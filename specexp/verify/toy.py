"""Toy models with known probabilities, fast enough to decode many thousands of tokens, and counts of these tokens.

After any two tokens, the target has the same probabilities, assigned to its tokens in a different order. The *rank* of
a token is its place in this order, most likely first. The ranks of all tokens are therefore independent draws from one
distribution. Each token is a sample, and the joint distribution of three consecutive ranks is a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Verifier
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.runtime import Growth, PassResult, Runtime, Slots
from specexp.core.sampling import Processors
from specexp.core.tree import TokenTree
from specexp.verify.result import StepEndings

LIVE = 5
"""Number of tokens with positive probability. The vocabulary is larger if a part needs more candidates."""
CONTEXT_LIMIT = 2048
Manner = Literal["open", "sure"]
MANNERS: tuple[Manner, ...] = ("open", "sure")
"""``open``: several tokens are likely. The last token decides whether the draft is right, overconfident, inverted,
independent or half right, so drafts are rejected at every depth. ``sure``: one token is likely, and the draft is right
or overconfident, so deep drafts are accepted down to their leaves."""
PartsFactory = Callable[[Any], Parts]
"""Returns new parts for the toy draft model."""
BLOCK = 3
"""Number of consecutive tokens, and of consecutive steps, in a joint distribution that is tested."""
TOKENS = 24
"""Number of tokens per continuation in tests of the distribution."""
COMPARED = 48
"""Number of tokens per continuation in tests of equality."""
CHUNK = 10
"""Number of continuations decoded with the same parts before new ones are made. This also tests carried state."""
_POSITIONS = 4
"""Number of classes of token positions: first in the continuation, first in its step, second in its step, or later."""
_PROMPT = 16
CELLS = LIVE + 1
"""Number of cells: one per rank, and one for all tokens with probability 0."""
_LAWS = {"open": (0.46, 0.24, 0.15, 0.1, 0.05), "sure": (0.86, 0.06, 0.04, 0.025, 0.015)}
_SHARPNESS = {"open": (1.0, 2.5, -1.0, 0.0, 0.75), "sure": (1.0, 1.5, 1.0, 2.0, 1.0)}
"""For each last token, the weight of the target's scores in the draft's scores."""
_ELSEWHERE = {"open": (0.0, 0.0, 0.0, 1.5, 0.75), "sure": (0.0, 0.0, 0.0, 0.0, 0.0)}
"""For each last token, the weight of scores independent of the target's in the draft's scores."""


class _Committed(Slots):
    """A cache that stores each slot's tokens instead of keys and values, but behaves like the real cache."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.fed: list[list[int]] = []
        self.reserve(0)

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        """The number of committed tokens in each slot."""
        return [len(tokens) for tokens in self.tokens]

    @override
    def reserve(self, capacity: int, slots: int = 1) -> None:
        while len(self.tokens) < slots:
            self.tokens.append([])
            self.fed.append([])

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        fed = self.fed[slot]
        self.tokens[slot] += [fed[row] for row in rows]
        self.fed[slot] = []

    @override
    def truncate(self, slot: int, length: int) -> None:
        del self.tokens[slot][length:]
        self.fed[slot] = []

    @override
    def fork(self, source: int, target: int, length: int) -> None:
        self.tokens[target] = self.tokens[source][:length]

    @override
    def nbytes(self) -> int:
        return 0


class ToyModel(Runtime):
    """A model that looks up logits by the last two visible tokens.

    The token before a row is its parent's token or, for the root, the last one in the cache. A cache with wrong rows
    therefore changes the probabilities.

    Args:
        table: ``[LIVE + 1, LIVE + 1, V]`` logits after two tokens (second to last, last). Index ``LIVE`` represents
            any token of probability 0, or a missing token.
    """

    kind = "toy"
    cache: _Committed

    def __init__(self, table: NDArray[np.float64]) -> None:
        super().__init__()
        self.model = None
        self.table = table
        self.vocab_size = int(table.shape[2])
        self.context_limit = CONTEXT_LIMIT
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.cache = _Committed()

    @override
    def feed(self, slot: int, tokens: NDArray[np.int64], all_logits: bool) -> PassResult:
        held = self.cache.tokens[slot]
        before = [held[-1] if held else LIVE, *tokens[:-1].tolist()]
        held += tokens.tolist()
        logits = torch.from_numpy(self.table[classes(before), classes(tokens)])
        return PassResult([logits] if all_logits else ())

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        self.passes += 1
        answers = []
        for slot, tree in zip(slots, trees, strict=True):
            self.cache.fed[slot] = tree.tokens.tolist()
            last = classes(tree.tokens)
            before = last[tree.shape.parents]
            before[0] = min([LIVE, *self.cache.tokens[slot][-1:]])
            answers.append(torch.from_numpy(self.table[before, last]))
        return PassResult(answers)

    @override
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> PassResult:
        self.passes += 1
        self.cache.reserve(0, max(slots) + 1)
        answers = [self._grow(slot, growth) for slot, growth in zip(slots, growths, strict=True)]
        return PassResult(answers, answers if self.keeps_hidden else ())

    def _grow(self, slot: int, growth: Growth) -> torch.Tensor:
        committed, fed = self.cache.tokens[slot], self.cache.fed[slot]
        first = len(fed)
        fed += growth.tokens.tolist()
        before = []
        for row, visible in enumerate(growth.visible[:, :-1].tolist(), first):
            # The nearest visible row above is the parent.
            above = next((at for at in range(row - 1, -1, -1) if visible[at]), None)
            before.append((committed[-1] if committed else LIVE) if above is None else fed[above])
        return torch.from_numpy(self.table[classes(before), classes(growth.tokens)])

    @override
    def keep_hidden(self, wanted: bool | tuple[int, ...]) -> None:
        if isinstance(wanted, tuple):
            super().keep_hidden(wanted)
        self.keeps_hidden = wanted  # of a draft: the logits serve as its states

    @override
    def __reduce__(self) -> tuple[type[ToyModel], tuple[NDArray[np.float64]]]:
        return ToyModel, (self.table,)


class Toy(NamedTuple):
    """A toy target and its draft."""

    target: ToyModel
    draft: ToyModel
    # [LIVE + 1, LIVE + 1, LIVE] rank of each token in the target's law after two tokens, most likely first
    ranks: NDArray[np.int64]

    def law(self, processors: Processors) -> NDArray[np.float64]:
        """Return the target's probabilities by rank, ``[LIVE]``. They are the same after any two tokens."""
        shares = processors.probabilities(torch.from_numpy(self.target.table[0, 0]))[:LIVE]
        law = np.empty(LIVE)
        law[self.ranks[0, 0]] = np.where(shares > 1e-12, shares, 0.0)
        law /= law.sum()
        return law

    def ranks_of(self, token_ids: Sequence[int]) -> NDArray[np.int64]:
        """Return the ranks ``[t - 2]`` of all tokens after the first two; ``LIVE`` for tokens of probability 0."""
        tokens = classes(token_ids)
        before, last, after = tokens[:-2], tokens[1:-1], tokens[2:]
        return np.where(after < LIVE, self.ranks[before, last, np.minimum(after, LIVE - 1)], LIVE)


def toy_models(vocabulary: int = 8, temperature: float = 1.0, manner: Manner = "open", seed: int = 0) -> Toy:
    """Return a toy target and a draft. The ``manner`` defines how closely they agree.

    At ``temperature``, the target has the probabilities of ``manner``, and almost 0 for ids from :data:`LIVE` on.
    """
    if vocabulary < LIVE:
        raise ValueError(f"vocabulary must be at least {LIVE}, got {vocabulary}")
    generator = np.random.default_rng(seed)
    states = (LIVE + 1, LIVE + 1)
    ranks = generator.permuted(np.broadcast_to(np.arange(LIVE), (*states, LIVE)), axis=2)
    if manner == "sure":  # the last token alone decides, so that drafters can learn what follows it
        ranks = np.broadcast_to(ranks[:1], ranks.shape)
    elsewhere = generator.permuted(ranks, axis=2)
    scores = np.log(np.array(_LAWS[manner]))
    sharp, other = (np.array([*table[manner], 1.0]) for table in (_SHARPNESS, _ELSEWHERE))
    drafted = sharp[:, np.newaxis] * scores[ranks] + other[:, np.newaxis] * scores[elsewhere]
    target, draft = (np.full((*states, vocabulary), -40.0 * max(1.0, temperature)) for _ in range(2))
    scale = temperature or 1.0
    target[..., :LIVE] = scale * scores[ranks]
    draft[..., :LIVE] = scale * drafted
    return Toy(ToyModel(target), ToyModel(draft), ranks)


def classes(tokens: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens, with all tokens of probability 0 replaced by ``LIVE``."""
    return np.minimum(np.asarray(tokens, dtype=np.int64), LIVE)


@dataclass
class Tally:
    """Token counts by rank."""

    # blocks of three consecutive tokens, and first tokens of three consecutive steps, across continuations
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros((CELLS, CELLS, CELLS), dtype=np.int64))
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((CELLS, CELLS, CELLS), dtype=np.int64))
    # tokens by their position in a step, and by the preceding token, which decides how good the draft is
    by_place: NDArray[np.int64] = field(default_factory=lambda: np.zeros((_POSITIONS, CELLS), dtype=np.int64))
    by_last: NDArray[np.int64] = field(default_factory=lambda: np.zeros((CELLS, CELLS), dtype=np.int64))
    # [4] tokens after a row with a ranked (not sampled) first candidate: their number, how many equal the candidate,
    # the expected number of these, and its variance
    first_choice: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    branches: StepEndings = field(default_factory=StepEndings)
    compared: int = 0  # tokens compared with the expected ones
    # first wrong token of a continuation: (number of the continuation, index, token, expected token)
    wrong: list[tuple[int, int, int, int]] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def blocks(self) -> int:
        """Number of blocks of three consecutive tokens."""
        return int(self.tokens.sum())


@dataclass(frozen=True)
class ToyLaw:
    """A toy target's sampling settings, vocabulary and seed."""

    temperature: float = 1.0  # at 0, only one output is possible
    top_k: int | None = None
    top_p: float | None = None
    vocabulary: int = LIVE + 1
    seed: int = 0  # seed of the toy models and of the run

    @property
    def processors(self) -> Processors:
        """The logits processors."""
        return Processors(self.temperature, self.top_k, self.top_p)

    def toy(self, manner: Manner) -> Toy:
        """Return the toy models for a manner."""
        return toy_models(self.vocabulary, self.temperature, manner, self.seed)


def compose(make_parts: PartsFactory, law: ToyLaw, manner: Manner = "open") -> tuple[Toy, Decoder]:
    """Return the toy models and a decoder that uses them. Raises ValueError if the parts cannot run on them."""
    toy = law.toy(manner)
    return toy, Decoder(toy.target, *make_parts(toy.draft))


def sample_chunk(make_parts: PartsFactory, law: ToyLaw, manner: Manner, number: int) -> Tally:
    """Decode one chunk of continuations, each from its own prompt, and count their tokens."""
    toy, decoder = compose(make_parts, law, manner)
    shares = toy.law(law.processors)
    tally = Tally()
    starts: list[NDArray[np.int64]] = []  # ranks of the first tokens of steps
    for sequence in range(number * CHUNK, (number + 1) * CHUNK):
        notes = _Notes(toy, shares, tally)
        prompt = _prompt(law.seed, sequence)
        tokens = decoder.generate(
            prompt, max_new_tokens=TOKENS, seed=law.seed, sequence=sequence, observers=(notes,)
        ).token_ids
        starts.append(notes.count([*prompt[-2:], *tokens]))
    # Blocks cross continuations: the number of steps depends on the tokens, so dropping remainders would cause bias.
    _count_blocks(tally.starts, np.concatenate(starts))
    return tally


def compare_chunk(make_parts: PartsFactory, law: ToyLaw, manner: Manner, number: int) -> Tally:
    """Decode one chunk with a deterministic verifier, and compare every token with the expected one."""
    toy, decoder = compose(make_parts, law, manner)
    tally = Tally()
    for sequence in range(number * CHUNK, (number + 1) * CHUNK):
        prompt = _prompt(law.seed, sequence)
        request: Any = {"max_new_tokens": COMPARED, "seed": law.seed, "sequence": sequence}
        tokens = decoder.generate(prompt, observers=(tally.branches.observe,), **request).token_ids
        expected = _expected(toy, law, decoder.parts.verifier, prompt, request)
        tally.compared += len(expected)
        for index, pair in enumerate(zip(tokens, expected, strict=False)):
            if pair[0] != pair[1]:
                tally.wrong.append((sequence, index, *pair))
                break
    return tally


def _prompt(seed: int, sequence: int) -> list[int]:
    """Return a prompt with few distinct tokens, so that pairs of tokens recur and retrieval finds candidates."""
    return [int(token) for token in np.random.default_rng([seed, sequence]).integers(LIVE, size=_PROMPT)]


def _expected(toy: Toy, law: ToyLaw, verifier: Verifier, prompt: list[int], request: dict[str, Any]) -> list[int]:
    """Return the expected tokens: the argmax of the scores, to which a keyed verifier adds the context's noise.

    A sampling verifier with its own noise is compared with its output in plain decoding instead.
    """
    if law.temperature > 0 and not verifier.noise_temperature:
        return Decoder(toy.target, verifier=verifier).generate(prompt, **request).token_ids
    rows = torch.from_numpy(toy.target.table.reshape(-1, law.vocabulary))
    scores = law.processors.scores(rows).float().numpy().reshape(toy.target.table.shape)
    context = Context(prompt, seed=law.seed, sequence=request["sequence"])
    history = list(prompt)
    for position in range(len(prompt), len(prompt) + COMPARED):
        before, last = classes(history[-2:])
        after = scores[before, last]
        if law.temperature > 0:
            after = after + context.target_noise(position, 1, law.vocabulary)[0].numpy()
        history.append(int(after.argmax()))
    return history[len(prompt) :]


class _Notes:
    """Observes the steps of one continuation, and counts their tokens in ``tally``."""

    def __init__(self, toy: Toy, shares: NDArray[np.float64], tally: Tally) -> None:
        self.toy = toy
        self.shares = np.append(shares, 0.0)
        self.tally = tally
        self.lengths: list[int] = []

    def __call__(self, outcome: Outcome) -> None:
        self.lengths.append(len(outcome.new_token_ids))
        self.tally.branches.observe(outcome)
        tree = outcome.tree
        if tree.shape.num_nodes and (tree.kinds is None or not tree.kinds.any()):
            self._choices(outcome)

    def count(self, tokens: list[int]) -> NDArray[np.int64]:
        """Count a continuation's tokens, given after two prompt tokens. Return the rank of each step's first token."""
        ranks, tally = self.toy.ranks_of(tokens), self.tally
        begins = np.cumsum(self.lengths) - self.lengths
        in_step = np.concatenate([np.arange(length) for length in self.lengths])
        position = np.minimum(in_step + 1, _POSITIONS - 1)
        position[0] = 0
        np.add.at(tally.by_place, (position, ranks), 1)
        np.add.at(tally.by_last, (classes(tokens[1:-1]), ranks), 1)
        _count_blocks(tally.tokens, ranks)
        first: NDArray[np.int64] = ranks[begins]
        return first

    def _choices(self, outcome: Outcome) -> None:
        """Count the tokens that equal the top-ranked candidate at their position. Candidates must not be sampled."""
        tree, choices = outcome.tree, self.tally.first_choice
        context = outcome.context.token_ids
        history = context[: context.size - len(outcome.new_token_ids)][-2:].tolist()
        for row, token in zip((0, *outcome.accepted), outcome.new_token_ids, strict=False):
            children = tree.shape.children[row]
            if not children:
                break
            candidate = int(tree.tokens[children[0]])
            share = self.shares[self.toy.ranks_of([*history, candidate])[0]]
            choices += (1, token == candidate, share, share * (1 - share))
            history = [history[1], token]


def _count_blocks(counts: NDArray[np.int64], ranks: NDArray[np.int64]) -> None:
    whole = ranks[: ranks.size // BLOCK * BLOCK].reshape(-1, BLOCK)
    np.add.at(counts, tuple(whole.T), 1)


_NOT_LEARNED_YET = 2**31
"""``max_candidates`` of a drafter that does not know its vocabulary yet."""


def toy_vocabulary(make_parts: PartsFactory) -> int:
    """Return the smallest toy vocabulary with as many candidates as the parts need."""
    drafter, builder = make_parts(toy_models(LIVE + 1).draft)[:2]
    wanted = 0 if builder is None or builder.accepts_fewer_candidates else builder.max_candidates
    offered = 0 if drafter is None else drafter.max_candidates
    return max(LIVE + 1, wanted, offered if offered < _NOT_LEARNED_YET else 0)
