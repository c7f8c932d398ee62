#!/usr/bin/env bash
# transformers 5.23.0: assisted generation drafts less per step if scikit-learn is installed.
# The confidence below which a draft ends is 0.4, and its docstring promises that it adapts to accepted tokens.
# It does so with a function of scikit-learn, which transformers does not require. Without the package it stays 0.4,
# without a warning. So the same call costs more draft passes in one environment than in another.
# One would have guessed that a draft's length does not depend on packages that the script does not import.
# Seen: for the same 60 tokens 214 draft passes without scikit-learn, 91 with it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
cat >"$folder/count.py" <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
VOCABULARY = 64
sizes = {"hidden_size": VOCABULARY, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, eos_token_id=None, bos_token_id=None, **sizes)


def model(mistakes):
    """Return a model that counts, with confidence 0.9; after every fifth token it may be wrong, with confidence 0.5."""
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.model.layers[0].self_attn.o_proj.weight.zero_()
        made.model.layers[0].mlp.down_proj.weight.zero_()
        made.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY))
        made.lm_head.weight.zero_()
        for token in range(VOCABULARY):
            wrong = mistakes and token % 5 == 0
            # the norm makes a one-hot vector 8 long, and 63 other tokens have logit 0
            made.lm_head.weight[(token + 1 + wrong) % VOCABULARY, token] = (4.14 if wrong else 6.34) / 8
    return made


target, draft = model(False), model(True)
passes = []
draft.register_forward_pre_hook(lambda *_: passes.append(1))
prompt = torch.tensor([[1, 2, 3]])
found = target.generate(prompt, assistant_model=draft, max_new_tokens=60, do_sample=False, pad_token_id=0)
assert found[0].tolist() == [(1 + n) % VOCABULARY for n in range(63)]
print(len(passes))
PYTHON
without=$("$folder/venv/bin/python" "$folder/count.py" 2>"$folder/log")
"$folder/venv/bin/pip" install --quiet scikit-learn==1.7.2
with=$("$folder/venv/bin/python" "$folder/count.py" 2>"$folder/log")
echo "draft passes: $without without scikit-learn, $with with it"
test "$((2 * with))" -lt "$without"
