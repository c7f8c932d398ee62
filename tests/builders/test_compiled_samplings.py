"""Large trees are grown by loops in C++ where there is a compiler: the same trees as numpy's, bit for bit."""

from functools import partial

import numpy as np
import pytest

from specexp.base.kernels import CannotCompileError
from specexp.builders import BeamRerank, DySpecGreedy, DySpecThreshold, compiled_samplings
from specexp.builders.compiled_samplings import CompiledSamplings, samplings_of
from specexp.builders.samplings import Samplings
from specexp.core.context import Context
from specexp.core.dialogue import Plan
from specexp.core.tree import NodeKind
from specexp.testing.fakes import DistributionDrafter, result_of

BUILDERS = [
    DySpecGreedy(300),
    DySpecGreedy(300, prefetch=7, max_depth=5),
    DySpecGreedy(300, candidates="top-k"),
    DySpecThreshold(1 / 400, max_nodes=256),
    DySpecThreshold(1 / 2000, max_nodes=256, candidates="top-k"),
    BeamRerank(200, depth=6, beam=40),
]


def falling_draft(seed):
    """Probabilities over 60 tokens that fall as a power of the rank, in another order below every node."""
    shares = np.arange(1, 61) ** -1.5
    shares /= shares.sum()

    def distribution(tokens):
        return np.random.default_rng([seed, *tokens]).permutation(shares).tolist()

    return DistributionDrafter(distribution, max_candidates=60)


@pytest.fixture
def grown(monkeypatch):
    """Grow a tree by numpy, or by the compiled loops."""
    found = compiled_samplings._library()
    if found is None:
        pytest.skip("there is no C++ compiler on PATH")

    def tree_of(builder, seed, compiled):
        monkeypatch.setattr(compiled_samplings, "_library", lambda: found if compiled else None)
        drafter, context = falling_draft(seed), Context([3], sequence=seed)
        drafter.begin(context, None)
        return result_of(builder.build(context.root, Plan()), partial(drafter.propose, context))

    return tree_of


@pytest.mark.parametrize(
    "builder", BUILDERS, ids=lambda builder: f"{type(builder).__name__}-{builder.max_nodes}"
)
def test_trees_are_equal_bit_for_bit(builder, grown):
    for seed in range(2):
        one, other = (grown(builder, seed, compiled) for compiled in (False, True))
        assert one.num_nodes > 100
        for name in ("tokens", "log_probs", "values", "kinds"):
            found = getattr(one, name), getattr(other, name)
            assert found[0] is found[1] or np.array_equal(*found), name  # top-k trees have no kinds
        assert one.shape.parents.tolist() == other.shape.parents.tolist()
        assert one.shape.ranks.tolist() == other.shape.ranks.tolist()
        assert (one.q or {}).keys() == (other.q or {}).keys()
        assert all((other.q[row] == share).all() for row, share in (one.q or {}).items())


def test_without_a_compiler_numpy_grows_trees(monkeypatch):
    def no_compiler(source):
        raise CannotCompileError("there is no C++ compiler")

    compiled_samplings._library.cache_clear()
    monkeypatch.setattr(compiled_samplings, "library", no_compiler)
    assert type(samplings_of(1, NodeKind.DRAWN, 768)) is Samplings
    compiled_samplings._library.cache_clear()


def test_values_raised_to_a_power_are_grown_by_numpy():
    assert type(samplings_of(1, NodeKind.DRAWN, 768, 0.5)) is Samplings
    if compiled_samplings._library() is not None:
        assert type(samplings_of(1, NodeKind.DRAWN, 768)) is CompiledSamplings
