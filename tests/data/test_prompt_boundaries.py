"""Prompts end at a boundary of tokens: continued as the text goes on, they keep their own tokens."""

import sysconfig
from pathlib import Path

import pytest
from helpers.continuation import continuation_in_the_examples, starts_with

from experiments.pair.corpus.blocks_plans import BlocksPlans
from experiments.pair.corpus.python_source import PythonLibrary
from experiments.pair.corpus.word_problems import Arithmetic
from specexp.data import HeldOut
from specexp.data.tasks import GSM8K, Blocksworld, CreativeWriting, Item
from specexp.data.training_text import documents_of, opening, prompt_of, python_files, split_of

THOUGHTS = ["one", "two"]


@pytest.mark.parametrize("split", [pytest.param("train", marks=pytest.mark.slow), "validation", "test"])
def test_functions_of_the_standard_library(embedded_tokenizer, split):
    for module, path in python_files(Path(sysconfig.get_paths()["stdlib"])):
        for document in documents_of(path, module) if split_of(module) == split else ():
            prompt = prompt_of(document.text) if document.kind == "function" else None
            if prompt is not None:
                assert starts_with(embedded_tokenizer, prompt, document.text.removeprefix(prompt))


def test_openings_of_held_out_texts(embedded_tokenizer):
    sources = [PythonLibrary(), Arithmetic(100), BlocksPlans(20)]
    texts = [text.text for source in sources for text in source.texts("test")]
    texts += [
        "One sentence, all in one line, and no line break after it.",
        "one\n\n\ntwo\nthree\nfour\nfive\n",
    ]
    for text in texts:
        assert starts_with(embedded_tokenizer, opening(text), text.removeprefix(opening(text)))


@pytest.mark.parametrize("source", [Arithmetic(50), BlocksPlans(50)])
def test_held_out_problems(embedded_tokenizer, source):
    for row in HeldOut(source, "test", items=40).load():
        (prompt,) = row["turns"]
        assert starts_with(embedded_tokenizer, prompt, continuation_in_the_examples(prompt))


@pytest.mark.parametrize("task", [GSM8K(""), CreativeWriting(""), Blocksworld("", "")])
def test_every_prompt_of_every_task(embedded_tokenizer, task):
    item = Item("0", 0, "a problem", ())
    prompts = [task.thought_prompt(item, THOUGHTS[:count]) for count in range(3)]
    prompts += [task.thought_prompt(item, THOUGHTS, last=True), task.value_prompt(item, THOUGHTS)]
    completion = task.completion_prompt(item, [], "How many?")
    for prompt in [*prompts, *([] if completion is None else [completion])]:
        assert starts_with(embedded_tokenizer, prompt, continuation_in_the_examples(prompt))
