"""The rule of thumb is priced by hand-made costs, and its table in the pages is the one that its command prints."""

from pathlib import Path

import pytest

from experiments.rule_of_thumb import COSTS, rule_table, scaled
from specexp.core.latency import LatencyProfile
from specexp.profile.rule import Payoff, break_even, payoff

pytestmark = pytest.mark.unit

FREE = LatencyProfile("rows are free", {1: 10})
LINEAR = LatencyProfile("a row costs a pass", {1: 10, 2: 20})


def test_with_free_rows_the_longest_chain_is_best():
    tokens = sum(0.5**depth for depth in range(13))  # the root and twelve nodes
    assert payoff(FREE, 0.5, chain=True) == Payoff(pytest.approx(tokens), 12, 12)
    assert payoff(FREE, 0.5, chain=False).speedup > tokens


def test_where_a_row_costs_a_pass_nothing_pays():
    assert payoff(LINEAR, 0.9, chain=True) == payoff(LINEAR, 0.9, chain=False) == Payoff(1.0, 0, 0)
    assert break_even(LINEAR, chain=False) is None
    # one free row: 1 + 0.1 tokens at the price of one
    assert break_even(FREE, chain=True) == 0.1


def test_drafts_and_the_host_cost_what_the_profile_states():
    costly = scaled(LatencyProfile("host", {1: 10}, step_ms=1.0), 100, 0.25)  # 10 ms, drafts of 2.5 ms
    one, two = 1.5 / (10 + 2.5 + 1) * 10, 1.75 / (10 + 5 + 1) * 10
    assert one > two
    assert payoff(costly, 0.5, chain=True) == Payoff(pytest.approx(one), 1, 1)


def test_the_page_has_the_table_that_the_command_prints():
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    assert rule_table(COSTS).to_markdown().partition("\n\n")[2] in page
