"""Small random models of the Llama family, their GGUF files, and llama.cpp running them; each made once."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
import transformers
from transformers import AutoModelForCausalLM

from experiments.passes.gguf_writer import write_gguf
from helpers.small_models import byte_tokenizer
from specexp.models.llama_cpp import LlamaCppModel
from specexp.models.llama_file import LlamaFile

VOCABULARY = 258
EXACT = {"cache": "float32", "flash_attention": False}
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
    "initializer_range": 0.3,
    "sliding_window": None,
    "tie_word_embeddings": False,
}


@cache
def tokenizer():
    """Return a tokenizer of all bytes, one pair and an end token."""
    return byte_tokenizer("ab")


def small_llama(name, **settings):
    """Return a random float32 model of the family."""
    return _model(name, json.dumps(settings))


def written(name, precision="f32", **settings):
    """Return the model's GGUF file."""
    return _file(name, precision, json.dumps(settings))


def written_model(model, path):
    """Write any small model."""
    words = deepcopy(tokenizer())
    words.pad_token = words.eos_token  # Phi's configuration has one outside the vocabulary
    write_gguf(model, words, path)
    return path


def runtime(name, **settings):
    """Return the model in llama.cpp, float32 throughout, with an empty cache."""
    return LlamaCppModel(_loaded(name, json.dumps(settings)), self_check=False)


@cache
def _folder():
    return Path(mkdtemp(prefix="gguf"))


@cache
def _model(name, settings):
    config = getattr(transformers, f"{name}Config")(**{**_SIZES, **json.loads(settings)})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@cache
def _file(name, precision, settings):
    path = _folder() / f"{name}-{precision}-{abs(hash(settings))}.gguf"
    write_gguf(_model(name, settings), tokenizer(), path, precision)
    return path


@cache
def _loaded(name, settings):
    return LlamaFile(_file(name, "f32", settings), **EXACT)
