"""A causal LM and a drafter whose answers one can compute by hand, so that acceptance is arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from specexp.context import Context
from specexp.drafters import Candidates, Drafter, Request
from specexp.tree import NO_CANDIDATE


class FakeCausalLM(torch.nn.Module):
    """Shaped like a Hugging Face causal LM; its logits are a function of the tokens a row may attend to.

    It is honest about what a tree pass needs: tokens and positions go through the KV cache, each row sees the
    keys its mask shows, ordered by their positions. Wrong masks, positions or cache rows give other tokens.

    Args:
        next_logits: from the visible tokens, oldest first, to ``[V]`` logits of the next one.
        vocab_size: V.
        context_limit: longest sequence.

    Example:
        >>> FakeCausalLM(lambda tokens: [0.0, 1.0], vocab_size=2).config.vocab_size
        2
    """

    def __init__(
        self,
        next_logits: Callable[[tuple[int, ...]], Sequence[float]],
        vocab_size: int,
        context_limit: int = 512,
    ) -> None:
        super().__init__()
        self.next_logits = next_logits
        self.config = PreTrainedConfig(
            vocab_size=vocab_size,
            max_position_embeddings=context_limit,
            num_hidden_layers=1,
            num_attention_heads=1,
            hidden_size=2,
            attn_implementation="sdpa",
        )
        self.device = torch.device("cpu")
        self.dtype = torch.float64

    def forward(
        self,
        input_ids: torch.Tensor,  # [b, rows]
        position_ids: torch.Tensor,  # [b, rows]
        attention_mask: torch.Tensor,  # [b, 1, rows, past + rows]
        past_key_values: Any,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """``[b, rows, V]`` logits."""
        fed = torch.stack((input_ids, position_ids), dim=-1)[:, None].to(self.dtype)  # [b, 1, rows, 2]
        keys, _ = past_key_values.update(fed, fed, 0)  # [b, 1, past + rows, 2]
        batch, rows = input_ids.shape
        logits = torch.empty(batch, rows, self.config.vocab_size, dtype=self.dtype)
        for index in range(batch):
            for row in range(rows):
                seen = keys[index, 0][self.visible(attention_mask[index, 0, row])].tolist()
                in_order = sorted(seen, key=lambda key: key[1])
                logits[index, row] = torch.tensor(
                    self.next_logits(tuple(int(token) for token, _ in in_order)), dtype=self.dtype
                )
        return CausalLMOutputWithPast(logits=logits[:, -logits_to_keep:])

    def visible(self, mask: torch.Tensor) -> torch.Tensor:
        """Which keys a row attends to, from its additive mask."""
        return mask == 0


def counting_model(vocab_size: int, context_limit: int = 512) -> FakeCausalLM:
    """After token t the model surely says t + 1, and 0 after the last."""
    certain = np.eye(vocab_size) * 50.0
    return FakeCausalLM(
        lambda tokens: certain[(tokens[-1] + 1) % vocab_size].tolist(), vocab_size, context_limit
    )


def bigram_model(logits: Sequence[Sequence[float]], context_limit: int = 512) -> FakeCausalLM:
    """After token t the model gives ``logits[t]``."""
    return FakeCausalLM(lambda tokens: logits[tokens[-1]], len(logits), context_limit)


def hashed_model(
    vocab_size: int, seed: int = 0, context_limit: int = 512, spread: float = 2.0
) -> FakeCausalLM:
    """Logits drawn by a hash of the last three visible tokens: repetitive enough to draft, never constant."""

    def next_logits(tokens: tuple[int, ...]) -> Sequence[float]:
        generator = np.random.default_rng([seed, *tokens[-3:]])
        drawn: list[float] = (generator.standard_normal(vocab_size) * spread).tolist()
        return drawn

    return FakeCausalLM(next_logits, vocab_size, context_limit)


class FakeDrafter(Drafter):
    """Answers from a function of the committed tokens and the path, and keeps what it was asked.

    Args:
        guess: from the tokens up to and including the frontier node to its candidates, best first.
        max_candidates: candidates it can rank.

    Attributes:
        requests: what it was asked, tokens copied.
    """

    def __init__(self, guess: Callable[[tuple[int, ...]], Sequence[int]], max_candidates: int = 1) -> None:
        self.guess = guess
        self.requests: list[Request] = []
        self._max_candidates = max_candidates

    @property
    def max_candidates(self) -> int:
        """As given."""
        return self._max_candidates

    def propose(self, context: Context, request: Request) -> Candidates:
        """Guess for every frontier row."""
        self.requests.append(replace(request, tokens=request.tokens.copy()))
        tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
        for number, row in enumerate(request.rows.tolist()):
            guesses = list(self.guess((*context.token_ids.tolist(), *request.path_tokens(row))))[: request.k]
            tokens[number, : len(guesses)] = guesses
        return Candidates(tokens)
