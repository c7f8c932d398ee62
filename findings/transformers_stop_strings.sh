#!/usr/bin/env bash
# transformers 5.23.0: with drafts, generate passes over a stop string that is completed within a step.
# Stopping criteria see the text at the end of each step only, and a stop string counts only if it ends the text. So an
# answer may run to its token limit although plain decoding stops. End tokens and the limit itself are obeyed. The same
# holds for custom criteria that test the last token. (Reported upstream as huggingface/transformers#48039, and closed.)
# One would have guessed that stop_strings end the same greedy answer at the same token with prompt lookup.
# Seen: plain decoding stops after 5 tokens. With prompt lookup of 8 tokens the answer has 40, the limit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" 2>"$folder/log" <<'PYTHON'
import string

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)
characters = f"{string.ascii_lowercase}{string.ascii_uppercase}{string.digits}+-"
tokens = Tokenizer(models.BPE({character: n for n, character in enumerate(characters)}, []))
tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens)
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **ends, **sizes)).eval()
with torch.no_grad():  # a model that counts: after token n comes n + 1
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(64))
    model.lm_head.weight.copy_(torch.eye(64).roll(1, 0))
prompt = torch.tensor([[*range(64), *range(10)]])


def answer(**drafts):
    given = {"max_new_tokens": 40, "do_sample": False, "stop_strings": ["no"], "tokenizer": tokenizer}
    return tokenizer.decode(model.generate(prompt, **given, **drafts)[0, prompt.shape[1] :])


plain, drafted = answer(), answer(prompt_lookup_num_tokens=8)
print(plain, drafted)
assert plain == "klmno"
assert drafted.startswith(plain) and len(drafted) == 40
PYTHON
