"""Conformance tests for drafters, to be inherited by the tests of any implementation."""

import json
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specexp.builders import StaticTree
from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Request
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import parts_in
from specexp.core.runtime import Runtime
from specexp.core.tree import NO_CANDIDATE, NodeKind, TokenTree, TreeShape
from specexp.testing.fakes import hashed_model
from specexp.testing.learned_state import LearnedStateContract

# the steps of these tests use only the first third of the vocabulary, so that tokens repeat
_DRAWN = (NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT)
_SHAPE = TreeShape.from_rank_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]])


class DrafterContract(LearnedStateContract):
    """Base class for drafter tests. Subclasses define :meth:`make_drafter`; pytest then collects the tests."""

    family = "drafter"
    vocab_size: ClassVar[int] = 24  # of the target; override it for a drafter with a fixed vocabulary
    hidden_size: ClassVar[int] = 8  # d, the size of the hidden states, for drafters that use them

    @abstractmethod
    def make_drafter(self) -> Drafter:
        """Return a new drafter in its initial state, identical on every call."""

    def make_target(self) -> Runtime:
        """Return the target model. Override this for a drafter that uses the target's weights."""
        return LanguageModel(hashed_model(self.vocab_size))

    @pytest.fixture
    def drafter(self) -> Drafter:
        return self.new()

    def test_candidates_are_distinct_tokens_then_padding(self, drafter: Drafter) -> None:
        """Each row of candidates ``[f, k]`` has distinct token ids, best first, padded with ``NO_CANDIDATE``."""
        context = self.observe_steps(drafter)
        assert drafter.max_candidates >= 1
        for k in range(1, drafter.max_candidates + 1):
            answer = drafter.propose(context, self._request(context, [0, 1, 4], k))
            assert answer.tokens.shape == (3, k)
            for row in answer.tokens.tolist():
                filled = [token for token in row if token != NO_CANDIDATE]
                assert row == filled + [NO_CANDIDATE] * (k - len(filled))
                assert len(set(filled)) == len(filled)
                assert all(0 <= token < self.vocab_size for token in filled)

    def test_log_probabilities_fall_with_the_rank(self, drafter: Drafter) -> None:
        """Log-probabilities, if declared, have shape ``[f, k]``, are at most 0, and do not increase with the rank."""
        context = self.observe_steps(drafter)
        answer = drafter.propose(context, self._request(context, [0, 1], drafter.max_candidates))
        assert (answer.log_probs is not None) == drafter.gives_log_probs
        if answer.log_probs is not None:
            assert answer.log_probs.shape == answer.tokens.shape
            for tokens, log_probs in zip(answer.tokens, answer.log_probs, strict=True):
                given = log_probs[tokens != NO_CANDIDATE]
                assert (given <= 1e-6).all()
                assert (np.diff(given) <= 1e-6).all()

    def test_proposing_changes_neither_the_request_nor_later_answers(self, drafter: Drafter) -> None:
        context = self.observe_steps(drafter)
        before = self.answers(drafter, context)
        request = self._request(context, [2, 3, 4], 1)
        tokens, rows = request.tokens.copy(), request.rows.copy()
        drafter.propose(context, request)
        assert (request.tokens == tokens).all()
        assert (request.rows == rows).all()
        assert self.answers(drafter, context) == before

    def test_the_answer_to_a_row_does_not_depend_on_the_others(self, drafter: Drafter) -> None:
        context = self.observe_steps(drafter)
        together = drafter.propose(context, self._request(context, [0, 2, 4], drafter.max_candidates))
        for number, row in enumerate((0, 2, 4)):
            single = drafter.propose(context, self._request(context, [row], drafter.max_candidates))
            assert single.tokens[0].tolist() == together.tokens[number].tolist()

    def test_answers_and_states_are_snapshots(self, drafter: Drafter) -> None:
        """A state contains only tensors and values that JSON can store."""
        context = self.observe_steps(drafter)
        answer = drafter.propose(context, self._request(context, [0, 1], drafter.max_candidates))
        kept, state = answer.tokens.copy(), drafter.state_dict()
        stored = _stored(state)
        self._step(drafter, context, seed=99)
        assert (answer.tokens == kept).all()
        assert _stored(state) == stored

    def test_draft_passes_are_counted_where_they_are_declared(self, drafter: Drafter) -> None:
        """No draft pass runs if ``costs_pass`` is False, or if no drafter, inner ones included, runs a model."""
        context = self.observe_steps(drafter)
        request = self._request(context, [0], 1)
        costs_pass = drafter.costs_pass(request)
        fed = drafter.propose(context, request).pass_tokens
        assert min(fed, default=1) > 0
        assert costs_pass or not fed
        if not any(one.runs_model for one in parts_in(drafter)):
            assert not costs_pass
            assert drafter.models == ()

    def test_what_it_learns_from_is_declared(self) -> None:
        """A drafter that learns from ``nothing`` depends only on the committed tokens. One that learns from
        ``accepted`` ignores rejected nodes and the target's logits after them.
        """
        first, second = self.new(), self.new()
        known = {one.learns_from for one in parts_in(first)}
        if not known <= {"nothing", "accepted"}:
            pytest.skip("it may learn from all answers")
        changed = self.observe_steps(second, other=3, after_accepted="accepted" not in known)
        assert self.answers(first, self.observe_steps(first)) == self.answers(second, changed)

    def test_what_it_can_do_is_tested(self, drafter: Drafter) -> None:
        """Draws are tested by :class:`DrawingDrafterContract`, and phrases by :class:`PhraseDrafterContract`."""
        assert drafter.draws == isinstance(self, DrawingDrafterContract)
        assert (drafter.phrase_length > 1) == isinstance(self, PhraseDrafterContract)

    def test_the_output_is_that_of_plain_decoding(self) -> None:
        model = self.make_target()
        drafter = self.make_drafter()
        paths = [path for path in ([0], [1], [0, 0], [0, 1], [0, 0, 0]) if max(path) < drafter.max_candidates]
        plain, drafted = Decoder(model), Decoder(model, drafter, StaticTree(paths))
        for prompt in ([3], [1, 2, 3, 1, 2], [5] * 9):
            expected = plain.generate(prompt, max_new_tokens=24).token_ids
            assert drafted.generate(prompt, max_new_tokens=24).token_ids == expected

    def new(self) -> Drafter:
        drafter = self.make_drafter()
        drafter.check_vocabulary(self.vocab_size)
        drafter.use_target(self.make_target())
        return drafter

    def _states(self, tokens: NDArray[np.int64]) -> torch.Tensor:
        """Return ``[n, d]`` hidden states, one per token."""
        table = np.random.default_rng(0).standard_normal((self.vocab_size, self.hidden_size))
        return torch.from_numpy(table[tokens])

    def prefill(self, drafter: Drafter, context: Context, logits: torch.Tensor | None = None) -> Outcome | None:
        fed = context.token_ids[:-1].copy()
        hidden = self._states(fed) if drafter.wants_hidden else None
        if logits is None and hidden is None:
            return None
        return prefill_outcome(context, fed, torch.empty((0, 0)) if logits is None else logits, hidden)

    def observe_steps(self, drafter: Drafter, seed: int = 1, other: int = 0, after_accepted: bool = False) -> Context:
        """Begin a prompt and observe five steps, with random numbers that depend only on ``seed``.

        Args:
            seed: seed for all random numbers.
            other: shift applied to the tokens of rejected nodes and to the target's logits after them; 0 for none.
            after_accepted: whether to shift the logits after accepted nodes too; the committed tokens do not change.
        """
        generator = np.random.default_rng(seed)
        prompt = generator.integers(self.vocab_size // 3, size=12)
        context = Context(prompt.tolist(), sequence=seed)
        logits = torch.from_numpy(generator.standard_normal((prompt.size - 1, self.vocab_size)))
        drafter.begin(context, self.prefill(drafter, context, logits if drafter.wants_prefill_logits else None))
        for number in range(5):
            self._step(drafter, context, 100 * seed + number, other, after_accepted)
        return context

    def _step(
        self, drafter: Drafter, context: Context, seed: int, other: int = 0, after_accepted: bool = False
    ) -> None:
        generator = np.random.default_rng(seed)
        tokens = generator.integers(self.vocab_size // 3, size=_SHAPE.num_nodes + 1)
        tokens[0] = context.root
        logits = torch.from_numpy(generator.standard_normal((tokens.size, self.vocab_size)))
        accepted = _SHAPE.path(int(generator.integers(tokens.size)))
        new = (*(int(tokens[row]) for row in accepted), int(logits[accepted[-1] if accepted else 0].argmax()))
        if other:  # the committed tokens stay the same
            left = np.setdiff1d(np.arange(tokens.size), [0, *accepted])
            tokens[left] = (tokens[left] + other) % self.vocab_size
            changed = np.arange(tokens.size) if after_accepted else left
            logits[changed] = logits[changed].roll(other, dims=-1)
        context.append(new)
        outcome = Outcome(context, TokenTree(_SHAPE, tokens), logits, accepted, new)
        outcome.hidden = self._states(tokens) if drafter.wants_hidden else None
        drafter.observe(outcome)

    def _request(self, context: Context, rows: list[int], k: int, kind: NodeKind = NodeKind.POINT_MASS) -> Request:
        generator = np.random.default_rng(len(context))
        tokens = generator.integers(self.vocab_size // 3, size=_SHAPE.num_nodes + 1)
        tokens[0] = context.root
        tokens[5] = NO_CANDIDATE  # a row that is not filled yet
        return Request(tokens, _SHAPE.parents, _SHAPE.ranks, np.array(rows, dtype=np.int64), k, kind)

    def answers(self, drafter: Drafter, context: Context) -> list[list[int]]:
        request = self._request(context, [0, 1, 2, 4], drafter.max_candidates)
        tokens: list[list[int]] = drafter.propose(context, request).tokens.tolist()
        return tokens


class DrawingDrafterContract(DrafterContract):
    """Additional tests for drafters that draw candidates."""

    @pytest.mark.parametrize("kind", _DRAWN)
    def test_draws_come_from_the_distribution_it_states(self, drafter: Drafter, kind: NodeKind) -> None:
        """Each row of ``q`` ``[f, V]`` sums to one. Log-probabilities of draws are finite and match ``q``."""
        context = self.observe_steps(drafter)
        answer = drafter.propose(context, self._request(context, [0, 1, 4], 5, kind))
        assert answer.q is not None
        assert answer.log_probs is not None
        assert answer.q.shape == (3, self.vocab_size)
        assert answer.q.sum(axis=1) == pytest.approx([1.0, 1.0, 1.0], abs=1e-4)
        assert answer.tokens.shape == answer.log_probs.shape
        for tokens, log_probs, q in zip(answer.tokens, answer.log_probs, answer.q, strict=True):
            drawn = tokens[tokens != NO_CANDIDATE]
            assert drawn.size >= 1
            assert (tokens[: drawn.size] != NO_CANDIDATE).all()
            assert np.exp(log_probs[: drawn.size]) == pytest.approx(q[drawn], rel=1e-4)
            assert (q[drawn] > 0).all()
            assert kind is NodeKind.DRAWN_WITH_REPLACEMENT or len(set(drawn.tolist())) == drawn.size

    @pytest.mark.parametrize("kind", _DRAWN)
    def test_more_draws_begin_with_the_fewer(self, drafter: Drafter, kind: NodeKind) -> None:
        """``k`` and ``enough`` limit how many tokens are drawn (at least one), but not which ones."""
        context = self.observe_steps(drafter)
        rows = [0, 1, 4]
        most = drafter.propose(context, self._request(context, rows, self.vocab_size, kind))
        assert most.log_probs is not None
        for k in range(1, self.vocab_size):
            fewer = drafter.propose(context, self._request(context, rows, k, kind)).tokens
            assert fewer.shape[1] <= k
            assert (fewer == most.tokens[:, : fewer.shape[1]]).all()
        for mass in (0.1, 0.5, 0.9):
            request = self._request(context, rows, self.vocab_size, kind)
            stopped = drafter.propose(context, replace(request, enough=np.full(3, mass))).tokens
            for index, tokens in enumerate(stopped):
                drawn = tokens[tokens != NO_CANDIDATE]
                assert (drawn == most.tokens[index, : drawn.size]).all()
                held = np.exp(most.log_probs[index, : drawn.size], dtype=np.float64).sum()
                everything = (most.tokens[index] != NO_CANDIDATE).sum()
                assert drawn.size >= 1
                assert held >= mass - 1e-4 or drawn.size == everything

    @pytest.mark.parametrize("kind", _DRAWN)
    def test_draws_are_keyed_by_place(self, kind: NodeKind) -> None:
        """Draws depend on the seed, sequence, root position and rank path, not on the call order or other rows."""
        first, second = self.new(), self.new()
        context, again = self.observe_steps(first), self.observe_steps(second)
        answer = first.propose(context, self._request(context, [0, 1, 2, 4], 6, kind))
        together = answer.tokens
        for index, row in reversed(list(enumerate((0, 1, 2, 4)))):
            single = second.propose(again, self._request(again, [row], 6, kind)).tokens[0]
            assert together[index, : single.size].tolist() == single.tolist()
        drawn = {tuple(together[0].tolist())}
        for seed, sequence in ((1, 1), (0, 2), (0, "1")):
            other = self.new()
            elsewhere = Context(context.token_ids.tolist(), seed=seed, sequence=sequence)
            other.begin(elsewhere, None)
            tokens = other.propose(elsewhere, self._request(elsewhere, [0], 6, kind)).tokens
            drawn.add(tuple(tokens[0].tolist()))
        assert answer.q is not None
        assert len(drawn) > 1 or answer.q[0].max() > 0.99  # a confident draft always draws the same


class PhraseDrafterContract(DrafterContract):
    """Additional tests for drafters that propose phrases."""

    def test_phrases_are_tokens_then_padding_and_cost_no_pass(self, drafter: Drafter) -> None:
        """Phrases ``[f, k, length]`` have up to ``phrase_length`` tokens; requests do not change later answers."""
        context = self.observe_steps(drafter)
        before = self.answers(drafter, context)
        for length in range(2, drafter.phrase_length + 3):
            request = replace(self._request(context, [0, 1, 2, 4], 3), length=length)
            assert not drafter.costs_pass(request)
            candidates = drafter.propose(context, request)
            assert candidates.pass_tokens == ()
            answer = candidates.tokens
            assert answer.shape == (4, 3, length)
            there = answer != NO_CANDIDATE
            assert (there[..., :-1] >= there[..., 1:]).all()
            assert (there.sum(axis=2) <= drafter.phrase_length).all()
            assert (answer[there] >= 0).all()
            assert (answer[there] < self.vocab_size).all()
        assert self.answers(drafter, context) == before


def _stored(state: dict[str, Any]) -> str:
    """Return a state as JSON, with its tensors as lists. Raises ``TypeError`` for values that JSON cannot store."""
    return json.dumps(state, default=torch.Tensor.tolist)
