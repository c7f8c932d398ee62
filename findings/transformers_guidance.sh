#!/usr/bin/env bash
# transformers 5.23.0: with guidance_scale, prompt lookup and assisted generation give other greedy answers.
# Classifier-free guidance keeps a cache of its own for the unconditional logits. It gets one token per call, so rejected
# drafts stay in it, and prompt lookup also calls it to check its drafts. Other processors have no such state, and with
# repetition penalties or forbidden n-grams greedy answers stay the same. There is no warning.
# One would have guessed that greedy speculation is lossless with every generation parameter that it does not refuse.
# Seen: of 8 greedy answers 8 change with prompt lookup and 8 with a draft model; with repetition_penalty none does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" 2>"$folder/log" <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(
    vocab_size=64, num_key_value_heads=2, initializer_range=0.3, eos_token_id=None, bos_token_id=None, **sizes
)
model, draft = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()


def answers(**parameters):
    """Return greedy answers to eight prompts."""
    given = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, **parameters}
    prompts = [torch.tensor([[first, 9, 8, 7, first, 9, 8, 7, first, 9]]) for first in range(8)]
    return [model.generate(prompt, **given)[0].tolist() for prompt in prompts]


ways = {"prompt lookup": {"prompt_lookup_num_tokens": 4}, "draft": {"assistant_model": draft}}
found = {}
for parameter in ({"guidance_scale": 1.5}, {"repetition_penalty": 1.5}):
    plain = answers(**parameter)
    assert plain == answers(**parameter)
    for way, drafts in ways.items():
        found[*parameter, way] = sum(a != b for a, b in zip(plain, answers(**parameter, **drafts)))
print(found)
assert all(found["guidance_scale", way] > 4 for way in ways)
assert not any(found["repetition_penalty", way] for way in ways)
PYTHON
