"""Conformance tests for tree builders, to be inherited by the tests of any implementation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, product

import numpy as np
import pytest

from specexp.core.contracts import Drafter, TreeBuilder
from specexp.core.dialogue import Candidates, Plan, Request
from specexp.core.loop import Decoder
from specexp.core.tree import NO_CANDIDATE, NodeKind, RankPath, TokenTree
from specexp.drafters import PhraseCache
from specexp.testing.fakes import DistributionDrafter, FakeCausalLM, FakeDrafter, hashed_model, result_of

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
    swap: tuple[RankPath, int] | None = None,
) -> TokenTree:
    """Build and return one tree, using candidates from a function.

    A node's candidates have the probabilities 1/2, 1/4, 1/8, ... by rank. For a builder that draws, they are drawn in
    this order, and the last one gets the remaining probability. A phrase starts with one of the node's last candidates
    and continues with the best candidate at each position.

    Args:
        guess: function that maps a path of tokens (root first) to its candidates, best first or in draw order.
        plan: limits for the step; None keeps the builder's own.
        stop_after: number of requests that are answered with candidates; later answers are None.
        requests: list to which copies of the requests are appended.
        swap: a rank path and a rank. Below the node at that path, the candidates at that rank and the next one (if any)
            are swapped, along with their probabilities.
    """
    number = count()

    def answer(request: Request) -> Candidates | None:
        if requests is not None:
            requests.append(replace(request, tokens=request.tokens.copy(), rows=request.rows.copy()))
        stopped = stop_after is not None and next(number) >= stop_after
        return None if stopped else _answer(request, guess, root, swap)

    return result_of(builder.build(root, plan or Plan()), answer)


def _answer(request: Request, guess: Guess, root: int, swap: tuple[RankPath, int] | None) -> Candidates:
    if request.length > 1:
        return _phrases(request, guess, root)
    draws = request.kind is not NodeKind.POINT_MASS
    tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
    log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
    q = np.zeros((request.rows.size, _VOCABULARY), dtype=np.float32)
    for number, row in enumerate(request.rows.tolist()):
        guesses = np.array(guess((root, *request.path_tokens(row))), dtype=np.int64)
        probabilities = 0.5 ** np.arange(1, guesses.size + 1)
        if draws and guesses.size:
            probabilities[-1] *= 2  # the rest, so that the distribution sums to one
        if swap is not None and request.rank_path(row) == swap[0] and swap[1] + 1 < guesses.size:
            pair, swapped = [swap[1], swap[1] + 1], [swap[1] + 1, swap[1]]
            guesses[pair], probabilities[pair] = guesses[swapped], probabilities[swapped]
        if draws:  # the tree keeps the whole distribution, including candidates that were not requested
            q[number, guesses] = probabilities
        width = min(guesses.size, request.k)
        tokens[number, :width] = guesses[:width]
        log_probs[number, :width] = np.log(probabilities[:width])
    return Candidates(tokens, log_probs, q if draws else None)


def _phrases(request: Request, guess: Guess, root: int) -> Candidates:
    tokens = np.full((request.rows.size, request.k, request.length), NO_CANDIDATE, dtype=np.int64)
    for number, row in enumerate(request.rows.tolist()):
        above = (root, *request.path_tokens(row))
        for place, first in enumerate(reversed(guess(above)[-request.k :])):
            phrase = [first]
            while len(phrase) < request.length and (following := guess((*above, *phrase))):
                phrase.append(following[0])
            tokens[number, place, : len(phrase)] = phrase
    return Candidates(tokens)


def plenty(path: tuple[int, ...]) -> list[int]:
    """Return 64 distinct candidates that depend on the path."""
    start = (31 * sum(path) + 7 * len(path)) % _VOCABULARY  # any formula that differs from path to path
    return [(start + number) % _VOCABULARY for number in range(64)]


def some(path: tuple[int, ...]) -> list[int]:
    """Return zero to five candidates, depending on the path."""
    return plenty(path)[: (sum(path) * 13 + len(path)) % 6]


def none(path: tuple[int, ...]) -> list[int]:
    """Return an empty list of candidates."""
    return []


def _probabilities(model: FakeCausalLM, tokens: tuple[int, ...]) -> list[float]:
    shares = np.exp(np.asarray(model.next_logits(tokens)))
    return list(shares / shares.sum())


def _drafters(builder: TreeBuilder, model: FakeCausalLM) -> list[Drafter]:
    wide = builder.max_candidates
    drafters: list[Drafter] = [
        DistributionDrafter(partial(_probabilities, source), wide)
        for source in (model, hashed_model(_VOCABULARY, seed=1))
    ]
    if builder.kind is NodeKind.POINT_MASS and not builder.needs_log_probs:
        drafters += [FakeDrafter(plenty, wide), FakeDrafter(some, wide)]
    if builder.phrase_length > 1:
        return [PhraseCache(drafter, builder.phrase_length) for drafter in drafters]
    return drafters


def _of_the_builder(tree: TokenTree, rows: Iterable[int]) -> list[int]:
    return [row for row in rows if tree.grafted is None or not tree.grafted[row]]


class TreeBuilderContract(ABC):
    """Base class for tree builder tests. Subclasses define :meth:`make_builder`; pytest then collects the tests."""

    @abstractmethod
    def make_builder(self) -> TreeBuilder:
        """Return a new builder, identical on every call."""

    @pytest.fixture
    def builder(self) -> TreeBuilder:
        return self.make_builder()

    @pytest.mark.parametrize("guess", [plenty, some, none])
    def test_a_tree_stays_within_the_plan(self, builder: TreeBuilder, guess: Guess) -> None:
        for max_nodes, max_depth in product((None, 0, 1, 2, 5), (None, 0, 1, 2, 4)):
            plan = Plan(max_nodes=max_nodes, max_depth=max_depth)
            tree = grow(builder, guess, plan)
            assert min(builder.max_nodes, builder.max_candidates) >= 1
            assert tree.num_nodes <= builder.max_nodes, plan
            assert max_nodes is None or tree.num_nodes <= max_nodes, plan
            assert max_depth is None or tree.shape.max_depth <= max_depth, plan

    @pytest.mark.parametrize("guess", [plenty, some, none])
    def test_every_node_carries_the_candidate_of_its_rank(self, builder: TreeBuilder, guess: Guess) -> None:
        tree = grow(builder, guess)
        assert tree.tokens.shape == tree.shape.parents.shape
        assert tree.tokens[0] == 7
        assert (tree.num_nodes == 0) == (guess is none)
        for row in _of_the_builder(tree, range(1, tree.tokens.size)):
            parent = int(tree.shape.parents[row])
            path = (7, *(int(tree.tokens[above]) for above in tree.shape.path(parent)))
            assert tree.tokens[row] == guess(path)[tree.shape.ranks[row]]
        for below in tree.shape.children:
            assert len(set(tree.tokens[list(below)].tolist())) == len(below)  # siblings differ

    @pytest.mark.parametrize("guess", [plenty, some, none])
    def test_requests_are_about_filled_rows_and_within_the_declared_bounds(
        self, builder: TreeBuilder, guess: Guess
    ) -> None:
        requests: list[Request] = []
        grow(builder, guess, requests=requests)
        assert requests
        for request in requests:
            assert request.rows.size >= 1
            assert (request.tokens[request.rows] >= 0).all()
            assert request.k >= 1
            assert request.length > 1 or request.k <= builder.max_candidates
            assert 1 <= request.length <= builder.phrase_length
            for row in request.rows.tolist():
                assert all(token >= 0 for token in request.path_tokens(row))

    def test_the_controller_may_stop_it_at_any_request(self, builder: TreeBuilder) -> None:
        """A tree that is stopped at the first request, or receives no candidates, consists only of the root."""
        assert grow(builder, none).tokens.tolist() == [7]
        sizes = [grow(builder, plenty, stop_after=answers).num_nodes for answers in range(5)]
        assert sizes[0] == 0
        assert sizes == sorted(sizes)
        assert sizes[-1] <= builder.max_nodes

    def test_the_same_answers_give_the_same_tree(self, builder: TreeBuilder) -> None:
        first = grow(builder, some)
        grow(builder, plenty, Plan(max_depth=1))
        other = builder.build(3, Plan())  # an unfinished tree must have no effect
        next(other)
        again = grow(builder, some)
        other.close()
        assert again.tokens.tolist() == first.tokens.tolist()
        assert again.shape.rank_paths == first.shape.rank_paths

    @pytest.mark.parametrize("guess", [plenty, some])
    def test_nodes_have_the_declared_kind_and_grafts_follow_as_point_masses(
        self, builder: TreeBuilder, guess: Guess
    ) -> None:
        tree = grow(builder, guess)
        nodes = range(1, tree.tokens.size)
        own = _of_the_builder(tree, nodes)
        assert {tree.kind(row) for row in own} <= {builder.kind}
        assert {tree.kind(row) for row in nodes if row not in own} <= {NodeKind.POINT_MASS}
        for children in tree.shape.children:
            first = _of_the_builder(tree, children)
            assert list(children[: len(first)]) == first
        assert (tree.q is not None) == (builder.kind is not NodeKind.POINT_MASS)
        assert tree.draws is None or builder.kind is not NodeKind.POINT_MASS

    def test_whether_its_shape_is_fixed_is_declared(self, builder: TreeBuilder) -> None:
        """A builder that declares a shape builds that shape from any candidates, provided there are enough."""
        assert (builder.shape is None) == (builder.rank_paths is None)
        if builder.rank_paths is None:
            pytest.skip("its shape depends on the candidates")
        for guess in (plenty, lambda path: plenty((*path, 5))):
            assert [list(path) for path in grow(builder, guess).shape.rank_paths[1:]] == builder.rank_paths
        assert builder.max_nodes == len(builder.rank_paths)

    def test_what_it_can_do_is_tested(self, builder: TreeBuilder) -> None:
        assert (builder.kind is not NodeKind.POINT_MASS) == isinstance(self, DrawingTreeBuilderContract)

    def test_the_output_is_that_of_plain_decoding(self, builder: TreeBuilder) -> None:
        model = hashed_model(_VOCABULARY)
        expected = Decoder(model).generate([1, 2, 3], max_new_tokens=15).token_ids
        for drafter in _drafters(builder, model):
            drafted = Decoder(model, drafter, builder).generate([1, 2, 3], max_new_tokens=15)
            assert drafted.token_ids == expected


class DrawingTreeBuilderContract(TreeBuilderContract):
    """Additional tests for builders that draw nodes."""

    @pytest.mark.parametrize("guess", [plenty, some])
    def test_draws_come_with_their_distribution(self, builder: TreeBuilder, guess: Guess) -> None:
        tree = grow(builder, guess)
        assert tree.q is not None
        assert tree.log_probs is not None
        assert tree.num_nodes > 0
        for row, children in enumerate(tree.shape.children):
            if below := _of_the_builder(tree, children):
                assert tree.q[row].sum() == pytest.approx(1)
                assert np.exp(tree.log_probs[below]) == pytest.approx(tree.q[row][tree.tokens[below]])
                assert set(tree.draw_order(row)) == set(children)

    def test_no_draw_is_left_out(self, builder: TreeBuilder) -> None:
        """A node's children are its first draws, in draw order. A verifier tries them in this order, and tries a child
        again if its token was drawn again.
        """
        for guess in (plenty, some):
            tree = grow(builder, guess)
            assert tree.num_nodes > 0
            for row, below in enumerate(tree.shape.children):
                order = tree.draw_order(row)  # a child appears again if its token was drawn again
                assert tuple(dict.fromkeys(order)) == below
                if builder.kind is NodeKind.DRAWN:
                    assert tree.shape.ranks[list(below)].tolist() == list(range(len(below)))
                    assert order == below

    def test_whether_a_token_is_drawn_does_not_depend_on_the_token(self, builder: TreeBuilder) -> None:
        """A different token with a different probability at the same rank also becomes a node: no draw is pruned."""
        for guess in (plenty, some):
            tree = grow(builder, guess)
            assert tree.num_nodes > 0
            for row in _of_the_builder(tree, range(1, tree.tokens.size)):
                path = tree.shape.rank_paths[row]
                assert path in grow(builder, guess, swap=(path[:-1], path[-1])).shape.rank_paths
