#!/usr/bin/env bash
# transformers 5.23.0: hidden states of assisted generation belong to other tokens for drafts of the first pass.
# With output_hidden_states there is one entry per new token, as without drafts. But those of the drafts that the first pass
# accepts hold the states of the prompt's first tokens. Later passes are right, and so are scores and logits. A draft head
# that is trained on such states gets the features of other tokens, in the right shapes and without an error.
# One would have guessed that the states are those of plain decoding, as scores and logits are.
# Seen: of 11 entries the 5 after the prompt's differ from plain decoding by 2.0 to 3.0 and equal the first 5 of the prompt.
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
model = LlamaForCausalLM(config).eval()
model.generation_config.num_assistant_tokens = 5
model.generation_config.num_assistant_tokens_schedule = "constant"
model.generation_config.assistant_confidence_threshold = 0.0
prompt = torch.tensor([[9, 8, 7, 6, 5, 4, 3, 2]])
given = {"max_new_tokens": 11, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
given |= {"output_hidden_states": True, "output_logits": True}
plain = model.generate(prompt, **given)
drafted = model.generate(prompt, assistant_model=model, **given)  # it accepts all of its own drafts
assert torch.equal(plain.sequences, drafted.sequences) and len(plain.logits) == len(drafted.logits) == 11


def distances(ours, theirs):
    return [round((a - b).abs().max().item(), 3) for a, b in zip(ours, theirs)]


last, expected = ([entry[-1] for entry in one.hidden_states] for one in (drafted, plain))
found = distances(last, expected)
of_prompt = distances(last[1:6], expected[0][:, :5].unbind(1))
print(f"distance from plain decoding: {found}; from the prompt's first tokens: {of_prompt}")
assert max(distances(drafted.logits, plain.logits)) < 0.01
assert max(found[0], *found[6:], *of_prompt) < 0.01 < 0.5 < min(found[1:6])
PYTHON
