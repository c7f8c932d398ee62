"""Whatever a drafter has becomes the tree."""

from helpers.contracts import contract_of

from specexp.builders import AllCandidates
from specexp.core.loop import Decoder
from specexp.drafters import PromptLookup
from specexp.testing.builders import TreeBuilderContract
from specexp.testing.fakes import hashed_model

TestAllCandidates = contract_of(TreeBuilderContract, lambda: AllCandidates(12, candidates=3, max_depth=4))
TestFewNodes = contract_of(TreeBuilderContract, lambda: AllCandidates(3, candidates=2))


def test_a_tree_ends_where_the_drafter_has_no_more():
    seen = []
    decoder = Decoder(hashed_model(24), PromptLookup(candidates=4), AllCandidates())
    decoder.generate([5, 6, 7, 5, 8, 5], max_new_tokens=1, observers=[seen.append])
    decoder.generate([5, 6, 7, 5, 8, 5], max_new_tokens=9, observers=[seen.append])
    assert seen[1].tree.shape.rank_paths[:3] == ((), (0,), (1,))
    assert seen[1].tree.tokens[:3].tolist() == [5, 8, 6]
