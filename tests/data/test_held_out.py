"""Prompts from the standard library and from held-out texts, which end at a boundary of tokens."""

import sysconfig
from pathlib import Path

import pytest
from helpers.continuation import continuation_in_the_examples, starts_with

from experiments.papers.seed.blocksworld import Blocksworld
from experiments.papers.seed.creative_writing import CreativeWriting
from experiments.papers.seed.gsm8k import GSM8K
from specexp.data import PromptSetError, StdlibFunctions
from specexp.data.tasks import Item
from specexp.data.training_text import documents_of, openings, prompt_of, python_files, split_of


@pytest.mark.parametrize("split", ["validation", "test"])
def test_there_are_prompts_enough_for_search_and_confirmation(split):
    prompts = StdlibFunctions(split).load()
    assert len(prompts) >= 200
    assert len(set(prompts["prompt_id"])) == len(prompts)
    assert len(set(prompts["category"])) >= 15
    begun = [turns[0] for turns in prompts["turns"]]
    assert all(prompt.endswith("\n") for prompt in begun)


def test_a_prompt_is_head_docstring_and_some_of_the_body():
    lines = ["def f(self, value):", '    """Does what it says, at some length, so that it counts."""']
    lines += [f"    step_{i} = self.compute(value, {i})" for i in range(12)]
    prompt = prompt_of("\n".join(lines) + "\n")
    assert prompt is not None
    assert prompt.splitlines() == lines[: len(prompt.splitlines())]
    assert 4 <= len(prompt.splitlines()) <= 8
    assert prompt.endswith("\n")
    assert prompt_of("def f():\n    return 1\n") is None


def test_a_library_without_its_source_is_named(tmp_path):
    with pytest.raises(PromptSetError, match=f"'{tmp_path}' has no functions of the test modules"):
        openings("test", root=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_functions_continue_at_a_boundary_of_tokens(embedded_tokenizer, split):
    files = python_files(Path(sysconfig.get_paths()["stdlib"]))
    documents = [one for module, path in files if split_of(module) == split for one in documents_of(path, module)]
    texts = [document.text for document in documents if document.kind == "function"]
    prompts = [(prompt, text) for text in texts if (prompt := prompt_of(text)) is not None]
    assert len(prompts) > 100
    for prompt, text in prompts:
        assert starts_with(embedded_tokenizer, prompt, text.removeprefix(prompt))


def prompts_of(task):
    item, thoughts = Item("0", 0, "a problem", ()), ["one", "two"]
    prompts = [task.thought_prompt(item, thoughts[:count]) for count in range(3)]
    prompts += [task.thought_prompt(item, thoughts, last=True), task.value_prompt(item, thoughts)]
    completion = task.completion_prompt(item, [], "How many?")
    return [*prompts, *([] if completion is None else [completion])]


@pytest.mark.parametrize(
    "prompts",
    [
        lambda: prompts_of(GSM8K("")),
        lambda: prompts_of(CreativeWriting("")),
        lambda: prompts_of(Blocksworld("", "")),
    ],
)
def test_prompts_with_examples_continue_at_a_boundary_of_tokens(embedded_tokenizer, prompts):
    assert prompts()
    for prompt in prompts():
        assert starts_with(embedded_tokenizer, prompt, continuation_in_the_examples(prompt))
