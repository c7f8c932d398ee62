"""Log-probabilities: the tokens' bytes give the text, and no entry is lost, for two kinds of tokenizers."""

import re

import httpx
import pytest
import torch
from helpers.running_server import running
from helpers.small_models import sentencepiece_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from specexp.deploy.server.texts import Texts, TokenTexts
from specexp.engines.openai_client import CHAT, complete
from specexp.servers.verify import compare_endpoints

from .conftest import chunks_of, serve

PROMPTS = ("the 😀 and", "a 客 b", "“zing” the", "x")


@pytest.fixture(scope="module")
def spm():
    tokenizer = sentencepiece_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer) + 3, max_position_embeddings=192, initializer_range=0.3, **sizes)
    return LlamaForCausalLM(config).eval(), tokenizer


NO_BYTES = {str(token): -100 for token in range(3, 259)}
"""A random model writes bytes that are no characters, which SentencePiece's decoder shows in runs."""


@pytest.fixture(scope="module", params=["bytes", "SentencePiece"])
def server(request, tiny, spm):
    bias = {} if request.param == "bytes" else NO_BYTES
    with running(serve(tiny if request.param == "bytes" else spm)) as address:
        yield address, {"logit_bias": bias, "max_tokens": 24, "temperature": 1, "ignore_eos": True}


def ask(server, path, **fields):
    address, shared = server
    body = {**shared, **fields}
    answer = httpx.post(f"{address}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return [answer.json()["choices"][0]]
    return [chunk["choices"][0] for chunk in chunks_of(answer)]


@pytest.mark.variants(1)
@pytest.mark.parametrize("seed", range(4))
def test_the_bytes_of_a_chats_tokens_give_its_text(server, seed):
    messages = [{"role": "user", "content": PROMPTS[seed]}]
    (choice,) = ask(server, "chat/completions", messages=messages, logprobs=True, top_logprobs=4, seed=seed)
    entries = choice["logprobs"]["content"]
    assert len(entries) == 24
    joined = b"".join(bytes(one["bytes"]) for one in entries).decode(errors="replace")
    assert joined == choice["message"]["content"]
    assert all(len(one["top_logprobs"]) == 4 for one in entries)


@pytest.mark.parametrize("count", [0, 5])
def test_every_step_of_a_completion_lists_the_top_tokens_and_the_sampled_one(server, count):
    (choice,) = ask(server, "completions", prompt=PROMPTS[0], logprobs=count, seed=1)
    found = choice["logprobs"]
    for token, own, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert top[token] == own
        assert len(top) in ((count, count + 1) if count else (1,))
        assert list(top.values())[:count] == sorted(top.values(), reverse=True)[:count]


def test_offsets_are_places_in_the_text_and_a_streams_are_those_of_the_whole_answer(server):
    fields = {"prompt": PROMPTS[1], "logprobs": 1, "seed": 3, "max_tokens": 60}
    (whole,) = ask(server, "completions", **fields)
    chunks = ask(server, "completions", stream=True, **fields)
    offsets = whole["logprobs"]["text_offset"]
    streamed = [at for one in chunks if one["logprobs"] for at in one["logprobs"]["text_offset"]]
    assert streamed == offsets == sorted(offsets)
    for at, token in zip(offsets, whole["logprobs"]["tokens"], strict=True):
        assert token.startswith("bytes:") or whole["text"].startswith(token, at) or "\ufffd" in token or "<" in token


def test_spaces_before_words_and_equal_texts_are_kept(spm):
    tokenizer = spm[1]
    texts = Texts(tokenizer)
    ids = tokenizer("the and 😀 a", add_special_tokens=False).input_ids
    answer = TokenTexts(texts)
    pieces = []
    for token in ids:
        pieces.append(answer.bytes_of(token))
        answer.add(token)
    assert b"".join(pieces).decode() == "the and 😀 a" == tokenizer.decode(ids)
    assert b" an" in b"".join(pieces[1:])
    letter, byte = tokenizer.convert_tokens_to_ids(["a", "<0x61>"])
    assert answer.text_of(letter) == answer.text_of(byte) == "a"  # two tokens, one text
    assert answer.text_of(tokenizer.convert_tokens_to_ids("<0xF0>")) == "bytes:\\xf0"
    assert texts.token_bytes(len(tokenizer) + 1) == b""  # the model has more logits than there are tokens


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_client_reads_the_tokens_of_the_answer_back(server, path):
    chat = path == CHAT
    prompt = {"messages": [{"role": "user", "content": PROMPTS[0]}]} if chat else {"prompt": PROMPTS[0]}
    wanted = {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3}
    address, shared = server
    found = complete(address, {**shared, **prompt, **wanted, "seed": 5}, 60, path=path)
    joined = "".join(found.pieces).encode(errors="surrogateescape").decode(errors="replace")
    assert len(found.pieces) == len(found.logprobs) == 24
    assert re.sub(r"</?s>|<unk>|<\|end\|>", "", joined) == found.text


def test_another_character_is_judged_by_the_bytes_at_which_it_differs():
    from specexp.engines.openai_client import Streamed

    def answer(text, last, other):
        raw = [bytes([one]).decode(errors="surrogateescape") for one in text.encode()]
        best = [{one: -0.1} for one in raw]
        best[-1] = {raw[-1]: -0.7, bytes([other]).decode(errors="surrogateescape"): last}
        counted = {"finish_reason": "length", "tokens": len(raw)}
        return Streamed(text, [0.0], **counted, logprobs=best, pieces=raw)

    for last, verdict in ((-0.75, "near tie"), (-9.0, "wrong")):
        off = answer("the 😀", last, "😁".encode()[-1])
        on = answer("the 😁", last, 1)
        (found,) = compare_endpoints(["p"], lambda _, on=on: on, lambda _, off=off: off, 0.125)
        assert found.verdict == verdict
