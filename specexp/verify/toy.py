"""A target and a draft with known probabilities, fast enough for many thousands of tokens.

After any two tokens the target has the same law with its tokens permuted. Counted by its *place*, the likeliest first,
every token of every continuation is an independent draw from that law, whatever came before. So each token of a run is
a sample, and the joint law of three consecutive places is a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.runtime import Growth, Runtime, Slots
from specexp.core.sampling import Processors
from specexp.core.tree import TokenTree

LIVE = 5
"""Tokens of positive probability; a vocabulary may be wider where a part needs more candidates."""
CONTEXT_LIMIT = 2048
Manner = Literal["open", "sure"]
MANNERS: tuple[Manner, ...] = ("open", "sure")
"""``open``: several tokens are likely, and the draft is right, too sure, opposed, elsewhere or half right, by the last
token, so that drafts are rejected at every depth. ``sure``: one token mostly comes, and the draft is right or too sure,
so that deep drafts are accepted to their leaves."""
_LAWS = {"open": (0.46, 0.24, 0.15, 0.1, 0.05), "sure": (0.86, 0.06, 0.04, 0.025, 0.015)}
_SHARPNESS = {"open": (1.0, 2.5, -1.0, 0.0, 0.75), "sure": (1.0, 1.5, 1.0, 2.0, 1.0)}
"""Factors of the target's scores in the draft's, by the last token."""
_ELSEWHERE = {"open": (0.0, 0.0, 0.0, 1.5, 0.75), "sure": (0.0, 0.0, 0.0, 0.0, 0.0)}
"""Factors of scores that are independent of the target's."""


class _Committed(Slots):
    """The tokens of each slot in place of keys and values, with the semantics of the real cache."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.fed: list[list[int]] = []
        self.reserve(0)

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        """Committed tokens of each slot."""
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
    """A model with a table of logits by the last two visible tokens.

    A pass reads each row's parent, the root's from the cache, so that a cache with wrong rows gives other
    probabilities.

    Args:
        table: ``[LIVE + 1, LIVE + 1, V]`` logits after (last but one, last); the last class stands for every token
            of probability 0, and for a missing one.
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
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        self.cache.reserve(0, slot + 1)
        held = self.cache.tokens[slot]
        before = [held[-1] if held else LIVE, *token_ids[:-1]]
        held += token_ids
        if not all_logits or not token_ids:
            return None
        return torch.from_numpy(self.table[classes(before), classes(token_ids)])

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        self.passes += 1
        answers = []
        for slot, tree in zip(slots, trees, strict=True):
            self.cache.fed[slot] = tree.tokens.tolist()
            last = classes(tree.tokens)
            before = last[tree.shape.parents]
            before[0] = min([LIVE, *self.cache.tokens[slot][-1:]])
            answers.append(torch.from_numpy(self.table[before, last]))
        return answers

    @override
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> list[torch.Tensor]:
        self.passes += 1
        self.cache.reserve(0, max(slots) + 1)
        return [self._grow(slot, growth) for slot, growth in zip(slots, growths, strict=True)]

    def _grow(self, slot: int, growth: Growth) -> torch.Tensor:
        committed, fed = self.cache.tokens[slot], self.cache.fed[slot]
        first = len(fed)
        fed += growth.tokens.tolist()
        before = []
        for row, visible in enumerate(growth.visible[:, :-1].tolist(), first):
            # the nearest visible row above is the parent
            above = next((at for at in range(row - 1, -1, -1) if visible[at]), None)
            before.append((committed[-1] if committed else LIVE) if above is None else fed[above])
        return torch.from_numpy(self.table[classes(before), classes(growth.tokens)])

    @override
    def synchronize(self) -> None:
        return None

    def __deepcopy__(self, memo: dict[int, object]) -> ToyModel:
        return ToyModel(self.table)

    def __reduce__(self) -> tuple[type[ToyModel], tuple[NDArray[np.float64]]]:
        return ToyModel, (self.table,)


class Toy(NamedTuple):
    """A target and its draft."""

    target: ToyModel
    draft: ToyModel
    # [LIVE + 1, LIVE + 1, LIVE] place of each token in the target's law after two tokens, the likeliest first
    places: NDArray[np.int64]

    def law(self, processors: Processors) -> NDArray[np.float64]:
        """Return probabilities ``[LIVE]`` by place, after any two tokens."""
        shares = processors.probabilities(torch.from_numpy(self.target.table[0, 0]))[:LIVE]
        law = np.empty(LIVE)
        law[self.places[0, 0]] = np.where(shares > 1e-12, shares, 0.0)
        law /= law.sum()
        return law

    def places_of(self, token_ids: Sequence[int]) -> NDArray[np.int64]:
        """Return places ``[t - 2]`` of every token but the first two; ``LIVE`` for one of probability 0."""
        tokens = classes(token_ids)
        before, last, after = tokens[:-2], tokens[1:-1], tokens[2:]
        return np.where(after < LIVE, self.places[before, last, np.minimum(after, LIVE - 1)], LIVE)


def toy_models(vocabulary: int = 8, temperature: float = 1.0, manner: Manner = "open", seed: int = 0) -> Toy:
    """Return a target, and a draft that agrees with it according to the manner.

    Args:
        vocabulary: V, at least :data:`LIVE`; the tokens beyond those have next to no probability.
        temperature: Temperature of the sampling, at which the target's law is the manner's own.
    """
    if vocabulary < LIVE:
        raise ValueError(f"the toy vocabulary was {vocabulary}; at least {LIVE} tokens are needed")
    generator = np.random.default_rng(seed)
    states = (LIVE + 1, LIVE + 1)
    places = generator.permuted(np.broadcast_to(np.arange(LIVE), (*states, LIVE)), axis=2)
    if manner == "sure":  # the last token alone decides, so that what was seen once can be foreseen
        places = np.broadcast_to(places[:1], places.shape)
    elsewhere = generator.permuted(places, axis=2)
    scores = np.log(np.array(_LAWS[manner]))
    sharp, other = (np.array([*table[manner], 1.0]) for table in (_SHARPNESS, _ELSEWHERE))
    drafted = sharp[:, np.newaxis] * scores[places] + other[:, np.newaxis] * scores[elsewhere]
    target, draft = (np.full((*states, vocabulary), -40.0 * max(1.0, temperature)) for _ in range(2))
    scale = temperature or 1.0
    target[..., :LIVE] = scale * scores[places]
    draft[..., :LIVE] = scale * drafted
    return Toy(ToyModel(target), ToyModel(draft), places)


def classes(tokens: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return tokens, with all those of probability 0 in one class."""
    return np.minimum(np.asarray(tokens, dtype=np.int64), LIVE)
