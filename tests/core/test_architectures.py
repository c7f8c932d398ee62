"""Models of many families, unmodified, decode through our trees what their own ``generate`` says, token for token."""

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, VOCABULARY, build

from specexp.builders import TokenRecyclingTree
from specexp.core.loop import Decoder
from specexp.drafters import TokenRecycling

LLAMA = FULL_ATTENTION["Llama"]
GPT = FULL_ATTENTION["GPT2"]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
WIDE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "initializer_range": 0.3}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}

ARCHITECTURES = {
    "Cohere": LLAMA,
    "CodeGen": {**GPT, "rotary_dim": 8},
    "DeepseekV3": {
        **LLAMA,
        "num_key_value_heads": 4,
        **LATENT,
        **EXPERTS,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
    },
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
    "Qwen3Moe": {**LLAMA, **EXPERTS, "num_experts": 4, "head_dim": 8},
    "StableLm": LLAMA,
    "Starcoder2": {**LLAMA, "sliding_window": None},
    "XGLM": {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
}
EAGER_ALONE = ("CodeGen", "GPTJ", "Gemma2", "XGLM")
CASES = [
    (name, attention)
    for name in ARCHITECTURES
    for attention in (("eager",) if name in EAGER_ALONE else ("sdpa", "eager"))
]


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_tree_of_eighty_nodes_decodes_what_the_model_itself_does(name, attention):
    model = build(name, ARCHITECTURES[name], attention, torch.float32)  # experts know no float64
    prompt = torch.randint(2, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(1))
    settings = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)[0, 9:].tolist()
    result = Decoder(model, TokenRecycling(), TokenRecyclingTree()).generate(prompt, max_new_tokens=40)
    assert result.token_ids == expected
    assert result.drafted_nodes > 40
