#!/usr/bin/env bash
# transformers 5.23.0: assisted generation with sampling warps the draft's logits twice.
# With temperature 0.5 the distribution that the draft samples from has temperature 0.25: its logits are divided by the
# temperature in the draft's own generate(), and the processors of the target's call are in there once more. The output
# keeps its distribution, since the acceptance rule uses the drafted one, but fewer drafts are accepted than could be.
# One would have guessed that target and draft sample at the same temperature.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" 2>"$folder/log" <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.candidate_generator import AssistedCandidateGenerator

torch.manual_seed(0)
torch.set_num_threads(1)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(
    vocab_size=64, num_key_value_heads=2, initializer_range=0.5, eos_token_id=None, bos_token_id=None, **sizes
)
model = LlamaForCausalLM(config).eval()
prompt = torch.tensor([[1, 2, 3, 4]])
drafted = []
original = AssistedCandidateGenerator.get_candidates


def kept(self, *arguments, **given):
    found = original(self, *arguments, **given)
    drafted.append(found)
    return found


AssistedCandidateGenerator.get_candidates = kept
model.generate(
    prompt, assistant_model=model, max_new_tokens=8, do_sample=True, temperature=0.5, top_k=0, pad_token_id=0
)
ids, logits = drafted[0]
with torch.inference_mode():
    raw = model(prompt).logits[0, -1]
used = logits[0, 0]
temperature = float((raw - raw.mean()).norm() / (used - used.mean()).norm())
print(f"asked for 0.5, drafted at {temperature:.3f}")
assert abs(temperature - 0.25) < 0.01
PYTHON
