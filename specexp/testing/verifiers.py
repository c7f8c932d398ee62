"""What every verifier promises, as tests that an implementation inherits, also one outside this project."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from specexp.builders import StaticTree
from specexp.context import Context
from specexp.decoder import Decoder
from specexp.testing.fakes import FakeDrafter, hashed_model
from specexp.tree import TokenTree, TreeShape, root_tree
from specexp.verifiers import DeterministicVerifier, Verifier

_SHAPE = TreeShape.from_rank_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]])


class VerifierContract:
    """Inherit, and say how to make one; pytest finds the rest.

    Attributes:
        vocab_size: of the logits shown to the verifier.

    Example::

        class TestGreedy(VerifierContract):
            def make_verifier(self):
                return Greedy()
    """

    vocab_size: ClassVar[int] = 6

    def make_verifier(self) -> Verifier:
        """A new verifier."""
        raise NotImplementedError(f"{type(self).__name__} has to override make_verifier().")

    @pytest.fixture
    def verifier(self) -> Verifier:
        """A new verifier."""
        return self.make_verifier()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_accepts_a_path_of_the_tree_and_adds_a_token(
        self, verifier: Verifier, dtype: torch.dtype
    ) -> None:
        """``accepted`` goes down from depth 1, each the next one's parent; the bonus is of the vocabulary."""
        for seed in range(50):
            context, tree, logits = self._case(seed, dtype)
            verdict = verifier.verify(context, tree, logits)
            row = 0
            for child in verdict.accepted:
                assert tree.shape.parents[child] == row
                row = child
            assert 0 <= verdict.bonus < self.vocab_size

    def test_the_same_place_gives_the_same_verdict(self, verifier: Verifier) -> None:
        """Randomness is keyed by place, never by the number of calls."""
        cases = [self._case(seed) for seed in range(10)]
        first = [verifier.verify(*case) for case in cases]
        again = [verifier.verify(*case) for case in reversed(cases)]
        assert first == again[::-1]
        assert [self.make_verifier().verify(*case) for case in cases] == first

    def test_a_root_alone_gives_one_token(self, verifier: Verifier) -> None:
        """Plain decoding is the tree without nodes."""
        context, _, logits = self._case(0)
        verdict = verifier.verify(context, root_tree(context.root), logits[:1])
        assert verdict.accepted == ()

    def test_neither_tree_nor_logits_are_changed(self, verifier: Verifier) -> None:
        """Drafters learn from both afterwards."""
        context, tree, logits = self._case(3)
        tokens, kept = tree.tokens.copy(), logits.clone()
        verifier.verify(context, tree, logits)
        assert (tree.tokens == tokens).all()
        assert torch.equal(logits, kept)
        assert len(context) == 3

    def test_a_deterministic_one_walks_as_plain_decoding_would(self, verifier: Verifier) -> None:
        """Each accepted token, and the bonus, is what a root alone would have given at that place."""
        if not isinstance(verifier, DeterministicVerifier):
            pytest.skip(f"{type(verifier).__name__} depends on what was drafted")
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

    def test_a_deterministic_output_does_not_depend_on_the_drafter(self, verifier: Verifier) -> None:
        """Nor on the tree: it is that of plain decoding."""
        if not isinstance(verifier, DeterministicVerifier):
            pytest.skip(f"{type(verifier).__name__} depends on what was drafted")
        model = hashed_model(self.vocab_size)
        builder = StaticTree([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
        drafter = FakeDrafter(lambda tokens: np.argsort(model.next_logits(tokens))[::-1].tolist(), 3)
        for sequence in range(5):
            expected = Decoder(model, verifier=verifier).generate(
                [1, 2], max_new_tokens=12, sequence=sequence
            )
            drafted = Decoder(model, drafter, builder, verifier).generate(
                [1, 2], max_new_tokens=12, sequence=sequence
            )
            assert drafted.token_ids == expected.token_ids

    def _case(self, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Context, TokenTree, torch.Tensor]:
        """A context of three tokens, a tree whose siblings differ, and logits."""
        generator = np.random.default_rng(seed)
        context = Context(generator.integers(self.vocab_size, size=3).tolist(), seed=seed, sequence="case")
        tokens = np.empty(_SHAPE.num_nodes + 1, dtype=np.int64)
        tokens[0] = context.root
        for below in _SHAPE.children:
            tokens[list(below)] = generator.permutation(self.vocab_size)[: len(below)]
        logits = torch.from_numpy(generator.standard_normal((tokens.size, self.vocab_size)) * 2).to(dtype)
        return context, TokenTree(_SHAPE, tokens), logits
