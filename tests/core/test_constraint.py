"""Constraints: the output is that of constrained plain decoding, and samples have exactly the constrained law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.branching import p_value
from helpers.small_families import family_model
from numpy.typing import NDArray
from typing_extensions import override

from specexp import Decoder
from specexp.builders import Chain, SpecInfer, StaticTree
from specexp.core import constraint as constraints, loop
from specexp.core.constraint import Constraint, constrained, masked
from specexp.core.dialogue import Candidates, Request
from specexp.core.language_model import LanguageModel
from specexp.core.tree import NO_CANDIDATE, NodeKind, TokenTree, TreeShape
from specexp.drafters import DraftModel, Grammar, PromptLookup, TokenRecycling, Union
from specexp.models.compiled import CompiledModel
from specexp.testing.fakes import FakeCausalLM, hashed_model
from specexp.verifiers import BlockVerification, Greedy, KeyedSampling, RejectionSampling

V, PROMPT, END = 6, [1, 2, 1], 5
TREE = StaticTree([[0], [1], [0, 0], [0, 1], [0, 0, 0]])


class Rule(Constraint):
    """No token twice in a row; 3 is always followed by 0 and 4; the end only after four tokens."""

    eos_token_ids = frozenset({END})

    def __init__(self) -> None:
        self.output: list[int] = []

    def _next(self, path: Sequence[int]) -> set[int] | None:
        text = list(self.output)
        for token in path:
            if token not in self._after(text):
                return None
            text.append(token)
        return self._after(text)

    @staticmethod
    def _after(text: Sequence[int]) -> set[int]:
        if END in text:
            return set()
        if text[-1:] == [3]:
            return {0}
        if text[-2:] == [3, 0]:
            return {4}
        return set(range(V)) - {*text[-1:]} - ({END} if len(text) < 4 else set())

    @override
    def mask(self, path: Sequence[int]) -> NDArray[np.uint8]:
        return np.packbits(np.isin(np.arange(V), list(self._next(path) or ())), bitorder="little")

    @override
    def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> int:
        return next((n for n in range(len(tokens)) if self._next([*path, *tokens[: n + 1]]) is None), len(tokens))

    @override
    def forced(self, path: Sequence[int]) -> list[int]:
        forced: list[int] = []
        while len(found := self._next([*path, *forced]) or set()) == 1:
            forced += found
        return forced

    @override
    def commit(self, tokens: Sequence[int]) -> None:
        assert self._next(tokens) is not None
        self.output += tokens


def decode(seed: int, count: int, *parts: Any) -> tuple[int, ...]:
    decoder = Decoder(LanguageModel(hashed_model(V)), *parts)
    return tuple(decoder.generate(PROMPT, max_new_tokens=count, seed=seed, constraint=Rule()).token_ids)


def draft_model() -> DraftModel:
    return DraftModel(LanguageModel(hashed_model(V, seed=1)))


def careless_draft() -> DraftModel:
    """Half of its draws end the output, which is not allowed yet; the others are token 0."""
    return DraftModel(LanguageModel(FakeCausalLM(lambda tokens: (9, 0, 0, 0, 0, 9), V, 512)))


DRAFTS = {
    "recycling": lambda: (TokenRecycling(k=2), TREE),
    "lookup": lambda: (PromptLookup(), Chain(4)),
    "grammar": lambda: (Grammar(), TREE),
    "union": lambda: (Union([Grammar(), PromptLookup(), TokenRecycling(k=2)]), TREE),
    "model": lambda: (draft_model(), TREE),
}


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("verifier", [Greedy, KeyedSampling], ids=lambda one: one.__name__)
def test_the_output_is_that_of_constrained_plain_decoding(name: str, verifier: Any) -> None:
    for seed in range(4):
        plain = decode(seed, 24, None, None, verifier())
        assert decode(seed, 24, *DRAFTS[name](), verifier()) == plain
        assert plain[-1] == END or len(plain) == 24


def test_passes_that_choose_tokens_give_the_output_of_masked_logits() -> None:
    """Their best token is taken where it is allowed. Only rows where it is not are masked."""
    model = family_model("Llama", vocab_size=V)
    asked: list[tuple[list[int], int | None]] = []

    class Watched(Rule):
        def mask(self, path: Sequence[int]) -> NDArray[np.uint8]:
            asked.append(([*path], None))
            return super().mask(path)

        def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> int:
            asked.append(([*path], super().allowed(path, tokens)))
            return super().allowed(path, tokens)

    outputs = []
    for runtime in (LanguageModel(model), CompiledModel(model)):
        for parts in ((), (TokenRecycling(k=2), TREE)):
            asked.clear()
            result = Decoder(runtime, *parts).generate(PROMPT, max_new_tokens=24, constraint=Watched())
            outputs.append(result.token_ids)
    free = Decoder(CompiledModel(model)).generate(PROMPT, max_new_tokens=24).token_ids
    assert outputs == [outputs[0]] * 4
    assert outputs[0] != free[: len(outputs[0])], "the rule forbids some best tokens"
    masks = [at for at, (_, count) in enumerate(asked) if count is None]
    assert [asked[at - 1] for at in masks] == [(asked[at][0], 0) for at in masks]
    assert 0 < len(masks) < result.steps + result.accepted_drafts


def law(count: int) -> dict[tuple[int, ...], float]:
    """The probability of every constrained output of ``count`` tokens, by the model's own logits."""
    model = hashed_model(V)
    found: dict[tuple[int, ...], float] = {}
    for output in product(range(V), repeat=count):
        chance, rule = 1.0, Rule()
        for place, token in enumerate(output):
            with torch.inference_mode():
                logits = model(torch.tensor([[*PROMPT, *output[:place]]])).logits[0, -1]
            allowed = sorted(rule._next(output[:place]) or ())
            if token not in allowed:
                chance = 0.0
                break
            chance *= float(logits[allowed].double().softmax(-1)[allowed.index(token)])
        if chance:
            found[output] = chance
    return found


def fit(samples: int, *parts: Any) -> float:
    """The p-value of outputs of three tokens."""
    return float(p_value(Counter(decode(seed, 3, *parts) for seed in range(samples)), law(3)))


@pytest.mark.parametrize(
    "parts",
    [
        lambda: (careless_draft(), Chain(2, candidates="drawn"), RejectionSampling()),
        lambda: (Union([Grammar(), TokenRecycling(k=2)]), TREE, RejectionSampling()),
        pytest.param(lambda: (draft_model(), SpecInfer([2, 1]), RejectionSampling()), marks=pytest.mark.slow),
        pytest.param(
            lambda: (draft_model(), Chain(2, candidates="drawn"), BlockVerification()), marks=pytest.mark.slow
        ),
        pytest.param(lambda: (TokenRecycling(k=2), TREE, KeyedSampling(1.0)), marks=pytest.mark.slow),
    ],
    ids=["drawn", "grammar", "drawn tree", "block", "keyed"],
)
def test_samples_have_the_constrained_law(parts: Any) -> None:
    assert fit(400, *parts()) > 1e-3


def test_draws_that_were_filtered_would_have_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake: a drawn candidate is dropped, and its verifier never sees it."""

    def mistaken(constraint: Constraint, request: Request, answer: Candidates) -> Candidates:
        return constrained(constraint, replace(request, kind=NodeKind.POINT_MASS), answer)

    monkeypatch.setattr(loop, "constrained", mistaken)
    assert fit(400, careless_draft(), Chain(2, candidates="drawn"), RejectionSampling()) < 1e-6


def test_candidates_keep_their_order_and_phrases_are_cut() -> None:
    request = Request(np.array([1]), np.array([-1]), np.array([-1]), np.array([0]), k=3, length=3)
    answer = Candidates(np.array([[[END, 0, 1], [3, 0, 0], [2, 1, 2]]]))
    found = constrained(Rule(), request, answer).tokens.tolist()
    none = NO_CANDIDATE
    assert found == [[[3, 0, none], [2, 1, 2], [none] * 3]]


@pytest.mark.parametrize("columns", [0, 2])
def test_a_row_without_candidates_gets_the_forced_text(columns: int) -> None:
    request = Request(np.array([1, 3]), np.array([-1, -1]), np.array([-1, -1]), np.array([0, 1]), k=2)
    none = np.full((2, columns), NO_CANDIDATE)
    answer = Candidates(none, np.full((2, columns), -np.inf, dtype=np.float32))
    found = constrained(Rule(), request, answer)
    assert found.tokens[:, 0].tolist() == [NO_CANDIDATE, 0]  # only 3 forces a token
    assert found.log_probs is not None
    assert found.log_probs[1, 0] == 0
    drafted = Decoder(LanguageModel(hashed_model(V)), PromptLookup(min_ngram=3), Chain(2)).generate(
        PROMPT, max_new_tokens=24, seed=0, constraint=Rule()
    )
    plain = Decoder(LanguageModel(hashed_model(V))).generate(PROMPT, max_new_tokens=24, seed=0, constraint=Rule())
    assert drafted.token_ids == plain.token_ids
    assert drafted.accepted_drafts >= 2 * plain.token_ids[:-2].count(3) > 0


def test_logits_are_masked_after_each_row() -> None:
    tree = TokenTree(TreeShape([-1, 0, 1, 0], [-1, 0, 0, 1]), np.array([1, 3, 0, END]))
    found = masked(Rule(), tree, torch.zeros(4, V))
    assert [np.flatnonzero(row).tolist() for row in np.isfinite(found.numpy())] == [
        [0, 1, 2, 3, 4],
        [0],
        [4],
        list(range(V)),  # no verifier reaches it
    ]


def test_without_a_constraint_grammar_has_no_candidates() -> None:
    assert constraints.Constraint.__abstractmethods__ == {"mask", "allowed", "forced", "commit"}
    plain = Decoder(LanguageModel(hashed_model(V))).generate(PROMPT, max_new_tokens=8)
    drafted = Decoder(LanguageModel(hashed_model(V)), Grammar(), Chain(3)).generate(PROMPT, max_new_tokens=8)
    assert drafted.token_ids == plain.token_ids
    assert drafted.drafted_nodes == 0
