"""A tree pass answers every row as step-by-step decoding of its branch would, for several architectures."""

import numpy as np
import pytest
import torch
from helpers.small_models import FULL_ATTENTION, VOCABULARY, build, small_model
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    GPTNeoConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MptConfig,
    NemotronHConfig,
    RwkvConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from specexp.builders import StaticTree, TokenRecyclingTree
from specexp.core.cache import check_layers
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import TokenRecycling
from specexp.testing.fakes import FakeCausalLM, hashed_model

ATTENTION = ("sdpa", "eager")
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE = TreeShape.from_rank_paths([[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 1, 0], [0, 1, 1], [0, 1, 0, 0]])


def filled(shape, seed):
    return TokenTree(shape, np.random.default_rng(seed).integers(VOCABULARY, size=shape.num_nodes + 1))


def branch(tree, row):
    return [int(tree.tokens[index]) for index in (0, *tree.shape.path(row))]


def straight(model, tokens):
    """``[V]`` logits after ``tokens``, by the model without any cache or mask of ours."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1]


def close(left, right):
    # eager attention takes its softmax in float32, whatever the model's dtype
    return torch.allclose(left, right, rtol=0, atol=1e-4)


@pytest.mark.variants(4)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", FULL_ATTENTION)
def test_a_tree_pass_equals_step_by_step_decoding(name, attention):
    model = small_model(name, attention)
    language_model = LanguageModel(model)
    prompt = np.random.default_rng(1).integers(VOCABULARY, size=17).tolist()
    language_model.prefill(0, prompt)
    for seed in range(3):
        tree = filled(SHAPE, seed)
        (answers,) = language_model.tree_pass([0], [tree]).logits
        assert answers.shape == (tree.num_nodes + 1, VOCABULARY)
        for row in range(tree.num_nodes + 1):
            assert close(answers[row], straight(model, prompt + branch(tree, row)))


def test_a_prompt_longer_than_a_chunk_is_fed_in_pieces(monkeypatch):
    monkeypatch.setattr("specexp.core.language_model.LanguageModel.prefill_chunk", 7)
    language_model = LanguageModel(small_model("Llama"))
    prompt = list(range(1, 20))
    passes = language_model.passes
    logits = language_model.prefill(0, prompt, all_logits=True).logits[0]
    assert language_model.passes - passes == 3
    assert close(logits[-1], straight(language_model.model, prompt))
    assert logits.shape[0] == 19


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            LlamaConfig(num_hidden_layers=2, layer_types=["linear_attention", "sliding_attention"]),
            r"cannot take trees \(linear_attention in layer 0\): after a rejected draft the recurrent state would",
        ),
        (
            LlamaConfig(num_hidden_layers=2, layer_types=["chunked_attention", "full_attention"]),
            "no tree mask is known for them, so use",
        ),
        (MambaConfig(num_hidden_layers=2), r"mamba .*linear_attention in layer 0.* the recurrent state would"),
        (RwkvConfig(num_hidden_layers=2), r"rwkv .*recurrence in layer 0.* the recurrent state would"),
        (FalconH1Config(num_hidden_layers=2), r"falcon_h1 .*hybrid in layer 0.* the recurrent state would"),
        (
            Lfm2Config(num_hidden_layers=2, layer_types=["full_attention", "conv"]),
            r"lfm2 .*\(conv in layer 1\).* the last inputs of the convolution would",
        ),
        (
            Llama4TextConfig(num_hidden_layers=2, layer_types=["full_attention"] * 2, no_rope_layers=[1, 0]),
            r"llama4_text .*\(queries scaled by cache row in layer 1\).* count cache rows, which",
        ),
        (
            GPTNeoConfig(num_layers=2, attention_types=[[["global", "local"], 1]]),
            r"gpt_neo .*local attention in layer 1.* count cache rows, which",
        ),
        (
            NemotronHConfig(layer_types=["mlp", "linear_attention", "moe"], num_hidden_layers=3),
            r"nemotron_h .*\(linear_attention in layer 1\).* the recurrent state would",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_refused_model_names_the_layer_and_what_would_have_to_be_restored(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_layers(config)


@pytest.mark.parametrize("layer_types", [None, ["full_attention", "sliding_attention"]], ids=["all", "some"])
def test_a_window_as_wide_as_the_context_never_slides(layer_types):
    settings = {**FULL_ATTENTION["Qwen2"], "use_sliding_window": True, "sliding_window": 160}
    model = build("Qwen2", {**settings, "max_window_layers": 1, "layer_types": layer_types})
    language_model = LanguageModel(model)
    tree = filled(SHAPE, 0)
    language_model.prefill(0, [5, 6, 7])
    (answers,) = language_model.tree_pass([0], [tree]).logits
    assert close(answers[9], straight(model, [5, 6, 7, *branch(tree, 9)]))


OLD = {"vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4}
LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 16, "num_layers": 2, "num_heads": 4}
OTHERS = {
    "GPTNeo": ({**SMALL, **LOCAL}, r"cannot take trees \(local attention in layer \d\)"),
    "Bert": (SMALL, "the bert model is an encoder: use a causal model"),
    "Roberta": ({**SMALL, "is_decoder": True}, "failed the self-check of its eager pass"),  # its positions start at 2
    "Falcon": ({**SMALL, "alibi": True}, "the falcon model cannot run eager passes .* learned or rotary"),
    "Bloom": ({**OLD, "hidden_size": 32}, "of the bloom model states no max_position_embeddings"),
    "Rwkv": ({"vocab_size": VOCABULARY, "hidden_size": 32}, r"cannot take trees \(recurrence in layer 0\)"),
    "OpenAIGPT": ({**OLD, "n_embd": 32}, "the openai-gpt model cannot run eager passes"),  # it has no cache
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_are_refused_in_one_sentence(name, dtype):
    settings, message = OTHERS[name]
    model = build(name, {**settings, "initializer_range": 0.3}, "eager", dtype)
    with pytest.raises(ValueError, match=message):
        LanguageModel(model)


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=VOCABULARY, d_model=32, num_layers=1, num_heads=4, d_ff=48, d_kv=8)
    with pytest.raises(ValueError, match="the t5 model is an encoder-decoder: use a decoder-only"):
        LanguageModel(T5ForConditionalGeneration(config).eval())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_positions_by_distance_alone_fail_the_self_check_in_every_precision(dtype):
    config = MptConfig(vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2, initializer_range=0.3)
    config.max_position_embeddings = 160
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    with pytest.raises(ValueError, match="the mpt model failed the self-check of its eager pass"):
        LanguageModel(model)


@pytest.mark.parametrize("given", ["gpt2", 7, None])
def test_anything_but_a_model_is_refused(given):
    with pytest.raises(ValueError, match=rf"a model was expected, got a \w+, {given!r}: load one"):
        Decoder(given)


def test_a_model_in_training_mode_is_refused():
    model = build("GPT2", FULL_ATTENTION["GPT2"]).train()
    with pytest.raises(ValueError, match=r"the gpt2 model is in training mode: call model.eval\(\)"):
        LanguageModel(model)
    decoder = Decoder(model.eval())
    model.train()
    with pytest.raises(ValueError, match="the gpt2 model is in training mode"):
        decoder.generate([1, 2])


def test_dynamic_rotations_stay_as_they_are_up_to_the_context_limit():
    """Beyond it they change with the longest position of a pass, and so with the draft."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    model = build("Llama", {**FULL_ATTENTION["Llama"], "rope_parameters": rope})
    rotary, limit = model.model.rotary_emb, LanguageModel(model).context_limit
    states = torch.zeros(1, 1, 32, dtype=torch.float64)
    before = [one.clone() for one in rotary(states, torch.arange(8)[None])]

    rotary(states, torch.arange(limit)[None])
    assert all(torch.equal(one, two) for one, two in zip(before, rotary(states, torch.arange(8)[None]), strict=True))
    assert not torch.equal(rotary(states, torch.arange(4 * limit)[None])[0][:, :8], before[0])


def test_the_context_ends_where_longrope_would_change_cached_rows():
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}
    rope |= {"original_max_position_embeddings": 40, "rope_theta": 10000.0}
    model = build("Llama", {**FULL_ATTENTION["Llama"], "rope_parameters": rope})
    decoder = Decoder(model, TokenRecycling(k=2), StaticTree([[0], [1], [0, 0], [0, 0, 0]]))
    result = decoder.generate([1, 2, 3, 4], max_new_tokens=60)
    assert result.finish_reason == "context"
    prompt = torch.tensor([[1, 2, 3, 4]])
    expected = model.generate(prompt, max_new_tokens=36, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert result.token_ids == expected[0, 4:].tolist()


def test_attention_without_tree_masks_is_refused():
    model = build("Llama", FULL_ATTENTION["Llama"])
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="'flex_attention' does not accept a tree mask: load the llama model with"):
        LanguageModel(model)


class _IgnoresTheMask(FakeCausalLM):
    """Attends to everything fed so far: siblings see each other."""

    def visible(self, mask):
        return torch.ones_like(mask, dtype=torch.bool)


class _IgnoresPositions(FakeCausalLM):
    """Numbers its tokens by their place in the cache: a node's answer changes with its siblings."""

    def forward(self, input_ids, past_key_values=None, **kwargs):
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        counted = past + torch.arange(input_ids.shape[1])
        output = super().forward(input_ids, past_key_values=past_key_values, **kwargs)
        output.logits += counted[-output.logits.shape[1] :, None] * torch.arange(self.config.vocab_size)
        return output


@pytest.mark.parametrize("model", [_IgnoresTheMask, _IgnoresPositions])
def test_the_self_check_finds_a_model_that_ignores_mask_or_positions(model):
    honest = hashed_model(20)
    LanguageModel(honest)
    with pytest.raises(ValueError, match="failed the self-check of its eager pass"):
        LanguageModel(model(honest.next_logits, 20))


def test_the_self_check_leaves_no_state():
    language_model = LanguageModel(small_model("Llama"))
    assert language_model.cache.lengths == [0]
    assert language_model.passes == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FULL_ATTENTION)
def test_the_self_check_accepts_lower_precision(name, dtype):
    LanguageModel(small_model(name, "sdpa", dtype))


LLAMA = FULL_ATTENTION["Llama"]
GPT = FULL_ATTENTION["GPT2"]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
WIDE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "initializer_range": 0.3}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,  # narrower than its keys
}
ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1}

ARCHITECTURES = {
    "DeepseekV3": {**LLAMA, "num_key_value_heads": 4, **LATENT, **EXPERTS, **ROUTED},
    "Qwen3Moe": {**LLAMA, **EXPERTS, "num_experts": 4, "head_dim": 8},
    "Cohere": LLAMA,
    "CodeGen": {**GPT, "rotary_dim": 8},
    "Falcon": {**WIDE, "num_hidden_layers": 2, "max_position_embeddings": 160},
    "GPTBigCode": GPT,
    "GPTJ": {**GPT, "rotary_dim": 8},
    "GPTNeoX": {**LLAMA, "rotary_pct": 0.25},
    "Gemma2": {**LLAMA, "head_dim": 16, "layer_types": ["full_attention"] * 2},
    "Glm4": {**LLAMA, "head_dim": 8, "pad_token_id": 0},
    "Granite": LLAMA,
    "Mistral": {**LLAMA, "sliding_window": None},
    "Mixtral": {**LLAMA, "num_local_experts": 4, "sliding_window": None},
    "OPT": {**WIDE, "ffn_dim": 48, "num_hidden_layers": 2, "word_embed_proj_dim": 32, "init_std": 0.3},
    "Olmo2": LLAMA,
    "Phi": LLAMA,
    "Phi3": {**LLAMA, "pad_token_id": 0},
    "StableLm": LLAMA,
    "Starcoder2": {**LLAMA, "sliding_window": None},
    "XGLM": {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
}
EAGER_ALONE = ("CodeGen", "GPTJ", "Gemma2", "XGLM")
CASES = [(name, kind) for name in ARCHITECTURES for kind in ATTENTION if kind == "eager" or name not in EAGER_ALONE]


@pytest.mark.parametrize(("name", "attention"), CASES)
@pytest.mark.variants(3)
def test_a_tree_of_eighty_nodes_decodes_as_the_model_does(name, attention):
    model = build(name, ARCHITECTURES[name], attention, torch.float32)  # experts know no float64
    prompt = torch.randint(2, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(1))
    settings = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)[0, 9:].tolist()
    result = Decoder(model, TokenRecycling(), TokenRecyclingTree()).generate(prompt, max_new_tokens=40)
    assert result.token_ids == expected
    assert result.drafted_nodes > 40
