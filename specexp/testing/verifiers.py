"""Conformance tests for verifiers, to be inherited by the tests of any implementation."""

from abc import ABC, abstractmethod
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
import pytest
import torch

from specexp.builders import SpecInfer, StaticTree
from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier, Verifier
from specexp.core.dialogue import Plan
from specexp.core.loop import Decoder
from specexp.core.tree import NodeKind, TokenTree, root_tree
from specexp.testing.fakes import DistributionDrafter, FakeDrafter, hashed_model, result_of

_PATHS = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]]
_BUILDERS = {
    NodeKind.POINT_MASS: StaticTree(_PATHS),
    NodeKind.DRAWN: StaticTree(_PATHS, candidates="drawn"),
    NodeKind.DRAWN_WITH_REPLACEMENT: SpecInfer([3, 2, 1]),  # at most 16 rows
}


class VerifierContract(ABC):
    """Base class for verifier tests. Subclasses define :meth:`make_verifier`; pytest then collects the tests."""

    vocab_size: ClassVar[int] = 6  # number of tokens that the logits cover

    @abstractmethod
    def make_verifier(self) -> Verifier:
        """Return a new verifier, identical on every call."""

    @pytest.fixture
    def verifier(self) -> Verifier:
        return self.make_verifier()

    @pytest.mark.parametrize("kind", NodeKind)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_accepts_a_path_of_the_tree_and_adds_a_token(
        self, verifier: Verifier, dtype: torch.dtype, kind: NodeKind
    ) -> None:
        """Each row in ``accepted`` is the parent of the next one, and the bonus token is in the vocabulary.

        The tree and the logits must not change.
        """
        for seed in range(50):
            context, tree, logits = self._case(seed, dtype, kind)
            tokens, kept = tree.tokens.copy(), logits.clone()
            q = {row: values.copy() for row, values in (tree.q or {}).items()}
            verdict = verifier.verify(context, tree, logits)
            row = 0
            for child in verdict.accepted:
                assert tree.shape.parents[child] == row
                row = child
            assert 0 <= verdict.bonus < self.vocab_size
            assert (tree.tokens == tokens).all()
            assert torch.equal(logits, kept)
            assert len(context) == 3
            assert all(((tree.q or {})[row] == values).all() for row, values in q.items())

    @pytest.mark.parametrize("kind", NodeKind)
    def test_the_same_place_gives_the_same_verdict(self, verifier: Verifier, kind: NodeKind) -> None:
        cases = [self._case(seed, kind=kind) for seed in range(10)]
        first = [verifier.verify(*case) for case in cases]
        again = [verifier.verify(*case) for case in reversed(cases)]
        assert first == again[::-1]
        assert [self.make_verifier().verify(*case) for case in cases] == first

    def test_a_root_alone_gives_one_token(self, verifier: Verifier) -> None:
        context, _, logits = self._case(0)
        assert verifier.verify(context, root_tree(context.root), logits[:1]).accepted == ()

    def test_what_it_promises_is_tested(self, verifier: Verifier) -> None:
        """The tests of a lossless verifier inherit :class:`LosslessVerifierContract`; those of a deterministic one
        inherit :class:`DeterministicVerifierContract`.
        """
        assert verifier.lossless == isinstance(self, LosslessVerifierContract)
        assert verifier.lossless or verifier.sampling_settings is None
        assert (verifier.sampling == "deterministic") == isinstance(verifier, DeterministicVerifier)
        assert isinstance(verifier, DeterministicVerifier) == isinstance(self, DeterministicVerifierContract)

    def _case(
        self, seed: int, dtype: torch.dtype = torch.float32, kind: NodeKind = NodeKind.POINT_MASS
    ) -> tuple[Context, TokenTree, torch.Tensor]:
        tokens, tree, logits = _drawn(seed, self.vocab_size, kind)
        return Context(tokens, seed=seed, sequence="case"), tree, logits.to(dtype, copy=True)


class LosslessVerifierContract(VerifierContract):
    """Additional tests for verifiers that are declared lossless."""

    def test_the_next_token_has_the_distribution_of_plain_decoding(self, verifier: Verifier) -> None:
        logits = torch.from_numpy(np.random.default_rng(7).standard_normal((16, self.vocab_size)) * 1.5)
        drafted = np.zeros((len(NodeKind), self.vocab_size))
        plain = np.zeros(self.vocab_size)
        for seed in range(800):
            root = 0
            for counts, kind in zip(drafted, NodeKind, strict=True):
                _, tree, _ = _drawn(seed, self.vocab_size, kind)
                root = int(tree.tokens[0])  # the same for all kinds
                context = Context([1, 2, root], sequence=seed)
                verdict = verifier.verify(context, tree, logits[: tree.tokens.size])
                counts[tree.tokens[verdict.accepted[0]] if verdict.accepted else verdict.bonus] += 1
            context = Context([1, 2, root], sequence=-1 - seed)  # independent of the drafted runs
            plain[verifier.verify(context, root_tree(root), logits[:1]).bonus] += 1
        for counts, kind in zip(drafted, NodeKind, strict=True):
            observed = np.stack((counts, plain))[:, counts + plain > 0]
            expected = observed.sum(axis=0) / 2  # both samples have the same size
            # chi-square of two samples; its mean is the degrees of freedom d, its standard deviation sqrt(2 d)
            freedom = observed.shape[1] - 1
            chi_square = ((observed - expected) ** 2 / expected).sum()
            assert chi_square <= freedom + 7 * np.sqrt(2 * freedom), kind


class DeterministicVerifierContract(LosslessVerifierContract):
    """Additional tests for a :class:`~specexp.core.contracts.DeterministicVerifier`."""

    def test_it_walks_as_plain_decoding_would(self, verifier: Verifier) -> None:
        """The accepted tokens and the bonus token are those that the verifier would choose without a draft."""
        for seed in range(50):
            context, tree, logits = self._case(seed)
            verdict = verifier.verify(context, tree, logits)
            step = Context(context.token_ids.tolist(), seed=context.seed, sequence=context.sequence)
            row = 0
            for child in (*verdict.accepted, None):
                token = verifier.verify(step, root_tree(step.root), logits[row : row + 1]).bonus
                if child is None:
                    assert token == verdict.bonus
                    assert tree.child_with_token(row, token) is None
                else:
                    assert token == tree.tokens[child]
                    step.append([token])
                    row = child

    def test_the_output_does_not_depend_on_the_drafter(self, verifier: Verifier) -> None:
        model = hashed_model(self.vocab_size)
        builder = StaticTree([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
        drafter = FakeDrafter(lambda tokens: np.argsort(model.next_logits(tokens))[::-1].tolist(), 3)
        for sequence in range(5):
            plain, drafted = (
                decoder.generate([1, 2], max_new_tokens=12, sequence=sequence, seed=0)
                for decoder in (Decoder(model, verifier=verifier), Decoder(model, drafter, builder, verifier))
            )
            assert drafted.token_ids == plain.token_ids


@lru_cache(maxsize=1 << 12)
def _drawn(seed: int, vocab_size: int, kind: NodeKind) -> tuple[list[int], TokenTree, torch.Tensor]:
    """Return three tokens, a random tree rooted at the last one, and random logits, cached for all verifiers."""

    def distribution(tokens: tuple[int, ...]) -> list[float]:
        return list(np.random.default_rng((seed, *tokens)).dirichlet(np.ones(vocab_size)))

    generator = np.random.default_rng(seed)
    tokens: list[int] = generator.integers(vocab_size, size=3).tolist()
    propose = partial(DistributionDrafter(distribution).propose, Context(tokens, seed=seed))
    tree = result_of(_BUILDERS[kind].build(tokens[-1], Plan()), propose)
    return tokens, tree, torch.from_numpy(generator.standard_normal((tree.tokens.size, vocab_size)) * 2)
