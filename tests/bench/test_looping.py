from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from specexp.bench.metrics import loops


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([7] * 24, True),
        ([7] * 23, False),
        ([1, 2, 3] + [7] * 24, True),
        ([7] * 24 + [1], False),
        (list(range(32)) * 3, True),
        (list(range(33)) * 4, False),
        (list(range(10)) * 3, True),
        (list(range(10)) * 2 + list(range(9)), False),
        ([], False),
    ],
)
def test_hand_made_sequences(token_ids: list[int], expected: bool) -> None:
    assert loops(token_ids) is expected


@given(
    head=st.lists(st.integers(0, 5), max_size=20),
    piece=st.lists(st.integers(0, 5), min_size=1, max_size=32),
    more=st.integers(0, 40),
)
def test_what_repeats_long_enough_loops_wherever_it_is_cut(
    head: list[int], piece: list[int], more: int
) -> None:
    repeated = (piece * 60)[: max(24, 3 * len(piece)) + more]
    assert loops(head + repeated)


@given(st.lists(st.integers(), unique=True))
def test_distinct_tokens_never_loop(token_ids: list[int]) -> None:
    assert not loops(token_ids)
