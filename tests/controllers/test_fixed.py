"""The controller that decides nothing."""

import pytest
from helpers.contracts import contract_of

from specexp.builders import Chain
from specexp.controllers import Fixed
from specexp.core.loop import Decoder
from specexp.testing.controllers import FrozenControllerContract
from specexp.testing.fakes import FakeDrafter, counting_model

TestFixed = contract_of(FrozenControllerContract, lambda: Fixed())
TestFixedWithLimits = contract_of(FrozenControllerContract, lambda: Fixed(max_depth=2, max_nodes=3))


@pytest.mark.parametrize(
    ("limits", "drafted"), [({}, 6), ({"max_depth": 2}, 2), ({"max_nodes": 3}, 3), ({"max_depth": 0}, 0)]
)
def test_its_limits_hold_at_every_step(limits, drafted):
    seen = []
    decoder = Decoder(
        counting_model(11),
        FakeDrafter(lambda tokens: [(tokens[-1] + 1) % 11]),
        Chain(6),
        controller=Fixed(**limits),
    )
    decoder.generate([0], max_new_tokens=21, observers=[lambda outcome: seen.append(outcome.tree.num_nodes)])
    assert max(seen) == seen[0] == drafted
