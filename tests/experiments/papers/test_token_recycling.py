"""Bytes of a matrix are rows times candidates times four."""

from experiments.papers.token_recycling import Storage
from specexp.builders import Chain
from specexp.controllers import Fixed
from specexp.core.parts import Parts
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.verifiers import Greedy


def test_the_matrix_of_4096_tokens_and_8_candidates_takes_131_kb_and_a_mb_at_32000():
    recycling = TokenRecycling(k=8, state="carry")
    recycling.check_vocabulary(4096)
    analysis = Storage()
    parts = {name: Parts(drafter, Chain(2), Greedy(), Fixed()) for name, drafter in
             (("recycling", recycling), ("lookup", PromptLookup()))}  # fmt: skip
    analysis.begin({"engine": Parts(None, None, Greedy(), Fixed()), **parts})
    own, lookup = analysis.report([]).tables["storage"].records()
    assert (own["shapes"], own["kB"]) == ("[4096, 8] int32", 4096 * 8 * 4 / 1e3)
    assert own["kB at 32,000 tokens"] == 1024
    assert (lookup["shapes"], lookup["kB"]) == ("nothing", 0)
