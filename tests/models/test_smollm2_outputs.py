"""On the real model, float32 outputs are those of transformers' own ``generate``."""

import logging

import pytest
import torch

from specexp import Decoder, load_artifact, load_pair
from specexp.builders import Chain, StaticTree
from specexp.drafters import DraftModel, Eagle3, PromptLookup, TokenRecycling
from specexp.models.pair import load_tokenizer
from specexp.models.smollm2 import smollm2_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SUBJECTS = ("tea", "the moon", "a bicycle", "rivers", "bread", "chess")
QUESTIONS = (
    "Explain {} in two sentences.",
    "Write a Python function about {}, then write it again with type hints.",
    "List five facts about {}, numbered.",
    "Rewrite this in plain words: {} is, in point of fact, of the utmost importance to all of us.",
)
CHATS = [question.format(subject) for question in QUESTIONS for subject in SUBJECTS]
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.fixture(scope="module")
def reference():
    """The file as transformers loads it, without a folder of ours."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    load_tokenizer("smollm2")
    file = smollm2_file()
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    return model.eval(), AutoTokenizer.from_pretrained(**where)


@pytest.fixture(scope="module")
def pair(reference):
    return load_pair("smollm2", "smollm2", target_dtype="float32")


@pytest.fixture(scope="module")
def prompts(reference):
    turns = [[{"role": "user", "content": text}] for text in CHATS]
    return [reference[1].apply_chat_template(turn, add_generation_prompt=True)["input_ids"] for turn in turns]


@pytest.fixture(scope="module")
def answers(reference, prompts):
    """Greedy answers of at most 64 tokens, with the end token."""
    model, _ = reference
    with torch.inference_mode():
        return [
            model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)[0, len(prompt) :].tolist()
            for prompt in prompts
        ]


def test_weights_tokenizer_template_and_end_are_those_of_transformers(reference, pair):
    model, tokenizer = reference
    wanted = model.state_dict()
    assert all(torch.equal(values, wanted[name]) for name, values in pair.target.state_dict().items())
    assert pair.tokenizer.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert pair.tokenizer.chat_template == tokenizer.chat_template
    assert (pair.tokenizer.eos_token, pair.target.config.eos_token_id) == ("<|im_end|>", 2)
    assert pair.target.config.weights_from == "Q4_1"


@pytest.mark.parametrize(
    "parts",
    [
        (PromptLookup(), Chain(4)),
        (TokenRecycling(), Chain(4)),
        (TokenRecycling(), StaticTree(TREE)),
        tuple(load_artifact("smollm2:tree")),
        (DraftModel(), Chain(4)),
        (Eagle3("smollm2:eagle3"), Chain(3)),
    ],
    ids=["lookup", "recycling", "tree", "shipped tree", "draft", "head"],
)
def test_greedy_answers_are_those_of_generate(parts, pair, prompts, answers):
    if isinstance(parts[0], DraftModel):
        parts[0].use_draft_model(pair.draft)
    decoder = Decoder(pair.target, *parts)
    results = [
        decoder.generate(prompt, max_new_tokens=64, eos_token_id=pair.tokenizer.eos_token_id) for prompt in prompts
    ]
    assert [result.token_ids for result in results] == answers
    assert sum(result.steps for result in results) < 0.9 * sum(map(len, answers))


def test_the_file_runs_in_llama_cpp_with_the_same_tokenizer(pair, caplog):
    pytest.importorskip("llama_cpp")
    with caplog.at_level(logging.WARNING):
        other = load_pair(str(smollm2_file()))
    assert f"llama.cpp runs {smollm2_file()}" in caplog.text
    for text in CHATS:
        assert other.tokenizer(text).input_ids == pair.tokenizer(text).input_ids
