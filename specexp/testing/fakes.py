"""A fake causal LM and fake drafters with predictable answers, so that acceptance can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.drafters.ranking import candidates_of

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def result_of(steps: Generator[Question, Answer, Result], answer: Callable[[Question], Answer]) -> Result:
    """Run a builder or a search, answer its requests with ``answer``, and return its result."""
    try:
        question = next(steps)
        while True:
            question = steps.send(answer(question))
    except StopIteration as finished:
        result: Result = finished.value
        return result


class FakeCausalLM(torch.nn.Module):
    """A causal LM with the Hugging Face interface. A row's logits are a function of the tokens it attends to.

    The KV cache stores tokens and positions. Each row sees the keys that its mask allows, ordered by position, so wrong
    masks, positions or cache rows change the output. A hidden state is the pair (token, position).

    Args:
        next_logits: function that maps the visible tokens, oldest first, to the logits ``[V]`` of the next token.
        context_limit: maximum sequence length, in tokens.

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
        self.base_model = torch.nn.Identity()
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
        self.eval()

    def forward(
        self,
        input_ids: torch.Tensor,  # [b, rows]
        position_ids: torch.Tensor | None = None,  # [b, rows]
        attention_mask: torch.Tensor | None = None,  # [b, 1, rows, past + rows]
        past_key_values: Any = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits ``[b, rows, V]``. Without a cache, the tokens are treated as one sequence."""
        if past_key_values is None or position_ids is None or attention_mask is None:
            past_key_values, rows = DynamicCache(), input_ids.shape[1]
            position_ids = torch.arange(rows)[None]
            attention_mask = torch.ones(rows, rows).triu(1)[None, None]
        fed = self.base_model(torch.stack((input_ids, position_ids), dim=-1).to(self.dtype))  # [b, rows, 2]
        # a key is a token and its position, so that the cache holds everything the logits depend on
        keys, _ = past_key_values.update(fed[:, None], fed[:, None], 0)  # [b, 1, past + rows, 2]
        shown = self.visible(attention_mask[:, 0]).tolist()  # [b, rows, past + rows]
        logits = torch.tensor(
            [
                [
                    self.next_logits(tuple(int(token) for _, token in sorted(compress(fed_so_far, row))))
                    for row in rows[-logits_to_keep:]
                ]
                for fed_so_far, rows in zip(keys[:, 0].flip(-1).tolist(), shown, strict=True)
            ],
            dtype=self.dtype,
        )
        return CausalLMOutputWithPast(logits=logits)

    def visible(self, mask: torch.Tensor) -> torch.Tensor:
        """Return which keys each row attends to, given additive masks."""
        return mask == 0


def counting_model(vocab_size: int, context_limit: int = 512) -> FakeCausalLM:
    """Return a model that always predicts t + 1 after token t, and 0 after the last token of the vocabulary."""
    certain = np.roll(np.eye(vocab_size) * 50.0, 1, axis=1).tolist()  # softmax of 50 against 0: 1 in float64
    return bigram_model(certain, context_limit)


def bigram_model(logits: Sequence[Sequence[float]], context_limit: int = 512) -> FakeCausalLM:
    """Return a model that outputs ``logits[t]`` after token t."""
    return FakeCausalLM(partial(_after_last, logits), len(logits), context_limit)


def hashed_model(vocab_size: int, seed: int = 0, context_limit: int = 512, spread: float = 2.0) -> FakeCausalLM:
    """Return a model with pseudo-random logits that depend on the last three visible tokens. ``spread`` scales them."""
    return FakeCausalLM(partial(_hashed, vocab_size, seed, spread), vocab_size, context_limit)


def _after_last(logits: Sequence[Sequence[float]], tokens: tuple[int, ...]) -> Sequence[float]:
    return logits[tokens[-1]]


def _hashed(vocab_size: int, seed: int, spread: float, tokens: tuple[int, ...]) -> Sequence[float]:
    return _drawn_for((seed, *tokens[-3:]), vocab_size, spread)


@lru_cache(maxsize=1 << 14)
def _drawn_for(key: tuple[int, ...], size: int, spread: float) -> tuple[float, ...]:
    return tuple((np.random.default_rng(key).standard_normal(size) * spread).tolist())


class FakeDrafter(Drafter):
    """A drafter that gets its candidates from a function of the committed tokens and the path, and records requests.

    Args:
        guess: function that maps the tokens up to and including the frontier node to its candidates, best first.
    """

    max_candidates: int = 1

    def __init__(self, guess: Callable[[tuple[int, ...]], Sequence[int]], max_candidates: int = 1) -> None:
        self.guess = guess
        self.requests: list[Request] = []  # the requests so far, with copied tokens
        self.max_candidates = max_candidates

    def propose(self, context: Context, request: Request) -> Candidates:
        self.requests.append(replace(request, tokens=request.tokens.copy()))
        committed, rows = context.token_ids.tolist(), request.rows.tolist()
        return candidates_of(request, (list(self.guess((*committed, *request.path_tokens(row)))) for row in rows))


class DistributionDrafter(Drafter):
    """A drafter that ranks or draws tokens, given distributions from a function. Draws are keyed by rank path.

    Args:
        distribution: function that maps the tokens up to and including the frontier node to the probabilities ``[V]``
            of the next token.

    Example:
        >>> fair_coin = DistributionDrafter(lambda tokens: [0.5, 0.5])
    """

    gives_log_probs = True
    draws = True
    max_candidates: int = 64

    def __init__(self, distribution: Callable[[tuple[int, ...]], Sequence[float]], max_candidates: int = 64) -> None:
        self.distribution = distribution
        self.requests: list[Request] = []  # the requests so far, with copied tokens and rows
        self.max_candidates = max_candidates
        self._known: set[tuple[int, ...]] = set()  # paths already answered in this step

    def costs_pass(self, request: Request) -> bool:
        """Return whether any requested path has not been answered yet in this step."""
        return any(request.path_tokens(row) not in self._known for row in request.rows.tolist())

    def propose(self, context: Context, request: Request) -> Candidates:
        """Rank or draw candidates. This counts as one pass if any path is new."""
        self.requests.append(replace(request, tokens=request.tokens.copy(), rows=request.rows.copy()))
        committed = tuple(context.token_ids.tolist())
        paths = [request.path_tokens(row) for row in request.rows.tolist()]
        new = set(paths) - self._known
        answer = self._answer(context, request, [(*committed, *path) for path in paths])
        self._known.update(paths)
        return replace(answer, pass_tokens=(len(new),) if new else ())

    def _answer(self, context: Context, request: Request, known: Sequence[tuple[int, ...]]) -> Candidates:
        q = np.array([self.distribution(tokens) for tokens in known], dtype=np.float32)
        if request.kind is NodeKind.POINT_MASS:
            return _candidates(q, np.argsort(-q, axis=1, kind="stable")[:, : request.k], request.k)
        drawn = [
            _drawn(
                distribution,
                context.uniforms("draft", len(context) - 1, request.rank_path(row), size=request.k),
                replacement=request.kind is NodeKind.DRAWN_WITH_REPLACEMENT,
            )
            for row, distribution in zip(request.rows.tolist(), q, strict=True)
        ]
        return replace(_candidates(q, np.array(drawn), request.k), q=q)

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        self._known.clear()

    def observe(self, outcome: Outcome) -> None:
        self._known.clear()


def _drawn(q: NDArray[np.float32], uniforms: NDArray[np.float64], *, replacement: bool) -> list[int]:
    """Return one draw per uniform number from the remaining tokens, or ``NO_CANDIDATE`` when none are left."""
    left = q.astype(np.float64)
    tokens = []
    for uniform in uniforms.tolist():  # inversion: the first token with F(token) > u * F(all)
        upto = left.cumsum()
        token = int((upto <= uniform * upto[-1]).sum()) if upto[-1] > 0 else NO_CANDIDATE
        tokens.append(token)
        if not replacement and token != NO_CANDIDATE:
            left[token] = 0.0
    return tokens


def _candidates(q: NDArray[np.float32], tokens: NDArray[np.int64], k: int) -> Candidates:
    """Pad tokens ``[f, j]`` to candidates ``[f, k]``, and remove those with probability 0 in ``q`` ``[f, V]``."""
    padded = np.full((q.shape[0], k), NO_CANDIDATE, dtype=np.int64)
    padded[:, : tokens.shape[1]] = tokens
    probabilities = np.where(padded >= 0, np.take_along_axis(q, np.maximum(padded, 0), axis=1), 0.0)
    padded[probabilities == 0] = NO_CANDIDATE
    with np.errstate(divide="ignore"):
        return Candidates(padded, np.log(probabilities.astype(np.float32)))
