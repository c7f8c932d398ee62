"""Random EAGLE-3 heads as their publishers write them, and a plain reading of the recipe."""

import json
from functools import cache

import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, silu

from helpers.small_models import FULL_ATTENTION, VOCABULARY, build, layer_weights

WIDTH, HEADS, KEYS, SIZE, INNER, KEPT, DEPTH = 32, 4, 2, 8, 24, 20, 6
LAYERS = (1, 2, 4)
SAFE, SPECULATORS = "SafeAILab", "speculators"


@cache
def target_model():
    return build("Llama", {**FULL_ATTENTION["Llama"], "num_hidden_layers": DEPTH})


def published(folder, layout=SAFE, **switches):
    """Write a random head as its publisher does; return its tensors and switches."""
    own = {"layers": 1, "qwen3": False, "whole": False, "embeddings": False} | switches
    named = {name: own[name] for name in own if "norm" in name}
    generator = torch.Generator().manual_seed(0)
    fused, vocabulary = 3 * WIDTH, VOCABULARY if own["whole"] else KEPT

    def random(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    def norm(width):
        return 1 + random(width)

    tensors = {"fc.weight": random(WIDTH, fused), "norm.weight": norm(WIDTH)}
    tensors["lm_head.weight"] = random(vocabulary, WIDTH) * 3
    for number in range(own["layers"]):
        first = "midlayer" if layout == SAFE else f"layers.{number}"
        wide = WIDTH if number else 2 * WIDTH
        tensors |= layer_weights(random, first, wide, WIDTH, HEADS, KEYS, SIZE, INNER)
        if number == 0:
            tensors[f"{first}.hidden_norm.weight"] = norm(WIDTH)
        if own["qwen3"]:
            tensors |= {f"{first}.self_attn.{one}_norm.weight": norm(SIZE) for one in "qk"}
    if own.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(fused)
    if own.get("fc_norm"):
        tensors |= {f"fc_norm.{number}.weight": norm(WIDTH) for number in range(3)}
    if not own["whole"]:
        kept = torch.arange(1, VOCABULARY, 3)[:KEPT]
        tensors["d2t"] = kept - torch.arange(KEPT)
        tensors["t2d"] = torch.isin(torch.arange(VOCABULARY), kept)
    layer = {
        "model_type": "qwen3" if own["qwen3"] else "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": own["layers"],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "head_dim": SIZE,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-5,
    }
    sizes = {"draft_vocab_size": vocabulary}
    if layout == SAFE:
        layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [one - 1 for one in LAYERS]}}
        content = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **sizes, **layers, **named}
        save_file(tensors, folder / "model.safetensors")
    else:
        layers = {"eagle_aux_hidden_state_layer_ids": list(LAYERS), "target_hidden_size": WIDTH}
        content = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, **sizes, **layers}
        content = {"norm_before_residual": False, **content, **named}
        torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return {name.replace("midlayer", "layers.0"): one for name, one in tensors.items()}, own


def recipe(tensors, own, embedded, states, count):
    """Return logits ``[m + count - 1, V]`` after all given tokens, the last of them a chain that the head drafts.

    Args:
        embedded: ``[m + count - 1, d]`` embeddings of the tokens after the states, then of the drafted ones.
        states: ``[m, 3 d]`` of the target.
        count: how many of the last rows are drafted one after the other, the first from the target's state.
    """

    def rms(name, x):
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * tensors[name].double()

    def product(name, x):
        return linear(x, tensors[name].double())

    def turned(x, position):
        rates = 5000.0 ** (-torch.arange(0, SIZE, 2).double() / SIZE)
        turn = torch.polar(torch.ones(SIZE // 2).double(), position * rates)
        pairs = torch.complex(x[..., : SIZE // 2], x[..., SIZE // 2 :]) * turn
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    logits, made = [], None
    keys = [[] for _ in range(own["layers"])]
    for row in range(len(embedded)):
        if row < len(states):
            x = states[row]
            if own.get("norm_before_fc"):
                x = rms("input_norm.weight", x)
            if own.get("fc_norm"):
                x = torch.cat([rms(f"fc_norm.{part}.weight", one) for part, one in enumerate(x.chunk(3))])
            x = product("fc.weight", x)
        else:
            x = rms("norm.weight", made) if own.get("norm_output") else made
        for number in range(own["layers"]):
            layer = f"layers.{number}"
            normed = rms(f"{layer}.{'input_layernorm' if number else 'hidden_norm'}.weight", x)
            if number == 0:
                x = normed if own.get("norm_before_residual") else x
                normed = torch.cat((rms(f"{layer}.input_layernorm.weight", embedded[row]), normed))
            q, k, v = (product(f"{layer}.self_attn.{one}_proj.weight", normed).view(-1, SIZE) for one in "qkv")
            if own["qwen3"]:
                q = rms(f"{layer}.self_attn.q_norm.weight", q)
                k = rms(f"{layer}.self_attn.k_norm.weight", k)
            keys[number].append((turned(k, row), v))
            mixed = []
            for head in range(HEADS):
                pair = head * KEYS // HEADS
                scores = torch.stack([turned(q[head], row) @ k[pair] for k, _ in keys[number]]) / SIZE**0.5
                mixed.append(scores.softmax(0) @ torch.stack([v[pair] for _, v in keys[number]]))
            x = x + product(f"{layer}.self_attn.o_proj.weight", torch.cat(mixed))
            inner = rms(f"{layer}.post_attention_layernorm.weight", x)
            gate = silu(product(f"{layer}.mlp.gate_proj.weight", inner))
            x = x + product(f"{layer}.mlp.down_proj.weight", gate * product(f"{layer}.mlp.up_proj.weight", inner))
        made = x
        drafted = product("lm_head.weight", rms("norm.weight", made))
        whole = torch.full((VOCABULARY,), -torch.inf).double()
        kept = torch.arange(len(drafted)) + tensors.get("d2t", 0)
        whole[kept] = drafted
        logits.append(whole)
    return torch.stack(logits[len(logits) - count :])
