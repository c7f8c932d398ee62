#!/usr/bin/env bash
# transformers 5.23.0: assisted generation takes the draft length from the draft model's generation config alone.
# num_assistant_tokens given to generate(), or set in the target's generation config, is ignored without a warning, and
# 20 tokens are drafted. The same number in assistant_model.generation_config works. The target's config is however the
# place of prompt_lookup_num_tokens.
# One would have guessed that an argument of the call wins, as with every other generation parameter.
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
config = LlamaConfig(vocab_size=64, num_key_value_heads=2, eos_token_id=None, bos_token_id=None, **sizes)
target, draft = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()


def drafted(place, **call):
    """Return the largest number of drafted tokens that the target checked, with the length set in one place."""
    for model in (target, draft):
        model.generation_config.num_assistant_tokens = 3 if model is place else None
        model.generation_config.num_assistant_tokens_schedule = "constant"
        model.generation_config.assistant_confidence_threshold = 0.0
    if draft.generation_config.num_assistant_tokens is None:
        draft.generation_config.num_assistant_tokens = type(draft.generation_config)().num_assistant_tokens or 20
    rows = []
    hook = target.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prompt = torch.tensor([[1, 2, 3, 4]])
    target.generate(prompt, assistant_model=draft, max_new_tokens=40, do_sample=False, pad_token_id=0, **call)
    hook.remove()
    return max(rows[1:]) - 1  # without the root


lengths = {
    "call": drafted(None, num_assistant_tokens=3),
    "target": drafted(target),
    "draft": drafted(draft),
}
print(lengths)
assert lengths["draft"] == 3 < min(lengths["call"], lengths["target"])
PYTHON
