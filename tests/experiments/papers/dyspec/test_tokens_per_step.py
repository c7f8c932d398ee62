"""Tokens per step and their ratios: every figure here is computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.papers.dyspec.trees import TokensPerStep
from specexp.bench.record import PromptRecord
from specexp.builders import Chain
from specexp.controllers import Fixed
from specexp.core.parts import Parts
from specexp.testing.analyses import AnalysisContract
from specexp.testing.fakes import FakeDrafter
from specexp.verifiers import Greedy

DRAFTS = Parts(FakeDrafter(lambda tokens: [1]), Chain(2), Greedy(), Fixed())
PLAIN = Parts(None, None, Greedy(), Fixed())


def record(arm: str, prompt: int, tokens: int, steps: int, **given: Any) -> PromptRecord:
    counts = {
        "accepted_drafts": tokens - steps,
        "bonus_tokens": steps,
        "drafted_nodes": 4 * steps,
        "draft_passes": steps,
    }
    return PromptRecord(arm, f"p{prompt}", "a", steps=steps, **counts, **given)


def rows(records: list[PromptRecord], *arms: str, over: str | None = None) -> dict[str, dict[str, Any]]:
    analysis = TokensPerStep(over)
    analysis.begin({"engine": PLAIN, **dict.fromkeys(arms, DRAFTS)})
    table = analysis.report(records).tables["tokens_per_step"]
    return {str(row["arm"]): row for row in table.records()}


class TestTokensPerStep(AnalysisContract):
    def make_analysis(self) -> TokensPerStep:
        return TokensPerStep()


def test_an_arm_is_compared_with_the_one_below_it_on_the_same_prompts() -> None:
    records = [
        *(record("tree", prompt, tokens=12, steps=3) for prompt in range(4)),
        *(record("chain", prompt, tokens=12, steps=6) for prompt in range(4)),
        record("tree", 9, tokens=100, steps=1),  # the chain has no such prompt
    ]
    found = rows(records, "tree", "chain")
    assert list(found) == ["tree", "chain"]  # plain decoding drafts nothing
    assert found["tree"]["tokens/step"] == pytest.approx((4 * 12 + 100) / (4 * 3 + 1))
    assert found["tree"]["nodes/step"] == 4
    assert found["tree"]["over the arm below"] == "2.00x [2.00, 2.00]"
    assert found["chain"]["over the arm below"] is None


def test_a_ratio_is_of_totals_and_its_interval_of_prompts() -> None:
    """Two prompts, ratios 4 and 1: of all tokens 24 / 15 against 24 / 24."""
    records = [
        record("tree", 0, tokens=12, steps=3),
        record("tree", 1, tokens=12, steps=12),
        record("chain", 0, tokens=12, steps=12),
        record("chain", 1, tokens=12, steps=12),
    ]
    assert rows(records, "tree", "chain")["tree"]["over the arm below"] == "1.60x [1.00, 4.00]"


def test_an_arm_that_answered_nothing_is_no_zero() -> None:
    records = [
        record("tree", 0, tokens=12, steps=3),
        record("chain", 0, tokens=0, steps=0, error="ValueError: no"),
    ]
    found = rows(records, "tree", "chain")
    assert found["chain"]["tokens/step"] is None
    assert "no prompt was answered by both" in str(found["tree"]["over the arm below"])


def test_all_may_be_compared_with_one_arm() -> None:
    records = [
        record("tree", 0, tokens=12, steps=3),
        record("bush", 0, tokens=12, steps=4),
        record("chain", 0, tokens=12, steps=6),
    ]
    found = rows(records, "tree", "bush", "chain", over="chain")
    assert [row["over chain"] for row in found.values()] == ["2.00x (one prompt)", "1.50x (one prompt)", None]


def test_an_arm_that_is_not_there_cannot_be_compared_with() -> None:
    with pytest.raises(ValueError, match="was given over 'cable', but the arms are"):
        rows([], "tree", over="cable")
