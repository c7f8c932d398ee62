"""Conformance tests for runtimes, to be inherited by the tests of any implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import ClassVar

import numpy as np
import pytest
import torch

from specexp.builders import DySpecGreedy, StaticTree, TokenRecyclingTree
from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier, Verifier
from specexp.core.language_model import final_logits, tolerance
from specexp.core.loop import Decoder
from specexp.core.runtime import Growth, Runtime, TokenRequest
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel, TokenRecycling
from specexp.verifiers import Greedy, KeyedSampling

SHAPE = TreeShape([-1, 0, 0, 1, 1, 2, 3], [-1, 0, 1, 0, 1, 0, 0])
PATH = (0, 1, 3, 6)
"""The rows of one path in :data:`SHAPE`, from the root down. They are not adjacent."""


class RuntimeContract(ABC):
    """Base class for tests of a :class:`~specexp.core.runtime.Runtime`. Subclasses define :meth:`runtime`."""

    tolerance: ClassVar[float] = 1e-4  # largest difference allowed between a row's logits in different passes

    @abstractmethod
    def runtime(self) -> Runtime:
        """Return a new runtime with empty slots and a model with at least 60 vocabulary tokens and 120 positions."""

    def test_a_row_of_a_tree_answers_as_its_path_alone_and_is_committed_with_it(self) -> None:
        runtime, prompt = self.runtime(), _tokens(11)
        runtime.prefill(0, prompt)
        tree = TokenTree(SHAPE, np.array(_tokens(7, seed=1)))
        answers = runtime.tree_pass([0], [tree]).logits[0]
        assert answers.shape == (7, runtime.vocab_size)
        for row in range(7):
            path = [int(tree.tokens[one]) for one in (0, *SHAPE.path(row))]
            self._same(answers[row], _alone(runtime, [*prompt, *path]))

        runtime.commit(0, PATH)  # only the committed rows remain
        assert runtime.length(0) == len(prompt) + len(PATH)
        self._same(_answer(runtime, 0, 5), _alone(runtime, [*prompt, *tree.tokens[[*PATH]].tolist(), 5]))

    def test_trees_of_several_slots_grow_in_shared_passes(self) -> None:
        """Each tree gets the same logits as in a single pass over that tree alone."""
        runtime = self.runtime()
        trees = {slot: TokenTree(SHAPE, np.array(_tokens(7, seed=slot))) for slot in range(3)}
        cuts = (0, 1, 3, 7), (0, 3, 7), (0, 2, 7)  # by slot: row boundaries of the passes; only slot 0 has a third
        runtime.cache.reserve(0, 3)
        whole = {}
        for slot, tree in trees.items():
            runtime.prefill(slot, _tokens(4 + 3 * slot, seed=slot))
            whole[slot] = runtime.tree_pass([slot], [tree]).logits[0].clone()
            runtime.cache.truncate(slot, runtime.length(slot))  # drops the rows of that pass
        grown: dict[int, list[torch.Tensor]] = {slot: [] for slot in trees}
        before = runtime.passes
        for place in range(3):
            slots = [slot for slot in (2, 0, 1) if len(cuts[slot]) > place + 1]  # not in cache order
            rows = [slice(*cuts[slot][place : place + 2]) for slot in slots]
            growths = [
                Growth(trees[slot].tokens[own], SHAPE.depths[own], SHAPE.ancestor_mask[own, : own.stop])
                for slot, own in zip(slots, rows, strict=True)
            ]
            for slot, logits in zip(slots, runtime.grow(slots, growths).logits, strict=True):
                grown[slot].append(logits)
        assert runtime.passes == before + 3
        for slot, tree in trees.items():
            self._same(torch.cat(grown[slot]), whole[slot])
            runtime.commit(slot, PATH)
            text = [*_tokens(4 + 3 * slot, seed=slot), *tree.tokens[[*PATH]].tolist(), 7]
            self._same(_answer(runtime, slot, 7), _alone(self.runtime(), text))

    def test_trees_of_several_slots_share_a_pass(self) -> None:
        runtime = self.runtime()
        prompts = {0: _tokens(5), 2: _tokens(13, seed=4), 1: _tokens(1, seed=5)}
        runtime.cache.reserve(0, 3)
        for slot, prompt in prompts.items():
            runtime.prefill(slot, prompt)
        trees = [TokenTree(SHAPE, np.array(_tokens(7, seed=6))), _root(3), _root(4)]
        together = runtime.tree_pass(list(prompts), trees).logits
        for slot, tree, answers in zip(prompts, trees, together, strict=True):
            self._same(answers, runtime.tree_pass([slot], [tree]).logits[0])

    @pytest.mark.parametrize("verifier", [Greedy(), KeyedSampling(temperature=0.8)], ids=["greedy", "keyed"])
    def test_a_pass_computes_the_tokens_that_the_verifier_chooses_from_its_logits(
        self, verifier: DeterministicVerifier
    ) -> None:
        """Tokens are computed only for slots that request them, until the request is withdrawn."""
        runtime = self.runtime()
        prompt = _tokens(9)
        temperature = verifier.noise_temperature or 0.0
        runtime.cache.reserve(0, 2)
        if not runtime.computes_tokens(verifier):
            pytest.skip("the runtime leaves the tokens to the verifier")
        trees = [TokenTree(SHAPE, np.array(_tokens(7, seed=slot))) for slot in (0, 1)]
        contexts = [
            Context([*prompt, int(tree.tokens[0])], seed=slot, noise_temperature=temperature)
            for slot, tree in enumerate(trees)
        ]
        for slot, context in enumerate(contexts):
            runtime.prefill(slot, prompt)
            runtime.request_tokens(slot, TokenRequest(context, verifier, learned=3))
        result = runtime.tree_pass([0, 1], trees)
        runtime.synchronize()
        for context, (logits, _, target) in zip(contexts, result.by_tree(), strict=True):
            positions = len(context) + SHAPE.depths
            chosen = [verifier.target_token(context, *at) for at in zip(logits, positions.tolist(), strict=True)]
            assert target is not None
            assert target.tokens.tolist() == chosen
            if (top := target.top) is not None:
                values = logits.gather(1, torch.from_numpy(top[0]).to(logits.device))  # bfloat16 has ties
                assert torch.equal(values, logits.topk(3).values)
        runtime.request_tokens(0, None)
        assert not any(runtime.tree_pass([0], trees[:1]).tokens)

    def test_prefill_answers_every_position_where_asked(self) -> None:
        runtime, prompt = self.runtime(), _tokens(60)
        assert not runtime.prefill(0, []).logits
        assert not runtime.prefill(0, prompt[:4]).logits
        (logits,) = runtime.prefill(0, prompt[4:], all_logits=True).logits
        assert logits.shape == (56, runtime.vocab_size)
        for place in (0, 30, 55):
            self._same(logits[place], _alone(runtime, prompt[: place + 5]))

    @torch.inference_mode()
    def test_hidden_states_are_kept_where_they_are_wanted(self) -> None:
        """Each processed row has a hidden state, which the output layer maps to the row's logits."""
        runtime, prompt = self.runtime(), _tokens(9)
        try:
            runtime.keep_hidden(True)
        except ValueError as error:
            pytest.skip(f"the runtime has no hidden states: {error}")
        assert [len(states) for states in runtime.prefill(0, prompt[:6]).hidden] == [6]
        result = runtime.prefill(1, prompt, all_logits=True)
        _near(final_logits(runtime.model, result.hidden[0]), result.logits[0])
        tree = TokenTree(SHAPE, np.array(_tokens(7, seed=3)))
        for slots, trees in (((0,), [tree]), ((1, 0), [_root(3), tree])):
            result = runtime.tree_pass(slots, trees)
            for states, answer in zip(result.hidden, result.logits, strict=True):
                _near(final_logits(runtime.model, states), answer)
        assert not runtime.prefill(0, []).hidden  # no rows, no states
        runtime.keep_hidden(False)
        assert not runtime.tree_pass((0,), [tree]).hidden

    @torch.inference_mode()
    def test_hidden_states_of_chosen_layers_are_joined(self) -> None:
        runtime, prompt = self.runtime(), _tokens(9)
        try:
            runtime.keep_hidden((0, 1))
        except ValueError as error:
            pytest.skip(f"the runtime has no states of layers: {error}")
        expected = runtime.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        joined = torch.cat([states[0] for states in expected[:2]], dim=-1)
        _near(runtime.prefill(0, prompt[:8]).hidden[0], joined[:8])
        _near(runtime.tree_pass((0,), [_root(prompt[8])]).hidden[0], joined[8:])

    def test_slots_are_forgotten_and_forked(self) -> None:
        runtime, prompt = self.runtime(), _tokens(12)
        runtime.cache.reserve(0, 2)
        runtime.prefill(0, prompt)
        runtime.cache.fork(0, 1, 10)
        runtime.cache.truncate(0, 6)
        assert [runtime.length(0), runtime.length(1)] == [6, 10]
        self._same(_answer(runtime, 0, 9), _alone(runtime, [*prompt[:6], 9]))
        self._same(_answer(runtime, 1, 9), _alone(runtime, [*prompt[:10], 9]))

    def test_a_copy_has_the_same_weights_and_a_cache_of_its_own(self) -> None:
        runtime, prompt = self.runtime(), _tokens(6)
        runtime.prefill(0, prompt)
        other = deepcopy(runtime)
        assert other.length(0) == 0
        other.prefill(0, prompt[:4])
        runtime.cache.truncate(0, 0)
        self._same(_answer(other, 0, 9), _alone(runtime, [*prompt[:4], 9]))

    @pytest.mark.parametrize("verifier", [Greedy(), KeyedSampling(temperature=0.8)], ids=["greedy", "keyed"])
    def test_speculative_decoding_gives_the_tokens_of_plain_decoding(self, verifier: Verifier) -> None:
        runtime, prompt = self.runtime(), _tokens(7, seed=8)
        plain = Decoder(runtime, verifier=verifier).generate(prompt, max_new_tokens=20, seed=3).token_ids
        draft = DraftModel(deepcopy(runtime))
        for drafter, builder in (
            (TokenRecycling(), TokenRecyclingTree()),
            (draft, DySpecGreedy(9)),
            (draft, StaticTree([[0], [1], [0, 0], [0, 1]])),
        ):
            decoder = Decoder(runtime, drafter, builder, verifier)
            assert decoder.generate(prompt, max_new_tokens=20, seed=3).token_ids == plain

    def _same(self, answer: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(answer.double(), expected.double(), atol=self.tolerance, rtol=self.tolerance)


def _near(answer: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((answer - expected).abs().max() / expected.std()) <= tolerance(expected.dtype)


def _tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 60, count)]


def _root(token: int) -> TokenTree:
    return TokenTree(TreeShape([-1], [-1]), np.array([token]))


def _answer(runtime: Runtime, slot: int, token: int) -> torch.Tensor:
    return runtime.tree_pass([slot], [_root(token)]).logits[0][0]


def _alone(runtime: Runtime, tokens: Sequence[int]) -> torch.Tensor:
    other = deepcopy(runtime)
    for token in tokens[:-1]:
        other.tree_pass([0], [_root(token)])
        other.commit(0, [0])
    return _answer(other, 0, tokens[-1])
