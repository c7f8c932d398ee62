from __future__ import annotations

import pytest
from typing_extensions import override

from experiments.pair.corpus.word_problems import Arithmetic
from specexp.data.training_text import HeldOut, Text, TextSource
from specexp.testing.prompt_sets import PromptSetContract


class Verses(TextSource):
    """Two texts that nobody checks, one of them twice."""

    licence = "none"

    @override
    def texts(self, split):
        for name in ("b", "a", "a"):
            yield Text(name, f"{name} {split}\nsecond\nthird line\nfourth line\n")


class TestOpenings(PromptSetContract):
    @pytest.fixture
    def prompt_set(self):
        return HeldOut(Verses(), "test")


def test_texts_become_openings_each_once():
    rows = HeldOut(Verses(), "validation").load()
    assert rows["turns"][:] == [["b validation\n"], ["a validation\n"]]
    assert set(rows["category"]) == {"Verses"}


def test_problems_are_asked_as_their_task_asks_them():
    rows = HeldOut(Arithmetic(50), "test", items=4).load()
    assert set(rows["category"]) == {"solved", "judged"}
    assert all(
        turns[0].startswith(("Solve each problem", "Judge the newest step")) for turns in rows["turns"]
    )
    assert rows["turns"][0][0].endswith("Sub-question 1:")
