import json

import pytest
import torch
from helpers.running_server import running
from transformers import AutoModelForCausalLM, AutoTokenizer

from specexp.bench.arm import eos_of
from specexp.builders import Chain
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.deploy.server.app import Server
from specexp.deploy.server.decoding_thread import DecodingThread
from specexp.deploy.server.request_schema import Limits
from specexp.deploy.server.texts import Texts
from specexp.drafters import TokenRecycling


@pytest.fixture(scope="session")
def tiny(model_folder):
    """A random float32 Llama whose every byte is a token, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(model_folder)


def serve(tiny, *, lanes=4, waiting=16, key=None, **limits):
    """A server of the tiny model that drafts what came before."""
    model, tokenizer = tiny
    parts = Parts(TokenRecycling(k=2), Chain(4))
    thread = DecodingThread(
        LanguageModel(model), parts, lanes=lanes, waiting=waiting, eos_token_ids=eos_of(tokenizer, model)
    )
    return Server(thread, Texts(tokenizer), "tiny", Limits(**limits), key)


def generated(tiny, prompt, tokens, **settings):
    """The tokens of plain ``generate``, and their text."""
    model, tokenizer = tiny
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        new = model.generate(ids, do_sample=False, max_new_tokens=tokens, pad_token_id=0, **settings)[0, ids.shape[1] :]
    return new.tolist(), tokenizer.decode(new, skip_special_tokens=True)


def chunks_of(answer):
    """The chunks of a streamed answer."""
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@pytest.fixture(scope="session")
def served(tiny):
    """A server, and its address."""
    server = serve(tiny)
    with running(server) as address:
        yield server, address


@pytest.fixture
def address(served):
    return served[1]


@pytest.fixture
def client(address):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
