"""What every tree builder promises, as tests that an implementation inherits, also outside this project."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specexp.builders import TreeBuilder
from specexp.controllers import Plan
from specexp.decoder import Decoder
from specexp.drafters import Candidates, Request
from specexp.testing.fakes import FakeDrafter, hashed_model
from specexp.tree import NO_CANDIDATE, TokenTree

Guess = Callable[[tuple[int, ...]], Sequence[int]]
_VOCABULARY = 101


def grow(
    builder: TreeBuilder,
    guess: Guess,
    plan: Plan | None = None,
    *,
    root: int = 7,
    stop_after: int | None = None,
    requests: list[Request] | None = None,
) -> TokenTree:
    """Drive a builder by hand.

    Args:
        builder: what builds.
        guess: candidates after a path of tokens (root first), best first.
        plan: limits; the builder's own if None.
        root: last committed token.
        stop_after: answer so many requests, the next ones with None.
        requests: filled with copies of the requests.
    """
    build = builder.build(root, plan or Plan())
    answered = 0
    try:
        request = next(build)
        while True:
            if requests is not None:
                requests.append(replace(request, tokens=request.tokens.copy(), rows=request.rows.copy()))
            if stop_after is not None and answered >= stop_after:
                request = build.send(None)
                continue
            answered += 1
            tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
            log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
            for number, row in enumerate(request.rows.tolist()):
                guesses = list(guess((root, *request.path_tokens(row))))[: request.k]
                tokens[number, : len(guesses)] = guesses
                log_probs[number, : len(guesses)] = np.log(0.5) * np.arange(1, len(guesses) + 1)
            request = build.send(Candidates(tokens, log_probs))
    except StopIteration as finished:
        tree: TokenTree = finished.value
        return tree


def plenty(path: tuple[int, ...]) -> list[int]:
    """Sixty-four distinct candidates that depend on the path."""
    start = (31 * sum(path) + 7 * len(path)) % _VOCABULARY
    return [(start + number) % _VOCABULARY for number in range(64)]


def some(path: tuple[int, ...]) -> list[int]:
    """From no to five candidates, depending on the path."""
    return plenty(path)[: (sum(path) * 13 + len(path)) % 6]


def none(path: tuple[int, ...]) -> list[int]:
    """No candidate."""
    return []


class TreeBuilderContract:
    """Inherit, and say how to make one; pytest finds the rest.

    Example::

        class TestFan(TreeBuilderContract):
            def make_builder(self):
                return Fan(5)
    """

    def make_builder(self) -> TreeBuilder:
        """A new builder."""
        raise NotImplementedError(f"{type(self).__name__} has to override make_builder().")

    @pytest.fixture
    def builder(self) -> TreeBuilder:
        """A new builder."""
        return self.make_builder()

    def test_states_its_limits(self, builder: TreeBuilder) -> None:
        """A cache and a drafter are sized by them."""
        assert builder.max_nodes >= 1
        assert builder.max_candidates >= 1

    @pytest.mark.parametrize("guess", [plenty, some, none])
    @pytest.mark.parametrize("max_nodes", [None, 0, 1, 2, 5])
    @pytest.mark.parametrize("max_depth", [None, 0, 1, 2, 4])
    def test_a_tree_stays_within_the_plan(
        self, builder: TreeBuilder, max_depth: int | None, max_nodes: int | None, guess: Guess
    ) -> None:
        """Deeper or more nodes than the plan or ``max_nodes`` allow are never returned."""
        tree = grow(builder, guess, Plan(max_nodes=max_nodes, max_depth=max_depth))
        assert tree.num_nodes <= builder.max_nodes
        if max_nodes is not None:
            assert tree.num_nodes <= max_nodes
        if max_depth is not None:
            assert tree.shape.max_depth <= max_depth

    @pytest.mark.parametrize("guess", [plenty, some, none])
    def test_every_node_carries_the_candidate_of_its_rank(self, builder: TreeBuilder, guess: Guess) -> None:
        """Tokens come from the answers alone; the root is the one given."""
        tree = grow(builder, guess)
        assert tree.tokens.shape == tree.shape.parents.shape
        assert tree.tokens[0] == 7
        for row in range(1, tree.tokens.size):
            parent = int(tree.shape.parents[row])
            path = (7, *(int(tree.tokens[above]) for above in tree.shape.path(parent)))
            assert tree.tokens[row] == guess(path)[tree.shape.ranks[row]]

    @pytest.mark.parametrize("guess", [plenty, some])
    def test_siblings_differ(self, builder: TreeBuilder, guess: Guess) -> None:
        """A token offered once hangs below its parent once."""
        tree = grow(builder, guess)
        for below in tree.shape.children:
            tokens = tree.tokens[list(below)].tolist()
            assert len(set(tokens)) == len(tokens)

    @pytest.mark.parametrize("guess", [plenty, some, none])
    def test_asks_only_about_filled_rows(self, builder: TreeBuilder, guess: Guess) -> None:
        """And for between one and ``max_candidates`` candidates, about one row at least."""
        requests: list[Request] = []
        grow(builder, guess, requests=requests)
        assert requests
        for request in requests:
            assert request.rows.size >= 1
            assert (request.tokens[request.rows] >= 0).all()
            assert 1 <= request.k <= builder.max_candidates
            for row in request.rows.tolist():
                assert all(token >= 0 for token in request.path_tokens(row))

    def test_without_candidates_only_the_root_is_left(self, builder: TreeBuilder) -> None:
        """Which is plain decoding for this step."""
        assert grow(builder, none).tokens.tolist() == [7]

    def test_the_controller_may_stop_it_at_any_request(self, builder: TreeBuilder) -> None:
        """The answer None ends drafting there; what was drafted stays."""
        sizes = [grow(builder, plenty, stop_after=answers).num_nodes for answers in range(5)]
        assert sizes[0] == 0
        assert sizes == sorted(sizes)
        assert sizes[-1] <= builder.max_nodes

    def test_the_same_answers_give_the_same_tree(self, builder: TreeBuilder) -> None:
        """Whatever it built before."""
        first = grow(builder, some)
        grow(builder, plenty, Plan(max_depth=1))
        again = grow(builder, some)
        assert again.tokens.tolist() == first.tokens.tolist()
        assert again.shape.rank_paths == first.shape.rank_paths

    def test_trees_can_be_built_side_by_side(self, builder: TreeBuilder) -> None:
        """Several sequences may have a tree under construction; they share nothing."""
        alone = grow(builder, plenty)
        other = builder.build(3, Plan())
        next(other)
        beside = grow(builder, plenty)
        other.close()
        assert beside.tokens.tolist() == alone.tokens.tolist()

    def test_the_output_is_that_of_plain_decoding(self, builder: TreeBuilder) -> None:
        """A tree changes the speed and nothing else."""
        model = hashed_model(_VOCABULARY)
        oracle = FakeDrafter(
            lambda tokens: np.argsort(model.next_logits(tokens))[::-1][:64].tolist(), builder.max_candidates
        )
        for drafter in (
            oracle,
            FakeDrafter(plenty, builder.max_candidates),
            FakeDrafter(some, builder.max_candidates),
        ):
            expected = Decoder(model).generate([1, 2, 3], max_new_tokens=15).token_ids
            assert (
                Decoder(model, drafter, builder).generate([1, 2, 3], max_new_tokens=15).token_ids == expected
            )
