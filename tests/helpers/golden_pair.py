"""The pair of the golden set: a small random Llama, and its first layers as draft.

The weights come from NumPy's legacy generator, whose numbers never change (NEP 19); torch's seeded ones may. Each
letter of the prompts has four likely successors, so that drafts are accepted now and then. Nothing that specexp ships
is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.byte_tokenizer import byte_tokenizer

LAYERS, DRAFT_LAYERS, WIDTH, HEADS, KEY_HEADS, CONTEXT = 4, 2, 64, 4, 2, 640
SHARPNESS = 12.0
"""Logit of a letter's likeliest successor. Higher values make both models surer."""
LAYER_SCALE = 0.9
"""Size of what the layers add. Higher values make the target reject more of the draft, which has fewer layers."""


def write_pair(folder: Path, texts: Sequence[str]) -> tuple[Path, Path]:
    """Write target and draft.

    Args:
        folder: Where they go.
        texts: Their letters are what the models say.

    Returns:
        The folders of the target and of the draft, each with the tokenizer.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    vocabulary = len(tokenizer)
    rng = np.random.RandomState(20)
    embedding = rng.standard_normal((vocabulary, WIDTH)) / np.sqrt(WIDTH)
    letters = sorted(set(tokenizer("".join(texts))["input_ids"]))
    head = _successors(letters, tokenizer.eos_token_id, vocabulary, rng).T @ embedding
    head += 0.02 * rng.standard_normal(head.shape)
    shared: dict[str, Any] = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": SHARPNESS / np.sqrt(WIDTH) * head,
        "model.norm.weight": np.ones(WIDTH),
    }
    layers = [_layer(number, rng) for number in range(LAYERS)]
    folders = []
    for name, count in (("target", LAYERS), ("draft", DRAFT_LAYERS)):
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=count,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=CONTEXT,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=None,
        )
        model = LlamaForCausalLM(config)
        weights = {**shared, **{key: value for layer in layers[:count] for key, value in layer.items()}}
        model.load_state_dict(
            {key: torch.tensor(value, dtype=torch.float32) for key, value in weights.items()}
        )
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        folders.append(folder / name)
    return folders[0], folders[1]


def _successors(
    token_ids: Sequence[int], end: int, vocabulary: int, rng: np.random.RandomState
) -> np.ndarray:
    """Return weights of each token's next tokens: four successors, one of which is sometimes the end token."""
    likes = np.zeros((vocabulary, vocabulary))
    for token in token_ids:
        others = rng.choice([other for other in token_ids if other != token], size=4, replace=False)
        others[3] = end if rng.random_sample() < 0.15 else others[3]
        likes[token, others] = (1.0, 0.85, 0.7, 0.55)
    return likes


def _layer(number: int, rng: np.random.RandomState) -> dict[str, np.ndarray]:
    keys = WIDTH // HEADS * KEY_HEADS
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (keys, WIDTH),
        "self_attn.v_proj": (keys, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (WIDTH, WIDTH),
        "mlp.up_proj": (WIDTH, WIDTH),
        "mlp.down_proj": (WIDTH, WIDTH),
    }
    layer = {name: rng.standard_normal(shape) / np.sqrt(WIDTH) for name, shape in shapes.items()}
    # A row of the embedding has norm 1; what a layer adds has about LAYER_SCALE.
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        layer[name] *= LAYER_SCALE / np.sqrt(WIDTH)
    named = {f"model.layers.{number}.{name}.weight": value for name, value in layer.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    return {**named, **{f"model.layers.{number}.{name}.weight": np.ones(WIDTH) for name in norms}}
