"""A target and a draft whose every probability one can enumerate, fast enough for thousands of continuations."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig
from typing_extensions import override

from specexp.core.cache import SlotCache
from specexp.core.language_model import LanguageModel
from specexp.core.sampling import Processors
from specexp.core.tree import TokenTree

LIVE = 5
"""Tokens that are ever said; a vocabulary may be wider where a part needs more candidates."""
PROMPT = (0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0, 1, 2)
"""Every token stands in it, and some pairs twice: retrieval and recycling have something to offer."""
CONTEXT_LIMIT = 2048
_NEGLIGIBLE = 1e-12


class _Committed(SlotCache):
    """The tokens a slot holds, in place of keys and values; the semantics are the real cache's."""

    def __init__(self) -> None:  # no storage, so nothing of the base class is set up
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

    @override
    def truncate(self, slot: int, length: int) -> None:
        del self.tokens[slot][length:]

    @override
    def fork(self, source: int, target: int, length: int) -> None:
        self.tokens[target] = self.tokens[source][:length]


class ToyDraft(torch.nn.Module):
    """A draft model, shaped like a Hugging Face causal LM, whose logits depend on the last token alone.

    Args:
        table: ``[LIVE + 1, V]`` logits after each token.
    """

    def __init__(self, table: NDArray[np.float64]) -> None:
        super().__init__()
        self.table = torch.from_numpy(table)
        self.config = PreTrainedConfig(
            vocab_size=int(table.shape[1]),
            max_position_embeddings=CONTEXT_LIMIT,
            num_hidden_layers=1,
            num_attention_heads=1,
            hidden_size=2,
            attn_implementation="sdpa",
        )
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.eval()

    @override
    def forward(self, input_ids: torch.Tensor, logits_to_keep: int = 0, **_: Any) -> SimpleNamespace:
        """``[b, rows, V]`` logits."""
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:].clamp(max=LIVE)])


class ToyTarget(LanguageModel):
    """A target whose logits stand in a table: a function of the last two tokens it can see.

    It takes the place of a wrapped Hugging Face model: tree passes look each row's parent up, the root's in the
    cache, so that a cache with wrong rows gives other probabilities.

    Args:
        table: ``[LIVE + 1, LIVE + 1, V]`` logits after (last but one, last); the last class stands for every token
            that is never said, and for a missing one.
    """

    def __init__(self, table: NDArray[np.float64]) -> None:
        # the wrapped model only states vocabulary, dtype and limits: every pass is answered here
        super().__init__(ToyDraft(table[LIVE]), self_check=False)
        self.table = table
        self.cache: _Committed = _Committed()

    @override
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        """Commit tokens; ``[p, V]`` logits if asked for."""
        self.cache.reserve(0, slot + 1)
        held = self.cache.tokens[slot]
        before = [held[-1] if held else LIVE, *token_ids[:-1]]
        held += token_ids
        if not all_logits or not token_ids:
            return None
        return torch.from_numpy(self.table[_classes(before), _classes(token_ids)])

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        """For each tree ``[n + 1, V]`` logits."""
        self.passes += 1
        answers = []
        for slot, tree in zip(slots, trees, strict=True):
            self.cache.fed[slot] = tree.tokens.tolist()
            classes = np.minimum(tree.tokens, LIVE)
            before = classes[tree.shape.parents]
            before[0] = min([LIVE, *self.cache.tokens[slot][-1:]])
            answers.append(torch.from_numpy(self.table[before, classes]))
        return answers

    def probabilities(self, processors: Processors) -> NDArray[np.float64]:
        """``[LIVE + 1, LIVE + 1, V]`` what the target samples from after two tokens."""
        scores = processors.scores(torch.from_numpy(self.table.reshape(-1, self.vocab_size)))
        return np.asarray(scores.softmax(dim=-1).numpy()).reshape(self.table.shape)

    def joint(
        self, processors: Processors, tokens: int, prompt: Sequence[int] = PROMPT
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Every sequence of ``tokens`` tokens after the prompt that plain sampling may give.

        Args:
            processors: Temperature, top-k and top-p of the target.
            tokens: T.
            prompt: Tokens before it, at least two.

        Returns:
            ``[m, T]`` sequences and their ``[m]`` probabilities; what is left out has less than 1e-12 each.
        """
        after = self.probabilities(processors)
        sequences = np.empty((1, 0), dtype=np.int64)
        probabilities = np.ones(1)
        last = np.array([prompt[-2:]], dtype=np.int64)  # [m, 2]
        for _ in range(tokens):
            grown = probabilities[:, np.newaxis] * after[_classes(last[:, 0]), _classes(last[:, 1])]  # [m, V]
            rows, said = np.nonzero(grown > _NEGLIGIBLE)
            probabilities = grown[rows, said]
            sequences = np.concatenate((sequences[rows], said[:, np.newaxis]), axis=1)
            last = np.stack((last[rows, 1], said), axis=1)
        return sequences, probabilities


def toy_models(
    vocabulary: int = 8, temperature: float = 1.0, agreement: float = 0.6, seed: int = 0
) -> tuple[ToyTarget, ToyDraft]:
    """A target, and a draft that agrees with it in part.

    Args:
        vocabulary: V, at least :data:`LIVE`; the tokens beyond those have next to no probability.
        temperature: Temperature of the sampling, at which they must stay improbable.
        agreement: Weight of the target's own logits in the draft's, from 0 to 1.
        seed: Seed of the tables.
    """
    if vocabulary < LIVE:
        raise ValueError(f"the toy vocabulary was {vocabulary}; at least {LIVE} tokens are needed")
    generator = np.random.default_rng(seed)
    silent = -30.0 * max(1.0, temperature)
    target = np.full((LIVE + 1, LIVE + 1, vocabulary), silent)
    target[..., :LIVE] = 1.2 * generator.standard_normal((LIVE + 1, LIVE + 1, LIVE))
    draft = np.full((LIVE + 1, vocabulary), silent)
    own = generator.standard_normal((LIVE + 1, LIVE))
    draft[..., :LIVE] = agreement * target[..., :LIVE].mean(axis=0) * 2 + (1 - agreement) * 2 * own
    return ToyTarget(target), ToyDraft(draft)


def _classes(tokens: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.minimum(np.asarray(tokens, dtype=np.int64), LIVE)
