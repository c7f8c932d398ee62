"""Prompts from the standard library and from held-out texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import override

from experiments.pair.corpus.python_source import PythonLibrary
from experiments.pair.corpus.word_problems import Arithmetic
from specexp.data import PromptSetError, StdlibFunctions
from specexp.data.training_text import HeldOut, Text, TextSource, openings, prompt_of
from specexp.fit.training_rows import held_out_texts
from specexp.testing.prompt_sets import PromptSetContract


@pytest.mark.parametrize("split", ["validation", "test"])
def test_there_are_prompts_enough_for_search_and_confirmation(split: str) -> None:
    prompts = StdlibFunctions(split).load()  # type: ignore[arg-type]
    assert len(prompts) >= 200
    assert len(set(prompts["prompt_id"])) == len(prompts)
    assert len(set(prompts["category"])) >= 15
    openings = [turns[0] for turns in prompts["turns"]]
    assert all(prompt.endswith("\n") for prompt in openings)
    texts = [text.text for text in held_out_texts(PythonLibrary(), split)]  # type: ignore[arg-type]
    for prompt in openings[:20]:
        assert any(text.startswith(prompt) for text in texts)


def test_a_prompt_is_head_docstring_and_some_of_the_body() -> None:
    lines = ["def f(self, value):", '    """Does what it says, at some length, so that it counts."""']
    lines += [f"    step_{i} = self.compute(value, {i})" for i in range(12)]
    prompt = prompt_of("\n".join(lines) + "\n")
    assert prompt is not None
    assert prompt.splitlines() == lines[: len(prompt.splitlines())]
    assert 4 <= len(prompt.splitlines()) <= 8
    assert prompt.endswith("\n")
    assert prompt_of("def f():\n    return 1\n") is None


def test_a_library_without_its_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match=f"no functions of the test modules in '{tmp_path}'"):
        openings("test", root=tmp_path)


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
