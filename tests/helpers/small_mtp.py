"""A random target with a multi-token-prediction layer in the published layout."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MellumConfig, MellumForCausalLM

from helpers.small_models import layer_weights

VOCABULARY, WIDTH, HEADS, KEYS, SIZE, INNER, THETA = 61, 32, 4, 2, 16, 48, 5000.0


def published(folder, kind="full_attention", without=""):
    """Write a random target with a layer in the names of its publisher (Mellum's, as Qwen3-Next's)."""
    config = MellumConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, head_dim=SIZE,
        num_attention_heads=HEADS, num_key_value_heads=KEYS, mlp_layer_types=["dense"] * 2, num_mtp_layers=1,
        mtp_layer_types=[kind], mtp_mlp_layer_types=["dense"], max_position_embeddings=160, sliding_window=None,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": THETA}},
        initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    MellumForCausalLM(config).double().save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(shape, generator=generator).double() * 0.3

    layer = "mtp.layers.0"
    tensors = {
        "mtp.fc.weight": random(WIDTH, 2 * WIDTH),
        "mtp.pre_fc_norm_embedding.weight": 1 + random(WIDTH),
        "mtp.pre_fc_norm_hidden.weight": 1 + random(WIDTH),
        "mtp.norm.weight": 1 + random(WIDTH),
        **layer_weights(random, layer, WIDTH, WIDTH, HEADS, KEYS, SIZE, INNER),
        **{f"{layer}.self_attn.{one}_norm.weight": 1 + random(SIZE) for one in "qk"},
    }
    tensors.pop(without, None)
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    return tensors


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa").eval()


@cache
def known():
    """Return a target, and the tensors of its layer."""
    folder = Path(mkdtemp())
    tensors = published(folder)
    return loaded(folder), tensors
