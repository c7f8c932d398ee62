#!/usr/bin/env bash
# transformers 5.23.0: with top_p, prompt lookup never drafts a fixed part of the vocabulary, likely tokens included.
# It cuts a draft at tokens that the logits processors forbid, and finds these with equal logits for all tokens. Of equal
# ones, top_p 0.9 forbids a tenth, which depends on how they are sorted and not on the model: with a vocabulary of 49,152,
# 4,915 neighboring ids. The output keeps its distribution, but drafts end early or are empty.
# One would have guessed that prompt lookup copies from the prompt whatever top_p is.
# Seen: 36 tokens of probability 1 take 6 passes without top_p. With top_p 0.9 they take 36 if their ids are among the
# forbidden ones, and 6 if not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" 2>"$folder/log" <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TopPLogitsWarper

torch.manual_seed(0)
torch.set_num_threads(1)
VOCABULARY, RING = 64, 6
sizes = {"hidden_size": VOCABULARY, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, eos_token_id=None, bos_token_id=None, **sizes)
model = LlamaForCausalLM(config).eval()
passes = []
model.register_forward_pre_hook(lambda *_: passes.append(1))


def counted(ring, **sampling):
    """Return the number of passes that decode six rounds of a ring of tokens, which the model follows surely."""
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY))
        model.lm_head.weight.zero_()
        model.lm_head.weight[[*ring[1:], ring[0]], ring] = 5.0
    passes.clear()
    given = {"prompt_lookup_num_tokens": 5, "max_new_tokens": 6 * RING, "do_sample": True, "top_k": 0}
    found = model.generate(torch.tensor([ring * 2]), pad_token_id=0, **given, **sampling)
    assert found[0, 2 * RING :].tolist() == ring * 6
    return len(passes)


equal = TopPLogitsWarper(0.9)(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, VOCABULARY))
forbidden = equal[0].isinf().nonzero().flatten().tolist()
assert len(forbidden) == RING
others = [token for token in range(VOCABULARY) if token not in forbidden][:RING]
found = {
    "forbidden ids, no top_p": counted(forbidden),
    "forbidden ids, top_p 0.9": counted(forbidden, top_p=0.9),
    "other ids, top_p 0.9": counted(others, top_p=0.9),
}
print(found)
assert found["forbidden ids, no top_p"] == found["other ids, top_p 0.9"] < 10
assert found["forbidden ids, top_p 0.9"] == 6 * RING
PYTHON
