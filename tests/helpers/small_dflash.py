"""A random DFlash draft in the published layout."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import save_file

from helpers.small_models import VOCABULARY, layer_weights

WIDTH, HEADS, KEYS, SIZE, INNER, THETA = 32, 4, 2, 16, 24, 5000.0
LAYERS, BLOCK, MASK = (1, 4), 5, 60


def published(folder, without="", **settings):
    """Write a random draft of two layers as z-lab does; return its tensors."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    tensors = {"fc.weight": random(WIDTH, 2 * WIDTH)}
    tensors |= {name: 1 + random(WIDTH) for name in ("hidden_norm.weight", "norm.weight")}
    for number in range(2):
        layer = f"layers.{number}"
        tensors |= layer_weights(random, layer, WIDTH, WIDTH, HEADS, KEYS, SIZE, INNER)
        tensors |= {f"{layer}.self_attn.{one}_norm.weight": 1 + random(SIZE) for one in "qk"}
    tensors.pop(without, None)
    content = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "num_target_layers": 6,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [one - 1 for one in LAYERS]},
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "head_dim": SIZE,
        "rope_theta": THETA,
        "rms_norm_eps": 1e-6,
        **settings,
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return {name: one.double() for name, one in tensors.items()}


@cache
def known():
    folder = Path(mkdtemp())
    return str(folder), published(folder)
