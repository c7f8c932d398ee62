"""A window is a mask: models with sliding windows decode as their own code does, in trees, batches and chunks.

Windows have five tokens, so that every branch straddles the edge of a window.
"""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.served import check_schedule
from helpers.small_models import FULL_ATTENTION, SLIDING, VOCABULARY, build, sliding_model
from transformers import AutoTokenizer

from specexp import Decoder, load_pair
from specexp.builders import Chain, StaticTree, TokenRecyclingTree
from specexp.core.cache import windowed
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.core.tree import TokenTree, TreeShape
from specexp.deploy.hugging_face.custom_generate import custom_generate
from specexp.drafters import DraftModel, EarlyExit, TokenRecycling
from specexp.models.graphed import GraphedModel
from specexp.models.static_step import Replayer

SHAPE = TreeShape.from_rank_paths([[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 1, 0], [0, 1, 1], [0, 1, 0, 0]])
NEVER = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def tokens(count, seed=1):
    return np.random.default_rng(seed).integers(3, VOCABULARY, size=count).tolist()


def plain(model, prompt, count):
    ids = torch.tensor([prompt])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **NEVER)
    return found[0, len(prompt) :].tolist()


@pytest.mark.variants(4)
@pytest.mark.parametrize("kind", [LanguageModel, partial(GraphedModel, replayer=Replayer)], ids=["eager", "graphed"])
@pytest.mark.parametrize("name", SLIDING)
def test_greedy_output_equals_generate(name, kind):
    """With drafts that are rejected, drafts that are all accepted, and both in a tree."""
    model = sliding_model(name)
    runtime, draft = kind(model), kind(model)
    for prompt in (tokens(3), tokens(17)):
        expected = plain(model, prompt, 16)
        for parts in (
            (TokenRecycling(), TokenRecyclingTree()),
            (DraftModel(draft), StaticTree([[0], [1], [0, 0], [0, 1], [0, 0, 0]])),
            (DraftModel(draft), Chain(4)),
        ):
            result = Decoder(runtime, *parts).generate(prompt, max_new_tokens=16)
            assert result.token_ids == expected
        assert result.tokens_per_step == 4  # the draft of the chain is the target


@pytest.mark.parametrize("order", ["built", "depth-first"])
@pytest.mark.parametrize("kind", [LanguageModel, GraphedModel])
@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.variants(4)
def test_a_row_of_a_tree_sees_the_window_on_its_own_path(name, kind, order):
    """Siblings lie between a node and its ancestors in the cache, but take no place in the window."""
    model = sliding_model(name)
    runtime = kind(model)
    runtime.row_order = order
    for past in (1, 3, 9, 17):
        prompt = tokens(past)
        runtime.cache.truncate(0, 0)
        runtime.prefill(0, prompt)
        tree = TokenTree(SHAPE, np.array(tokens(SHAPE.num_nodes + 1, seed=past)))
        for _ in range(2):  # a shape that is fed again reuses its masks
            (logits,) = runtime.tree_pass([0], [tree]).logits
        for row in range(SHAPE.num_nodes + 1):
            path = [int(tree.tokens[one]) for one in (0, *SHAPE.path(row))]
            expected = model(torch.tensor([prompt + path])).logits[0, -1]
            torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["Gemma3Text", "Mistral"])
def test_prompts_longer_than_a_chunk_slide_too(name, monkeypatch):
    monkeypatch.setattr(LanguageModel, "prefill_chunk", 7)
    runtime, prompt = LanguageModel(sliding_model(name)), tokens(33)
    logits = runtime.prefill(0, prompt, all_logits=True).logits[0]
    torch.testing.assert_close(logits, runtime.model(torch.tensor([prompt])).logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["Gemma3Text", "GptOss", "Mistral"])
def test_outputs_of_served_lanes_equal_those_of_single_requests(name, seed):
    model = sliding_model(name)
    parts = [Parts(TokenRecycling(), TokenRecyclingTree()), Parts(DraftModel(model, coupled=True), Chain(4))]
    check_schedule(LanguageModel(model), LanguageModel(model), parts[seed], seed, VOCABULARY, ())


@pytest.mark.parametrize("name", ["Gemma2", "Gemma3Text", "Phi3"])
def test_custom_generate_equals_generate(name):
    model, ids = sliding_model(name), torch.tensor([tokens(17)])
    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))
    found = model.generate(ids, max_new_tokens=24, custom_generate=fast, **NEVER)
    assert found[0, 17:].tolist() == plain(model, tokens(17), 24)


def test_the_lower_layers_of_a_target_draft_with_its_windows():
    model = sliding_model("Gemma3Text")
    for runtime in (LanguageModel(model), GraphedModel(model, Replayer)):
        result = Decoder(runtime, EarlyExit(1), Chain(3)).generate(tokens(17), max_new_tokens=24)
        assert result.token_ids == plain(model, tokens(17), 24)


@pytest.mark.unit
def test_a_window_counts_the_visible_keys_of_each_row():
    path = torch.tensor([[1, 1, 1, 0, 0, 1, 0, 1]]).bool()  # five tokens, with siblings between them
    assert windowed(path, None) is path
    assert windowed(path, 2).int().tolist() == [[0, 0, 0, 0, 0, 1, 0, 1]]
    assert windowed(path, 4).int().tolist() == [[0, 1, 1, 0, 0, 1, 0, 1]]


def test_a_configured_window_that_the_models_code_ignores_fails_the_self_check():
    model = build("Llama", {**FULL_ATTENTION["Llama"], "sliding_window": 64}, dtype=torch.float32)
    with pytest.raises(ValueError, match="the llama model failed the self-check of its eager pass"):
        LanguageModel(model)


def test_the_self_check_restores_the_windows():
    model = build("Gemma3Text", SLIDING["Gemma3Text"], dtype=torch.float32)
    LanguageModel(model)
    assert {part.config.sliding_window for part in model.modules() if hasattr(part, "config")} == {5}


def test_a_model_without_sdpa_is_loaded_with_eager_attention(tmp_path, caplog, model_folder):
    model = build("Gemma2", SLIDING["Gemma2"] | {"vocab_size": 300}, "eager", torch.float32)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(tmp_path)
    pair = load_pair(str(tmp_path), target_dtype="float32")
    assert pair.target.config._attn_implementation == "eager"
    assert "runs with attn_implementation eager, as the gemma2 model needs" in caplog.text
    assert Decoder(pair.target).generate(tokens(17), max_new_tokens=9).token_ids == plain(model, tokens(17), 9)
